#include "runtime/constraint/free_text.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "runtime/constraint/lark_text.h"

namespace orcd {
namespace {

// Special tokens that are spelled as text have bytes; unused tokens cannot be found by their text.
bool IsControl(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view text = tokenizer.TokenText(id);
  return tokenizer.TokenBytes(id).empty() && !text.empty() && tokenizer.FindSpecial(text) == id;
}

}  // namespace

std::vector<TextPiece> SplitControlTokens(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<TextPiece> pieces;
  const auto add_plain = [&](std::string_view plain) {
    if (!plain.empty()) pieces.push_back({.text = std::string(plain)});
  };
  const TextSpan whole = {0, text.size(), /*allows_control=*/true};
  size_t pos = 0;
  for (const int32_t id : tokenizer.Encode(text, std::span(&whole, 1))) {
    if (!IsControl(tokenizer, id)) continue;
    const std::string_view spelling = tokenizer.TokenText(id);
    const size_t found = text.find(spelling, pos);
    // A tokenizer that has no token for a byte encodes it as its unknown token.
    if (found == std::string_view::npos) continue;
    add_plain(text.substr(pos, found - pos));
    pieces.push_back({.token = id});
    pos = found + spelling.size();
  }
  add_plain(text.substr(pos));
  return pieces;
}

bool HasEndToken(std::span<const TextPiece> pieces, const Tokenizer& tokenizer) {
  return std::ranges::any_of(pieces,
                             [&](const TextPiece& piece) { return tokenizer.IsEog(piece.token); });
}

std::string LarkPieces(std::span<const TextPiece> pieces) {
  std::string lark;
  for (const TextPiece& piece : pieces) {
    if (!lark.empty()) lark += ' ';
    if (piece.token >= 0) {
      lark.append("<[").append(std::to_string(piece.token)).append("]>");
    } else {
      lark += LarkString(piece.text);
    }
  }
  return lark.empty() ? "\"\"" : lark;
}

std::string OtherControlTokens(const Tokenizer& tokenizer, std::span<const int32_t> marks) {
  std::string ranges;
  const auto allowed = [&](int32_t id) {
    return IsControl(tokenizer, id) && !tokenizer.IsEog(id) &&
           std::ranges::find(marks, id) == marks.end();
  };
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!allowed(id)) continue;
    const int32_t first = id;
    while (id + 1 < tokenizer.vocab_size() && allowed(id + 1)) ++id;
    ranges.append(ranges.empty() ? "" : ",").append(std::to_string(first));
    if (id > first) ranges.append("-").append(std::to_string(id));
  }
  return ranges.empty() ? ranges : "<[" + ranges + "]>";
}

}  // namespace orcd
