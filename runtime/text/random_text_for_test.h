// Texts that are difficult for tokenizers.
#ifndef ORCD_RUNTIME_TEXT_RANDOM_TEXT_FOR_TEST_H_
#define ORCD_RUNTIME_TEXT_RANDOM_TEXT_FOR_TEST_H_

#include <cstddef>
#include <random>
#include <string>
#include <string_view>

#include "testing/sanitized.h"

namespace orcd {

// The sizes of hostile texts.
inline constexpr size_t kLong = testing::kSanitized ? 128 << 10 : 1 << 20;
inline constexpr size_t kLongest = testing::kSanitized ? 256 << 10 : 4 << 20;

// `part` again and again, until the text has `size` bytes.
inline std::string RepeatedTo(size_t size, std::string_view part) {
  std::string text;
  while (text.size() < size) text += part;
  return text;
}

// Encodes `codepoint`, which is not a surrogate, in UTF-8.
inline std::string ToUtf8(char32_t codepoint) {
  const auto tail = [&](int shift) {
    return static_cast<char>(0x80 | (codepoint >> shift & 0x3F));
  };
  if (codepoint < 0x80) return {static_cast<char>(codepoint)};
  if (codepoint < 0x800) return {static_cast<char>(0xC0 | codepoint >> 6), tail(0)};
  if (codepoint < 0x10000) return {static_cast<char>(0xE0 | codepoint >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | codepoint >> 18), tail(12), tail(6), tail(0)};
}

// Valid UTF-8 of up to `max_chars` characters: any of Unicode, with extra weight on characters that
// pre-tokenizers and special tokens treat specially.
inline std::string RandomText(std::mt19937_64& random, int max_chars) {
  constexpr std::u32string_view kFrequent =
      U" \n\r\t'sStTrReEvVmMlLdDaA10.,-<|>_\u00A0\u00BD\u0085\u00E9\u0301\u2028\u3000\u4E2D\u17B6";
  constexpr std::string_view kWritten[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>",
                                           "<tool_call>",  "im_end|>",   "[PAD151665]"};
  std::string text;
  for (int chars = static_cast<int>(random() % (max_chars + 1)); chars > 0; --chars) {
    switch (random() % 8) {
      case 0: {
        const auto codepoint = static_cast<char32_t>(random() % (0x110000 - 0x800));
        text += ToUtf8(codepoint < 0xD800 ? codepoint : codepoint + 0x800);
        break;
      }
      case 1:
        text += ToUtf8(static_cast<char32_t>(random() % 0x800));
        break;
      case 2:
        if (random() % 4 == 0) {
          text += kWritten[random() % std::size(kWritten)];
          break;
        }
        [[fallthrough]];
      default:
        text += ToUtf8(kFrequent[random() % kFrequent.size()]);
    }
  }
  return text;
}

inline std::string RandomBytes(std::mt19937_64& random, int max_bytes) {
  std::string bytes(random() % (max_bytes + 1), '\0');
  // Mostly lead and continuation bytes, so that many characters are incomplete.
  for (char& byte : bytes) {
    byte = static_cast<char>(random() % 3 == 0 ? random() : 0x80 + random() % 0x80);
  }
  return bytes;
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_RANDOM_TEXT_FOR_TEST_H_
