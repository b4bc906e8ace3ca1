#include "runtime/constraint/ebnf_reader.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/constraint/lark_text.h"
#include "runtime/constraint/rule_error.h"

namespace orcd {
namespace {

using Kind = EbnfNode::Kind;

constexpr int kMaxNesting = 100;
constexpr int kMaxRepeat = 1'000'000;
constexpr char32_t kLastCodepoint = 0x10FFFF;

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

void AppendUtf8(char32_t codepoint, std::string& text) {
  if (codepoint < 0x80) {
    text += static_cast<char>(codepoint);
    return;
  }
  const int more = codepoint < 0x800 ? 1 : codepoint < 0x10000 ? 2 : 3;
  constexpr uint8_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  text += static_cast<char>(kLead[more] | codepoint >> 6 * more);
  for (int i = more - 1; i >= 0; --i) {
    text += static_cast<char>(0x80 | (codepoint >> 6 * i & 0x3F));
  }
}

// A character as an expression of Rust's regex crate, whatever it is.
std::string CharacterEscape(char32_t codepoint) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string digits;
  for (; codepoint > 0 || digits.empty(); codepoint >>= 4) digits += kDigits[codepoint & 15];
  std::ranges::reverse(digits);
  return "\\u{" + digits + "}";
}

class Reader {
 public:
  // `field` must outlive this, like the text.
  Reader(std::string_view text, const std::string& field) : text_(text), field_(field) {}

  absl::StatusOr<EbnfGrammar> Read() {
    SkipSpace();
    while (pos_ < text_.size()) {
      ORCD_RETURN_IF_ERROR(ReadRule());
      SkipSpace();
    }
    for (size_t i = 0; i < grammar_.rules.size(); ++i) {
      if (is_defined_[i]) continue;
      pos_ = first_use_[i];
      return Invalid("there is no rule `" + grammar_.rules[i].name + "`");
    }
    const auto root = ids_.find("root");
    if (root == ids_.end()) return InvalidRule(field_, "there is no rule `root`");
    grammar_.root = root->second;
    return std::move(grammar_);
  }

 private:
  std::string AtLine(std::string_view what) const {
    const size_t end = std::min(pos_, text_.size());
    const auto line =
        std::count(text_.begin(), text_.begin() + static_cast<int64_t>(end), '\n') + 1;
    return "line " + std::to_string(line) + ": " + std::string(what);
  }
  absl::Status Invalid(std::string_view what) const { return InvalidRule(field_, AtLine(what)); }
  absl::Status Unsupported(std::string_view what) const {
    return UnsupportedRule(field_, AtLine(what));
  }
  absl::Status TooLarge(std::string_view what) const { return RuleTooLarge(field_, AtLine(what)); }

