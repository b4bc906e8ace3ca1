#include "runtime/text/special_tokens.h"

#include <algorithm>
#include <tuple>

namespace orcd {

void SpecialTokens::Add(std::string_view text, int32_t id, bool is_control) {
  entries_[static_cast<uint8_t>(text[0])].push_back({std::string(text), id, is_control});
}

std::vector<SpecialTokenMatch> SpecialTokens::FindAll(std::string_view text,
                                                      std::span<const TextSpan> spans) const {
  std::vector<SpecialTokenMatch> found;
  for (const TextSpan& span : spans) {
    const std::string_view stretch = text.substr(0, span.end);
    for (size_t pos = span.begin; pos < span.end; ++pos) {
      for (const Entry& entry : entries_[static_cast<uint8_t>(text[pos])]) {
        if (entry.is_control && !span.allows_control) continue;
        if (!stretch.substr(pos).starts_with(entry.text)) continue;
        found.push_back({pos, pos + entry.text.size(), entry.id});
      }
    }
  }

  std::ranges::sort(found, {}, [](const SpecialTokenMatch& match) {
    return std::tuple(match.begin - match.end, match.id, match.begin);
  });
  // Every token taken so far is at least as long as the next one, so one that overlaps the next
  // token covers its first or its last byte.
  std::vector<bool> taken(found.empty() ? 0 : text.size());
  std::erase_if(found, [&](const SpecialTokenMatch& match) {
    if (taken[match.begin] || taken[match.end - 1]) return true;
    std::fill(taken.begin() + match.begin, taken.begin() + match.end, true);
    return false;
  });
  std::ranges::sort(found, {}, &SpecialTokenMatch::begin);
  return found;
}

int32_t SpecialTokens::FindId(std::string_view text) const {
  if (text.empty()) return -1;
  for (const Entry& entry : entries_[static_cast<uint8_t>(text[0])]) {
    if (entry.text == text) return entry.id;
  }
  return -1;
}

}  // namespace orcd
