#include "runtime/base/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace orcd {
namespace {

// Bytes that may follow a lead byte: the length of the character, and the bounds of its second
// byte, which exclude overlong forms, surrogates and values past U+10FFFF.
struct LeadByte {
  int length;  // 0: no lead byte.
  uint8_t second_min;
  uint8_t second_max;
};

constexpr LeadByte LeadByteOf(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Number of bytes at the start of `text` that agree with a character that begins there: its whole
// length, or fewer if `text` ends or goes on otherwise; 0 if none can begin.
int AgreeingBytes(std::string_view text, const LeadByte& lead) {
  if (lead.length == 0) return 0;
  const int available = static_cast<int>(std::min<size_t>(lead.length, text.size()));
  for (int i = 1; i < available; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return i;
  }
  return available;
}

constexpr uint64_t kHighBits = 0x8080808080808080;

// Returns the end of the ASCII bytes that start at `pos`, or a position shortly before it, since
// only whole words of eight bytes are skipped.
size_t SkipAscii(std::string_view text, size_t pos) {
  uint64_t word;
  while (pos + sizeof(word) <= text.size()) {
    std::memcpy(&word, text.data() + pos, sizeof(word));
    if ((word & kHighBits) != 0) break;
    pos += sizeof(word);
  }
  return pos;
}

}  // namespace

Utf8Char DecodeUtf8(std::string_view text, size_t pos) {
  const auto first = static_cast<uint8_t>(text[pos]);
  if (first < 0x80) return {first, 1, true};
  const LeadByte lead = LeadByteOf(first);
  const std::string_view rest = text.substr(pos);
  if (lead.length == 0 || AgreeingBytes(rest, lead) != lead.length) {
    return {kReplacementCodepoint, 1, false};
  }
  char32_t codepoint = first & (0xFF >> (lead.length + 1));
  for (int i = 1; i < lead.length; ++i) {
    codepoint = codepoint << 6 | (static_cast<uint8_t>(rest[i]) & 0x3F);
  }
  return {codepoint, lead.length, true};
}

size_t TruncatedPrefixLength(std::string_view text) {
  return std::max(1, AgreeingBytes(text, LeadByteOf(static_cast<uint8_t>(text[0]))));
}

bool IsTruncatedUtf8Char(std::string_view text) {
  if (text.empty()) return false;
  const LeadByte lead = LeadByteOf(static_cast<uint8_t>(text[0]));
  return text.size() < static_cast<size_t>(lead.length) &&
         static_cast<size_t>(AgreeingBytes(text, lead)) == text.size();
}

size_t FindInvalidUtf8(std::string_view text) {
  size_t pos = 0;
  while ((pos = SkipAscii(text, pos)) < text.size()) {
    const Utf8Char c = DecodeUtf8(text, pos);
    if (!c.valid) return pos;
    pos += c.length;
  }
  return text.size();
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string replaced;
  while (!text.empty()) {
    const size_t good = FindInvalidUtf8(text);
    replaced += text.substr(0, good);
    if (good == text.size()) break;
    replaced += kReplacementCharacter;
    text.remove_prefix(good + 1);
  }
  return replaced;
}

}  // namespace orcd
