// Memory that holds, instead of values, the expressions that kernels would have computed. Nothing
// lies at its addresses.
#ifndef ORCD_CUDA_FORWARD_CHECK_SYMBOLIC_MEMORY_H_
#define ORCD_CUDA_FORWARD_CHECK_SYMBOLIC_MEMORY_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace orcd::cuda {

// An expression; equal expressions have the same number.
using Symbol = int;

// Expressions by operation and operands. One thread.
class Symbols {
 public:
  // The expression `operation` of the operands `of`.
  Symbol Make(const std::string& operation, const std::vector<Symbol>& of = {});
  // The expression as text, down to `depth` operations.
  std::string Describe(Symbol symbol, int depth = 4) const;

 private:
  std::vector<std::pair<std::string, std::vector<Symbol>>> made_;
  absl::flat_hash_map<std::string, Symbol> by_text_;
};

// Content of a piece of memory: a part of an expression's value. The writer defines what `part`
// means.
struct Content {
  Symbol symbol = -1;
  int64_t part = 0;

  bool operator==(const Content&) const = default;
};

class SymbolicMemory {
 public:
  struct Piece {
    uintptr_t end;
    Content content;
  };

  // Removes every piece that the new one overlaps, even in part.
  void Write(uintptr_t begin, int64_t bytes, const Content& content);
  // The piece that was written at `begin` and not overwritten since, even in part; null if there is
  // none.
  const Piece* Find(uintptr_t begin) const;

 private:
  std::map<uintptr_t, Piece> pieces_;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_FORWARD_CHECK_SYMBOLIC_MEMORY_H_