  bool AtEnd() const { return pos_ >= text_.size(); }
  char Peek() const { return AtEnd() ? '\0' : text_[pos_]; }
  bool Take(char c) {
    if (AtEnd() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }

  void SkipSpace() {
    while (!AtEnd()) {
      const char c = text_[pos_];
      if (c == '#') {
        pos_ = std::min(text_.find('\n', pos_), text_.size());
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        ++pos_;
      } else {
        return;
      }
    }
  }

  std::string_view TakeName() {
    const size_t begin = pos_;
    while (!AtEnd() && IsNameChar(text_[pos_])) ++pos_;
    return text_.substr(begin, pos_ - begin);
  }

  // Takes a name and `::=` if they come next.
  std::optional<std::string_view> TakeRuleHead() {
    const size_t begin = pos_;
    const std::string_view name = TakeName();
    SkipSpace();
    if (!name.empty() && text_.substr(pos_).starts_with("::=")) {
      pos_ += 3;
      return name;
    }
    pos_ = begin;
    return std::nullopt;
  }
  bool AtRuleHead() {
    const size_t begin = pos_;
    const bool is_head = TakeRuleHead().has_value();
    pos_ = begin;
    return is_head;
  }

  absl::StatusOr<int> RuleId(std::string_view name) {
    const auto [there, is_new] = ids_.emplace(name, static_cast<int>(grammar_.rules.size()));
    if (is_new) {
      if (grammar_.rules.size() == kMaxDefinitions) {
        return TooLarge("there may be at most " + std::to_string(kMaxDefinitions) + " rules");
      }
      grammar_.rules.push_back({std::string(name), {}});
      first_use_.push_back(pos_);
      is_defined_.push_back(false);
    }
    return there->second;
  }

  absl::Status ReadRule() {
    const std::optional<std::string_view> name = TakeRuleHead();
    if (!name) return Invalid("expected a rule, such as `root ::= \"a\"`");
    ORCD_ASSIGN_OR_RETURN(const int id, RuleId(*name));
    if (is_defined_[id]) return Invalid("the rule `" + std::string(*name) + "` is there twice");
    ORCD_ASSIGN_OR_RETURN(EbnfNode body, ReadChoice(0));
    if (!AtEnd() && !AtRuleHead()) return Invalid("unexpected " + Shown());
    is_defined_[id] = true;
    grammar_.rules[id].body = std::move(body);
    return absl::OkStatus();
  }

  std::string Shown() const {
    if (AtEnd()) return "end";
    const Utf8Char c = DecodeUtf8(text_, pos_);
    return "`" + std::string(text_.substr(pos_, static_cast<size_t>(c.length))) + "`";
  }

  absl::StatusOr<EbnfNode> ReadChoice(int nesting) {
    if (nesting > kMaxNesting) {
      return TooLarge("groups may nest at most " + std::to_string(kMaxNesting) + " deep");
    }
    EbnfNode choice = {.kind = Kind::kChoice};
    do {
      ORCD_ASSIGN_OR_RETURN(EbnfNode sequence, ReadSequence(nesting));
      choice.parts.push_back(std::move(sequence));
    } while (Take('|'));
    if (choice.parts.size() > 1) return choice;
    EbnfNode only = std::move(choice.parts.front());
    return only;
  }

  // Ends before `|`, `)`, the next rule or the end.
  absl::StatusOr<EbnfNode> ReadSequence(int nesting) {
    EbnfNode sequence = {.kind = Kind::kSequence};
    for (;;) {
      SkipSpace();
      if (AtEnd() || Peek() == '|' || Peek() == ')' || AtRuleHead()) break;
      ORCD_ASSIGN_OR_RETURN(EbnfNode item, ReadItem(nesting));
      sequence.parts.push_back(std::move(item));
    }
    if (sequence.parts.size() != 1) return sequence;
    EbnfNode only = std::move(sequence.parts.front());
    return only;
  }

  absl::StatusOr<EbnfNode> ReadItem(int nesting) {
    ORCD_ASSIGN_OR_RETURN(EbnfNode item, ReadAtom(nesting));
    int repeats = 0;
    for (;;) {
      EbnfNode repeat = {.kind = Kind::kRepeat};
      // White space before an operator is allowed, as in EBNF.
      const size_t begin = pos_;
      SkipSpace();
      if (Take('?')) {
        repeat.max = 1;
      } else if (Take('+')) {
        repeat.min = 1;
      } else if (Take('{')) {
        ORCD_RETURN_IF_ERROR(ReadCounts(repeat));
      } else if (!Take('*')) {
        pos_ = begin;
        return item;
      }
      if (nesting + ++repeats > kMaxNesting) return TooLarge("too many operators on one item");
      repeat.parts.push_back(std::move(item));
      item = std::move(repeat);
    }
  }

  // The rest of `{m}`, `{m,}`, `{,n}` or `{m,n}`.
  absl::Status ReadCounts(EbnfNode& repeat) {
    SkipSpace();
    const bool has_min = Peek() != ',';
    if (has_min) {
      ORCD_ASSIGN_OR_RETURN(repeat.min, ReadCount());
      repeat.max = repeat.min;
      SkipSpace();
    }
    if (Take(',')) {
      repeat.max = EbnfNode::kNoMax;
      SkipSpace();
      if (Peek() != '}') {
        ORCD_ASSIGN_OR_RETURN(repeat.max, ReadCount());
        if (repeat.max < repeat.min) return Invalid("the range of a repetition is empty");
        SkipSpace();
      } else if (!has_min) {
        return Invalid("a repetition has no count");
      }
    }
    if (!Take('}')) return Invalid("expected `}` instead of " + Shown());
    return absl::OkStatus();
  }

  absl::StatusOr<int> ReadCount() {
    const size_t begin = pos_;
    int count = 0;
    while (!AtEnd() && Peek() >= '0' && Peek() <= '9') {
      count = count * 10 + (text_[pos_++] - '0');
      if (count > kMaxRepeat) {
        return TooLarge("an item may be repeated at most " + std::to_string(kMaxRepeat) + " times");
      }
    }
    if (pos_ == begin) return Invalid("expected a count instead of " + Shown());
    return count;
  }

  absl::StatusOr<EbnfNode> ReadAtom(int nesting) {
    if (Take('"')) return ReadLiteral();
    if (Take('[')) return ReadSet();
    if (Take('.')) return EbnfNode{.kind = Kind::kCharacters, .text = "/(?s:.)/"};
    if (Take('(')) {
      if (Peek() == '=' || Peek() == '!') return Unsupported("look-ahead is not supported");
      ORCD_ASSIGN_OR_RETURN(EbnfNode group, ReadChoice(nesting + 1));
      if (!Take(')')) return Invalid("expected `)` instead of " + Shown());
      return group;
    }
    if (Peek() == '<' || Peek() == '!') return Unsupported("tokens are not supported, only text");
    if (!IsNameChar(Peek())) return Invalid("unexpected " + Shown());
    const size_t begin = pos_;
    const std::string_view name = TakeName();
    const size_t end = std::exchange(pos_, begin);
    ORCD_ASSIGN_OR_RETURN(const int id, RuleId(name));
    pos_ = end;
    return EbnfNode{.kind = Kind::kRule, .rule = id};
  }

  // The next character of a literal or a set. Requires that there is one.
  absl::StatusOr<char32_t> ReadCharacter() {
    if (!Take('\\')) {
      const Utf8Char c = DecodeUtf8(text_, pos_);
      pos_ += static_cast<size_t>(c.length);
      return c.codepoint;
    }
    if (AtEnd()) return Invalid("the text ends after a backslash");
    const char c = text_[pos_];
    switch (c) {
      case 'x':
        return ReadHex(2);
      case 'u':
        return ReadHex(4);
      case 'U':
        return ReadHex(8);
      default:
        break;
    }
    constexpr std::string_view kLetters = "0abefnrtv";
    constexpr std::string_view kMeanings("\0\a\b\x1B\f\n\r\t\v", 9);
    if (const size_t i = kLetters.find(c); i != std::string_view::npos) {
      ++pos_;
      return static_cast<char32_t>(kMeanings[i]);
    }
    // Punctuation stands for itself.
    if (static_cast<unsigned char>(c) >= 0x80 || c <= ' ' || IsNameChar(c)) {
      if (c != '-' && c != '_' && c != '.') return Invalid("unknown escape \\" + Shown());
    }
    ++pos_;
    return static_cast<char32_t>(c);
  }

  absl::StatusOr<char32_t> ReadHex(int digits) {
    ++pos_;
    char32_t codepoint = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = Peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) {
        return Invalid("an escape needs " + std::to_string(digits) + " hexadecimal digits");
      }
      codepoint = codepoint << 4 | static_cast<char32_t>(digit);
      ++pos_;
    }
    if (codepoint > kLastCodepoint || (codepoint >= 0xD800 && codepoint < 0xE000)) {
      return Invalid("an escape names no character");
    }
    return codepoint;
  }

