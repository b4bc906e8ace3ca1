#include "runtime/text/jinja/characters.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/ascii.h"
#include "runtime/base/utf8.h"

namespace orcd::jinja {
namespace {

constexpr char32_t kSigma = 0x3A3;
constexpr std::string_view kSmallSigma = "\xCF\x83";
constexpr std::string_view kFinalSigma = "\xCF\x82";

bool IsContinuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// The next cased character, past those that are ignored, in the direction of `forwards`.
bool IsNextToCased(std::string_view text, size_t pos, bool forwards) {
  while (forwards ? pos < text.size() : pos > 0) {
    if (!forwards) pos -= LastCharacterLength(text, pos);
    const Utf8Char c = DecodeUtf8(text, pos);
    if (!IsIn(kCaseIgnorable, c.codepoint)) return IsIn(kCased, c.codepoint);
    if (forwards) pos += c.length;
  }
  return false;
}

}  // namespace

bool IsCharacter(char32_t c) { return c < 0xD800 || (c >= 0xE000 && c <= 0x10FFFF); }

std::string ToUtf8(char32_t c) {
  std::string bytes;
  if (c < 0x80) {
    bytes.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    bytes.push_back(static_cast<char>(0xC0 | c >> 6));
  } else if (c < 0x10000) {
    bytes.push_back(static_cast<char>(0xE0 | c >> 12));
    bytes.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
  } else {
    bytes.push_back(static_cast<char>(0xF0 | c >> 18));
    bytes.push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    bytes.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
  }
  if (c >= 0x80) bytes.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  return bytes;
}

bool IsSpace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool IsIn(std::span<const CharacterRange> ranges, char32_t character) {
  const auto after = std::ranges::upper_bound(ranges, character, {}, &CharacterRange::first);
  return after != ranges.begin() && character <= std::prev(after)->last;
}

int DecimalDigit(char32_t character) {
  // Each range begins with a zero.
  const auto after = std::ranges::upper_bound(kDecimal, character, {}, &CharacterRange::first);
  if (after == kDecimal.begin() || character > std::prev(after)->last) return -1;
  return static_cast<int>(character - std::prev(after)->first) % 10;
}

size_t BeginWithoutSpace(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const Utf8Char c = DecodeUtf8(text, pos);
    if (!IsSpace(c.codepoint)) break;
    pos += c.length;
  }
  return pos;
}

size_t EndWithoutSpace(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t length = LastCharacterLength(text, end);
    if (!IsSpace(DecodeUtf8(text, end - length).codepoint)) break;
    end -= length;
  }
  return end;
}

size_t CountCharacters(std::string_view text) {
  return text.size() - std::count_if(text.begin(), text.end(), IsContinuation);
}

size_t PositionOf(std::string_view text, size_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) pos += CharacterLength(text, pos);
  return pos;
}

size_t CharacterLength(std::string_view text, size_t pos) {
  size_t end = pos + 1;
  while (end < text.size() && IsContinuation(text[end])) ++end;
  return end - pos;
}

size_t LastCharacterLength(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && IsContinuation(text[begin])) --begin;
  return end - begin;
}

size_t FindFirst(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  if (text.empty()) return std::string_view::npos;
  const void* const found =
      memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<const char*>(found) - text.data();
}

void AppendInCase(const Text& text, size_t pos, size_t length, Case to, TextBuilder& out) {
  const Origin origin = text.OriginAt(pos);
  const char32_t c = DecodeUtf8(text.bytes, pos).codepoint;
  if (c < 0x80) {
    const auto ascii = static_cast<unsigned char>(c);
    const unsigned char changed =
        to == Case::kLower ? absl::ascii_tolower(ascii) : absl::ascii_toupper(ascii);
    const char byte = static_cast<char>(changed);
    return out.Append({&byte, 1}, origin);
  }
  if (c == kSigma && to == Case::kLower) {
    const bool is_final =
        IsNextToCased(text.bytes, pos, false) && !IsNextToCased(text.bytes, pos + length, true);
    return out.Append(is_final ? kFinalSigma : kSmallSigma, origin);
  }
  const auto runs = to == Case::kLower ? kLowercase : to == Case::kUpper ? kUppercase : kTitlecase;
  const auto after = std::ranges::upper_bound(runs, c, {}, &CaseRun::first);
  if (after == runs.begin()) return out.Append(text.Sub(pos, length));
  const CaseRun& run = *std::prev(after);
  if (c > run.last || (c - run.first) % run.step != 0) return out.Append(text.Sub(pos, length));
  out.Append(run.text.empty() ? ToUtf8(c + run.delta) : std::string(run.text), origin);
}

void AppendInCase(const Text& text, Case to, TextBuilder& out) {
  for (size_t pos = 0; pos < text.bytes.size();) {
    const size_t length = CharacterLength(text.bytes, pos);
    AppendInCase(text, pos, length, to, out);
    pos += length;
  }
}

}  // namespace orcd::jinja
