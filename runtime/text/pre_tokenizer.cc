#include "runtime/text/pre_tokenizer.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/match.h"
#include "runtime/text/unicode.h"

namespace orcd {
namespace {

// A position in the text and the class of the character there.
class Cursor {
 public:
  Cursor(std::string_view text, size_t pos) : text_(text), pos_(pos) { Look(); }

  bool at_end() const { return pos_ >= text_.size(); }
  size_t pos() const { return pos_; }
  // False at the end of the text.
  bool Is(CharClass char_class) const { return !at_end() && class_ == char_class; }
  bool IsLineBreak() const { return !at_end() && (text_[pos_] == '\n' || text_[pos_] == '\r'); }

  void Next() {
    pos_ += length_;
    Look();
  }
  size_t SkipAll(CharClass char_class) {
    while (Is(char_class)) Next();
    return pos_;
  }

 private:
  void Look() {
    if (at_end()) return;
    const auto byte = static_cast<uint8_t>(text_[pos_]);
    if (byte < 0x80) {
      length_ = 1;
      class_ = kAsciiClasses[byte];
      return;
    }
    const Utf8Char c = DecodeUtf8(text_, pos_);
    length_ = c.length;
    class_ = ClassOf(c.codepoint);
  }

  std::string_view text_;
  size_t pos_;
  int length_ = 0;
  CharClass class_ = CharClass::kOther;
};

// Length of the contraction ('s, 'LL, …) at the beginning of `text`; 0 if there is none.
size_t ContractionLength(std::string_view text) {
  if (!text.starts_with('\'')) return 0;
  const absl::string_view rest(text.data(), text.size());
  for (const absl::string_view contraction : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (absl::StartsWithIgnoreCase(rest, contraction)) return contraction.size();
  }
  return 0;
}

// The end of a word that starts with white space and has no letters or punctuation.
size_t EndOfSpace(std::string_view text, size_t begin) {
  Cursor cursor(text, begin);
  size_t after_line_break = begin;
  size_t last = begin;
  for (; cursor.Is(CharClass::kSpace); cursor.Next()) {
    last = cursor.pos();
    if (cursor.IsLineBreak()) after_line_break = last + 1;
  }
  if (after_line_break > begin) return after_line_break;
  // The last space of a run belongs to the word that follows the run.
  if (!cursor.at_end() && last > begin) return last;
  return cursor.pos();
}

constexpr std::string_view kQwen2Patterns[] = {
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))"
    R"(|[^\r\n\p{L}\p{N}]?[\p{L}]+)"
    R"(|[\p{N}])"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|[\s]*[\r\n]+)"
    R"(|[\s]+(?![^\s]))"
    R"(|[\s]+)"};

// The end of Qwen2's word that starts at `begin`; begin < text.size().
size_t EndOfQwen2Word(std::string_view text, size_t begin) {
  if (const size_t length = ContractionLength(text.substr(begin)); length > 0) {
    return begin + length;
  }
  Cursor cursor(text, begin);
  if (cursor.Is(CharClass::kLetter)) return cursor.SkipAll(CharClass::kLetter);
  if (cursor.Is(CharClass::kNumber)) {
    cursor.Next();
    return cursor.pos();
  }
  if (cursor.IsLineBreak()) return EndOfSpace(text, begin);

  Cursor next = cursor;
  next.Next();
  if (next.Is(CharClass::kLetter)) return next.SkipAll(CharClass::kLetter);
  if (text[begin] == ' ') cursor = next;
  if (cursor.Is(CharClass::kOther)) {
    cursor.SkipAll(CharClass::kOther);
    while (cursor.IsLineBreak()) cursor.Next();
    return cursor.pos();
  }
  return EndOfSpace(text, begin);
}

void SplitQwen2(std::string_view text, absl::FunctionRef<void(std::string_view word)> take) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = EndOfQwen2Word(text, begin);
    take(text.substr(begin, end - begin));
    begin = end;
  }
}

constexpr PreTokenizer kPreTokenizers[] = {
    {"qwen2", SplitQwen2, kQwen2Patterns, "Qwen2Tokenizer"},
};

}  // namespace

std::span<const PreTokenizer> PreTokenizers() { return kPreTokenizers; }

}  // namespace orcd
