#include "runtime/engine/output_text.h"

#include <algorithm>
#include <utility>

namespace orcd {
namespace {

// Length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t OverlapAtEnd(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

std::string_view ShownBytes(const Tokenizer& tokenizer, int32_t token, bool show_special) {
  const std::string_view bytes = tokenizer.TokenBytes(token);
  return bytes.empty() && show_special ? tokenizer.TokenText(token) : bytes;
}

OutputText::OutputText(std::vector<std::string> stop_strings, int min_tokens)
    : stop_strings_(std::move(stop_strings)), min_tokens_(min_tokens) {}

std::string OutputText::Append(std::string_view bytes) {
  ++tokens_;
  held_ += utf8_.Append(bytes);
  return TakeReleasable();
}

std::string OutputText::TakeReleasable() {
  if (tokens_ <= min_tokens_) exempt_ = held_.size();
  // The stop string that begins first wins; of two that begin together, the one the caller named
  // first.
  size_t first = std::string::npos;
  for (const std::string& stop : stop_strings_) {
    // The first position at which the stop string would end beyond the exempt text.
    const size_t from = exempt_ < stop.size() ? 0 : exempt_ - stop.size() + 1;
    const size_t pos = held_.find(stop, from);
    if (pos < first) {
      first = pos;
      stopped_ = stop;
    }
  }
  if (stopped_) {
    held_.erase(first);
    return std::exchange(held_, {});
  }
  size_t held_back = 0;
  for (const std::string& stop : stop_strings_) {
    held_back = std::max(held_back, OverlapAtEnd(held_, stop));
  }
  // Both are UTF-8, so the overlap begins with a whole character.
  const size_t cut = held_.size() - held_back;
  std::string certain = held_.substr(0, cut);
  held_.erase(0, cut);
  exempt_ -= std::min(exempt_, cut);
  return certain;
}

std::string OutputText::Finish() {
  // The rest of an unfinished character comes out as U+FFFD and can complete a stop string like any
  // other text.
  held_ += utf8_.Finish();
  std::string text = TakeReleasable();
  if (!stopped_) text += std::exchange(held_, {});
  return text;
}

}  // namespace orcd
