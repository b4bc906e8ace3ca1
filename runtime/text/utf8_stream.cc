#include "runtime/text/utf8_stream.h"

#include "runtime/base/utf8.h"

namespace orcd {

std::string Utf8Stream::Append(std::string_view bytes) {
  pending_ += bytes;
  std::string_view rest = pending_;
  std::string text;
  while (!rest.empty()) {
    const size_t good = FindInvalidUtf8(rest);
    text += rest.substr(0, good);
    rest.remove_prefix(good);
    if (rest.empty() || IsTruncatedUtf8Char(rest)) break;
    text += kReplacementCharacter;
    rest.remove_prefix(TruncatedPrefixLength(rest));
  }
  pending_ = std::string(rest);
  return text;
}

std::string Utf8Stream::Finish() {
  std::string text(pending_.empty() ? std::string_view() : kReplacementCharacter);
  pending_.clear();
  return text;
}

}  // namespace orcd
