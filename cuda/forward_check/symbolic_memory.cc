#include "cuda/forward_check/symbolic_memory.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace orcd::cuda {

Symbol Symbols::Make(const std::string& operation, const std::vector<Symbol>& of) {
  const std::string text = absl::StrCat(operation, "(", absl::StrJoin(of, ","), ")");
  const auto [found, is_new] = by_text_.try_emplace(text, static_cast<Symbol>(made_.size()));
  if (is_new) made_.emplace_back(operation, of);
  return found->second;
}

std::string Symbols::Describe(Symbol symbol, int depth) const {
  if (symbol < 0) return "nothing";
  const auto& [operation, of] = made_[symbol];
  if (of.empty()) return operation;
  if (depth == 0) return absl::StrCat(operation, "(…)");
  return absl::StrCat(operation, "(",
                      absl::StrJoin(of, ", ",
                                    [&](std::string* out, Symbol part) {
                                      absl::StrAppend(out, Describe(part, depth - 1));
                                    }),
                      ")");
}

void SymbolicMemory::Write(uintptr_t begin, int64_t bytes, const Content& content) {
  const uintptr_t end = begin + bytes;
  auto piece = pieces_.upper_bound(begin);
  if (piece != pieces_.begin() && std::prev(piece)->second.end > begin) --piece;
  while (piece != pieces_.end() && piece->first < end) piece = pieces_.erase(piece);
  pieces_.emplace_hint(piece, begin, Piece{end, content});
}

const SymbolicMemory::Piece* SymbolicMemory::Find(uintptr_t begin) const {
  const auto piece = pieces_.find(begin);
  return piece == pieces_.end() ? nullptr : &piece->second;
}

}  // namespace orcd::cuda
