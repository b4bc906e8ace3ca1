#include "runtime/text/byte_map.h"

#include <array>

#include "runtime/base/utf8.h"

namespace orcd {
namespace {

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr int kMovedBytes = 68;
constexpr char32_t kFirstMoved = 0x100;

// The bytes that do not represent themselves, in order.
constexpr std::array<uint8_t, kMovedBytes> MovedBytes() {
  std::array<uint8_t, kMovedBytes> moved = {};
  int count = 0;
  for (int byte = 0; byte < 256; ++byte) {
    if (!StandsForItself(byte)) moved[count++] = static_cast<uint8_t>(byte);
  }
  return moved;
}
constexpr std::array<uint8_t, kMovedBytes> kMoved = MovedBytes();

}  // namespace

std::string SpellByte(uint8_t byte) {
  char32_t codepoint = byte;
  if (!StandsForItself(byte)) {
    int index = 0;
    while (kMoved[index] != byte) ++index;
    codepoint = kFirstMoved + index;
  }
  if (codepoint < 0x80) return std::string(1, static_cast<char>(codepoint));
  return {static_cast<char>(0xC0 | codepoint >> 6), static_cast<char>(0x80 | (codepoint & 0x3F))};
}

std::optional<std::string> UnspellBytes(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t pos = 0; pos < spelling.size();) {
    const Utf8Char c = DecodeUtf8(spelling, pos);
    pos += c.length;
    if (c.codepoint < kFirstMoved && StandsForItself(static_cast<int>(c.codepoint))) {
      bytes.push_back(static_cast<char>(c.codepoint));
    } else if (c.codepoint >= kFirstMoved && c.codepoint < kFirstMoved + kMovedBytes) {
      bytes.push_back(static_cast<char>(kMoved[c.codepoint - kFirstMoved]));
    } else {
      return std::nullopt;
    }
  }
  return bytes;
}

}  // namespace orcd