  absl::StatusOr<EbnfNode> ReadLiteral() {
    std::string literal;
    while (!Take('"')) {
      if (AtEnd()) return Invalid("a literal has no end");
      ORCD_ASSIGN_OR_RETURN(const char32_t c, ReadCharacter());
      AppendUtf8(c, literal);
    }
    return EbnfNode{.kind = Kind::kCharacters, .text = LarkString(literal)};
  }

  absl::StatusOr<EbnfNode> ReadSet() {
    const bool is_negated = Take('^');
    std::string set;
    while (!Take(']')) {
      if (AtEnd()) return Invalid("a set of characters has no end");
      ORCD_ASSIGN_OR_RETURN(const char32_t first, ReadCharacter());
      set += CharacterEscape(first);
      // A hyphen before the end stands for itself.
      if (Peek() != '-' || text_.substr(pos_ + 1).starts_with(']')) continue;
      ++pos_;
      if (AtEnd()) return Invalid("a set of characters has no end");
      ORCD_ASSIGN_OR_RETURN(const char32_t last, ReadCharacter());
      if (last < first) return Invalid("a range of characters is empty");
      set.append("-").append(CharacterEscape(last));
    }
    if (set.empty() && !is_negated) return Invalid("a set has no characters");
    if (set.empty()) return EbnfNode{.kind = Kind::kCharacters, .text = "/(?s:.)/"};
    return EbnfNode{.kind = Kind::kCharacters, .text = (is_negated ? "/[^" : "/[") + set + "]/"};
  }

  const std::string_view text_;
  const std::string& field_;
  size_t pos_ = 0;
  EbnfGrammar grammar_;
  absl::flat_hash_map<std::string, int> ids_;
  // For each rule: the place where its name was first seen, and if there is a definition.
  std::vector<size_t> first_use_;
  std::vector<bool> is_defined_;
};

}  // namespace

absl::StatusOr<EbnfGrammar> ReadEbnf(std::string_view grammar, const std::string& field) {
  return Reader(grammar, field).Read();
}

}  // namespace orcd
