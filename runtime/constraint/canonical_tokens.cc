#include "runtime/constraint/canonical_tokens.h"

#include <span>
#include <string>

#include "runtime/base/utf8.h"

namespace orcd {
namespace {

// Each costs an encoding of the rest of the text.
constexpr int kMaxEncodings = 16;

}  // namespace

CanonicalTokens::CanonicalTokens(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  byte_ids_.fill(-1);
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    if (bytes.size() != 1 || tokenizer.IsEog(id)) continue;
    int32_t& slot = byte_ids_[static_cast<uint8_t>(bytes[0])];
    if (slot < 0) slot = id;
  }
  const std::vector<int32_t> letter = tokenizer.Encode("a", std::span<const TextSpan>());
  adds_space_ = !letter.empty() && tokenizer.TokenBytes(letter[0]).starts_with(' ');
}

std::vector<int32_t> CanonicalTokens::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  size_t pos = 0;
  for (int encodings = 0; pos < text.size(); ++encodings) {
    if (encodings < kMaxEncodings) AppendExact(text, pos, ids);
    if (pos == text.size()) break;
    const size_t end = pos + DecodeUtf8(text, pos).length;
    for (; pos < end; ++pos) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(text[pos])];
      if (id < 0) return ids;
      ids.push_back(id);
    }
  }
  return ids;
}

void CanonicalTokens::AppendExact(std::string_view text, size_t& pos,
                                  std::vector<int32_t>& ids) const {
  // Behind a line feed a text has no space put before it.
  const std::string_view lead = adds_space_ ? " \n" : "";
  const std::string continued = std::string(adds_space_ ? "\n" : "").append(text.substr(pos));
  const TextSpan whole = {.begin = 0, .end = continued.size(), .allows_control = false};
  const std::vector<int32_t> encoded = tokenizer_.Encode(continued, std::span(&whole, 1));
  size_t led = 0;
  for (const int32_t id : encoded) {
    const std::string_view bytes = tokenizer_.TokenBytes(id);
    if (bytes.empty() || tokenizer_.IsEog(id)) return;
    if (led < lead.size()) {
      if (!lead.substr(led).starts_with(bytes)) return;
      led += bytes.size();
      continue;
    }
    if (!text.substr(pos).starts_with(bytes)) return;
    ids.push_back(id);
    pos += bytes.size();
  }
}

}  // namespace orcd
