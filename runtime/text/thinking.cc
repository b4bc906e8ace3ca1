#include "runtime/text/thinking.h"

#include <algorithm>
#include <cstddef>

namespace orcd {
namespace {

constexpr std::string_view kBegin = "<think>";
constexpr std::string_view kEnd = "</think>";

// One past the last occurrence of `part`; 0 if there is none.
size_t PastLast(std::string_view text, std::string_view part) {
  const size_t found = part.empty() ? std::string_view::npos : text.rfind(part);
  return found == std::string_view::npos ? 0 : found + part.size();
}

}  // namespace

int32_t ThinkingEndId(const Tokenizer& tokenizer) { return tokenizer.FindSpecial(kEnd); }

bool EndsInThinking(const Tokenizer& tokenizer, std::span<const int32_t> prompt) {
  const int32_t begin = tokenizer.FindSpecial(kBegin);
  const int32_t end = ThinkingEndId(tokenizer);
  if (begin < 0 || end < 0) return false;
  for (size_t i = prompt.size(); i > 0; --i) {
    const int32_t id = prompt[i - 1];
    if (id == begin) return true;
    if (id == end || tokenizer.IsEog(id)) return false;
  }
  return false;
}

bool EndsInThinking(const Tokenizer& tokenizer, std::string_view prompt) {
  if (tokenizer.FindSpecial(kBegin) < 0 || ThinkingEndId(tokenizer) < 0) return false;
  size_t past_end = PastLast(prompt, kEnd);
  for (const int32_t id : tokenizer.eog_ids()) {
    past_end = std::max(past_end, PastLast(prompt, tokenizer.TokenText(id)));
  }
  return PastLast(prompt, kBegin) > past_end;
}

}  // namespace orcd
