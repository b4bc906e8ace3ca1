#include "runtime/text/jinja/lexer.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/text/jinja/characters.h"

namespace orcd::jinja {
namespace {

bool IsNameByte(char c) {
  return absl::ascii_isalnum(c) || c == '_' || static_cast<uint8_t>(c) >= 0x80;
}

// Longer signs first.
constexpr std::string_view kSigns[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                       "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                       ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (pos_ < source_.size()) {
      absl::Status status = NextTag();
      if (!status.ok()) return status;
    }
    Add(Token::Type::kEnd, 0);
    return std::move(tokens_);
  }

 private:
  std::string_view Rest() const { return source_.substr(pos_); }

  absl::Status Fail(std::string_view message) const {
    return absl::InvalidArgumentError(
        absl::StrCat("line ", line_, ": ", absl::string_view(message.data(), message.size())));
  }

  // Skips `bytes`, which count for the line.
  void Skip(size_t bytes) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + pos_, source_.begin() + pos_ + bytes, '\n'));
    pos_ += bytes;
  }
  void Add(Token::Type type, size_t bytes) {
    tokens_.push_back({type, line_, source_.substr(pos_, bytes)});
    Skip(bytes);
  }

  // True if the brace at `pos` begins a tag.
  bool BeginsTag(size_t pos) const {
    return pos + 1 < source_.size() &&
           std::string_view("{%#").find(source_[pos + 1]) != std::string_view::npos;
  }

  // Takes the text up to the next tag, and the tag.
  absl::Status NextTag() {
    size_t begin = source_.find('{', pos_);
    while (begin != std::string_view::npos && !BeginsTag(begin)) {
      begin = source_.find('{', begin + 1);
    }
    if (begin == std::string_view::npos) {
      Add(Token::Type::kData, source_.size() - pos_);
      return absl::OkStatus();
    }
    const char kind = source_[begin + 1];
    const char sign = begin + 2 < source_.size() ? source_[begin + 2] : '\0';
    AddData(begin, sign, /*strips_line=*/kind != '{');
    Skip(sign == '-' || sign == '+' ? 3 : 2);
    if (kind == '#') return SkipComment();
    if (kind == '%' && StartsWithWord(Rest(), "raw")) return TakeRaw();
    return TakeTag(kind == '{');
  }

  // Adds the text before a tag at `end`. A tag that is not an output and stands alone before its
  // line's end loses the white space before it, unless its sign is '+'.
  void AddData(size_t end, char sign, bool strips_line) {
    std::string_view data = source_.substr(pos_, end - pos_);
    if (sign == '-') {
      data = data.substr(0, EndWithoutSpace(data));
    } else if (sign != '+' && strips_line) {
      const size_t after_break = data.rfind('\n') + 1;
      const std::string_view line = data.substr(after_break);
      if ((after_break > 0 || at_line_start_) && BeginWithoutSpace(line) == line.size()) {
        data = data.substr(0, after_break);
      }
    }
    if (!data.empty()) tokens_.push_back({Token::Type::kData, line_, data});
    Skip(end - pos_);
  }

  // Takes the end of a tag, `closing`, whose sign before it says what happens to white space after
  // it. False if the end is not here.
  bool TakeTagEnd(std::string_view closing, bool trims_break) {
    std::string_view rest = Rest();
    const char sign = rest.empty() ? '\0' : rest[0];
    const bool has_sign = sign == '-' || (sign == '+' && trims_break);
    if (has_sign) rest.remove_prefix(1);
    if (!rest.starts_with(closing)) return false;
    Skip(has_sign + closing.size());
    at_line_start_ = false;
    const size_t before = pos_;
    if (sign == '-') {
      Skip(BeginWithoutSpace(Rest()));
    } else if (!has_sign && trims_break && Rest().starts_with('\n')) {
      Skip(1);
    }
    at_line_start_ = pos_ > before && source_[pos_ - 1] == '\n';
    return true;
  }

  absl::Status SkipComment() {
    // Jinja lets a template end where a comment begins.
    if (pos_ == source_.size()) return absl::OkStatus();
    const size_t end = Rest().find("#}");
    if (end == std::string_view::npos) return Fail("a comment has no end");
    const char sign = end > 0 ? source_[pos_ + end - 1] : '\0';
    Skip(sign == '-' || sign == '+' ? end - 1 : end);
    TakeTagEnd("#}", true);
    return absl::OkStatus();
  }

  // True if `text`, after white space, begins with `word` and no longer one.
  static bool StartsWithWord(std::string_view text, std::string_view word) {
    text.remove_prefix(BeginWithoutSpace(text));
    return text.starts_with(word) && (text.size() == word.size() || !IsNameByte(text[word.size()]));
  }

  // Takes what stands between `{% raw %}`, after whose `{%` this begins, and `{% endraw %}`.
  absl::Status TakeRaw() {
    Skip(BeginWithoutSpace(Rest()) + std::string_view("raw").size());
    Skip(BeginWithoutSpace(Rest()));
    if (!TakeTagEnd("%}", false)) return Fail("the tag 'raw' has no end");
    for (size_t begin = pos_; (begin = source_.find("{%", begin)) != std::string_view::npos;
         begin += 2) {
      const char sign = begin + 2 < source_.size() ? source_[begin + 2] : '\0';
      const size_t name = begin + (sign == '-' || sign == '+' ? 3 : 2);
      if (!StartsWithWord(source_.substr(name), "endraw")) continue;
      AddData(begin, sign, /*strips_line=*/true);
      Skip(name - begin);
      Skip(BeginWithoutSpace(Rest()) + std::string_view("endraw").size());
      Skip(BeginWithoutSpace(Rest()));
      return TakeTagEnd("%}", true) ? absl::OkStatus() : Fail("the tag 'endraw' has no end");
    }
    return Fail("the tag 'raw' has no 'endraw'");
  }

  absl::Status TakeTag(bool is_output) {
    using enum Token::Type;
    tokens_.push_back({is_output ? kOutputBegin : kBlockBegin, line_, {}});
    std::string open;
    while (true) {
      if (open.empty() && TakeTagEnd(is_output ? "}}" : "%}", !is_output)) {
        tokens_.push_back({is_output ? kOutputEnd : kBlockEnd, line_, {}});
        return absl::OkStatus();
      }
      Skip(BeginWithoutSpace(Rest()));
      if (pos_ == source_.size()) return Fail("a tag has no end");
      if (open.empty() && TagEnds(is_output)) continue;
      const char c = source_[pos_];
      const absl::Status status = c == '\'' || c == '"'    ? TakeString(c)
                                  : absl::ascii_isdigit(c) ? TakeNumber()
                                  : IsNameByte(c)          ? TakeName()
                                                           : TakeSign(open);
      if (!status.ok()) return status;
    }
  }
  // True if a tag's end is here, its sign included.
  bool TagEnds(bool is_output) const {
    std::string_view rest = Rest();
    if (rest[0] == '-' || (rest[0] == '+' && !is_output)) rest.remove_prefix(1);
    return rest.starts_with(is_output ? "}}" : "%}");
  }

  absl::Status TakeString(char quote) {
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return Fail("a string has no end");
    Add(Token::Type::kString, end + 1 - pos_);
    return absl::OkStatus();
  }

  absl::Status TakeName() {
    size_t end = pos_;
    while (end < source_.size() && IsNameByte(source_[end])) ++end;
    Add(Token::Type::kName, end - pos_);
    return absl::OkStatus();
  }

  // Decimal digits with single underscores between them, from `begin`.
  size_t EndOfDigits(size_t begin) const {
    size_t end = begin;
    while (end < source_.size() &&
           (absl::ascii_isdigit(source_[end]) ||
            (source_[end] == '_' && end > begin && end + 1 < source_.size() &&
             absl::ascii_isdigit(source_[end + 1])))) {
      ++end;
    }
    return end;
  }

  absl::Status TakeNumber() {
    const bool after_point = !tokens_.empty() && tokens_.back().type == Token::Type::kSign &&
                             tokens_.back().text == "." && source_[pos_ - 1] == '.';
    size_t end = EndOfDigits(pos_);
    bool is_float = false;
    if (!after_point) {
      if (end + 1 < source_.size() && source_[end] == '.' &&
          absl::ascii_isdigit(source_[end + 1])) {
        end = EndOfDigits(end + 1);
        is_float = true;
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        const bool has_sign =
            end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
        const size_t exponent = end + 1 + (has_sign ? 1 : 0);
        if (exponent < source_.size() && absl::ascii_isdigit(source_[exponent])) {
          end = EndOfDigits(exponent);
          is_float = true;
        }
      }
    }
    if (!is_float && source_[pos_] == '0' && pos_ + 1 < source_.size() &&
        std::string_view("xXoObB").find(source_[pos_ + 1]) != std::string_view::npos) {
      end = pos_ + 2;
      while (end < source_.size() && (absl::ascii_isxdigit(source_[end]) || source_[end] == '_')) {
        ++end;
      }
    }
    Add(is_float ? Token::Type::kFloat : Token::Type::kInteger, end - pos_);
    return absl::OkStatus();
  }

  absl::Status TakeSign(std::string& open) {
    for (const std::string_view sign : kSigns) {
      if (!Rest().starts_with(sign)) continue;
      constexpr std::string_view kOpening = "([{";
      constexpr std::string_view kClosing = ")]}";
      if (kOpening.find(sign) != std::string_view::npos) open.push_back(sign[0]);
      if (const size_t bracket = kClosing.find(sign); bracket != std::string_view::npos) {
        if (open.empty() || open.back() != kOpening[bracket]) {
          return Fail(std::string("unexpected '").append(sign).append("'"));
        }
        open.pop_back();
      }
      Add(Token::Type::kSign, sign.size());
      return absl::OkStatus();
    }
    return Fail(std::string("unexpected character '").append(1, source_[pos_]).append("'"));
  }

  const std::string_view source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace orcd::jinja
