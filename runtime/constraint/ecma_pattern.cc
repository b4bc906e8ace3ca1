#include "runtime/constraint/ecma_pattern.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "absl/container/flat_hash_set.h"

namespace orcd {
namespace {

std::string Join(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += part;
  return text;
}
bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// A class of characters that has a letter: what all readings of it have, and what any has.
struct CharacterClass {
  char letter;
  std::string_view all;
  std::string_view any;
};
constexpr CharacterClass kClasses[] = {
    {'d', "0-9", R"(\p{Nd})"},
    {'w', "0-9A-Za-z_", R"(\p{L}\p{M}\p{N}\p{Pc})"},
    {'s', R"(\t\n\x0B\f\r \u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000})",
     R"(\t\n\x0B\f\r\x1C-\x20\u{85}\u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF})"},
};

// The class of `letter`, such as \d, or its complement, such as \D; empty if it is none.
std::string ClassOf(char letter, bool has_all_readings) {
  for (const CharacterClass& known : kClasses) {
    const bool is_complement = letter == known.letter - 'a' + 'A';
    if (letter != known.letter && !is_complement) continue;
    const std::string_view set = is_complement != has_all_readings ? known.all : known.any;
    return Join({is_complement ? "[^" : "[", set, "]"});
  }
  return {};
}

// Python and Rust leave out the line feed alone.
constexpr std::string_view kSmallestDot = R"([^\n\r\u{2028}\u{2029}])";
constexpr std::string_view kLargestDot = R"([^\n])";
// No class of ours has U+0000, which no text may have: no escape spells it (json_schema.cc). The
// library (derivre 0.3.13, json_quote) takes a set of bytes that has all control characters for
// one that has `"` and `\` too, and lets [^"] match an escaped `"`.
constexpr std::string_view kWithoutNul = R"(--[\x{0}]])";
constexpr std::string_view kSyntax = R"(\.+*?()|[]{}^$)";
constexpr std::string_view kSyntaxOfClasses = R"(\[]^-&~)";
// Rust counts with 32 bits.
constexpr uint64_t kMostRepetitions = 1'000'000;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::optional<uint32_t> HexNumber(std::string_view digits) {
  if (digits.empty() || digits.size() > 6) return std::nullopt;
  uint32_t number = 0;
  for (const char c : digits) {
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return std::nullopt;
    const int value = IsDigit(c) ? c - '0' : (c | 0x20) - 'a' + 10;
    number = number * 16 + static_cast<uint32_t>(value);
  }
  return number;
}

class EcmaReader {
 public:
  EcmaReader(std::string_view pattern, EcmaReading reading)
      : rest_(pattern), is_smallest_(reading == EcmaReading::kSmallest) {}

  EcmaPattern Read() {
    while (!rest_.empty() && ReadTerm()) {
    }
    if (result_.fault.empty() && depth_ > 0) Invalid("a group is not closed");
    return std::move(result_);
  }

 private:
  // A character or a class of them, as Rust's syntax spells it.
  struct Atom {
    std::string text;
    bool is_class = false;
    // True if U+0000 may be in it, and `"` or `\` not.
    bool has_nul = false;
  };

  // Both return false, with which reading ends.
  bool Invalid(std::string_view message) {
    result_.fault = message;
    result_.is_invalid = true;
    return false;
  }
  bool Unsupported(std::string_view message) {
    result_.fault = message;
    return false;
  }

  bool Take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  char TakeByte() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }
  // The next character with all its bytes.
  std::string_view TakeCharacter() {
    size_t size = 1;
    while (size < rest_.size() && (static_cast<unsigned char>(rest_[size]) & 0xC0) == 0x80) ++size;
    const std::string_view character = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return character;
  }

  // Appends what can be repeated.
  bool Append(std::string_view atom) {
    result_.text += atom;
    can_repeat_ = true;
    return true;
  }
  bool AppendLiteral(std::string_view character) {
    if (character.size() == 1 && Contains(kSyntax, character)) result_.text += '\\';
    return Append(character);
  }

  bool ReadTerm() {
    switch (rest_.front()) {
      case '(':
        return ReadGroup();
      case ')':
        rest_.remove_prefix(1);
        if (depth_ == 0) return Invalid("`)` closes no group");
        --depth_;
        return Append(")");
      case '|':
      case '^':
      case '$':
        result_.text += TakeByte();
        can_repeat_ = false;
        return true;
      case '*':
      case '+':
      case '?':
        return Repeat(std::string(1, TakeByte()));
      case '{':
        return ReadBrace();
      case '.':
        rest_.remove_prefix(1);
        return Append(is_smallest_ ? kSmallestDot : kLargestDot);
      case '[':
        return ReadClass();
      case '\\': {
        Atom atom;
        return ReadEscape(/*in_class=*/false, /*is_negated=*/false, atom) &&
               Append(atom.has_nul ? Join({"[", atom.text, kWithoutNul}) : atom.text);
      }
      case '\0':
        rest_.remove_prefix(1);
        return Append(Join({R"([\x{0})", kWithoutNul}));
      default:
        return AppendLiteral(TakeCharacter());
    }
  }

  bool ReadGroup() {
    for (const std::string_view look : {"(?=", "(?!", "(?<=", "(?<!"}) {
      if (rest_.starts_with(look)) {
        return Unsupported(Join({"look-around, as in `", look, "`, is not supported"}));
      }
    }
    rest_.remove_prefix(1);
    // Python's spelling has one reading too.
    if (Take("?<") || Take("?P<")) {
      const size_t end = rest_.find('>');
      if (end == std::string_view::npos) return Invalid("a group's name is not closed");
      const std::string_view name = rest_.substr(0, end);
      if (!IsGroupName(name)) return Invalid("a group's name is no identifier");
      // Since 2025, two alternatives may have one name.
      if (!names_.insert(name).second) return Unsupported("two groups have the same name");
      rest_.remove_prefix(end + 1);
    } else if (!Take("?:") && rest_.starts_with('?')) {
      return Unsupported("flags within a pattern are not supported");
    }
    // Names mean something to the library.
    result_.text += "(?:";
    ++depth_;
    can_repeat_ = false;
    return true;
  }

  // Takes any character beyond ASCII for one of an identifier.
  static bool IsGroupName(std::string_view name) {
    return !name.empty() && !IsDigit(name.front()) && std::ranges::all_of(name, [](char c) {
      return IsLetter(c) || IsDigit(c) || c == '_' || c == '$' || (c & 0x80) != 0;
    });
  }

  // Appends a quantifier. It may be lazy, which changes no match.
  bool Repeat(std::string_view quantifier) {
    if (!can_repeat_) {
      return Invalid(Join({"there is nothing to repeat before `", quantifier, "`"}));
    }
    result_.text += quantifier;
    can_repeat_ = false;
    Take("?");
    return true;
  }

  // Digits of a count; empty if there are none.
  std::string_view TakeDigits() {
    const auto* const end = std::find_if_not(rest_.begin(), rest_.end(), IsDigit);
    const std::string_view digits = rest_.substr(0, static_cast<size_t>(end - rest_.begin()));
    rest_.remove_prefix(digits.size());
    return digits;
  }

  bool ReadBrace() {
    const std::string_view before = rest_;
    rest_.remove_prefix(1);
    const std::string_view least = TakeDigits();
    const bool has_comma = Take(",");
    const std::string_view most = has_comma ? TakeDigits() : std::string_view();
    if (!Take("}") || (least.empty() && most.empty())) {
      // A brace that begins no quantifier is a character.
      rest_ = before;
      rest_.remove_prefix(1);
      return AppendLiteral("{");
    }
    const std::string_view quantifier = before.substr(0, before.size() - rest_.size());
    if (least.empty()) {
      return Unsupported(
          Join({"`", quantifier, "` is read in different ways; write a 0 before the comma"}));
    }
    const std::optional<uint64_t> low = Count(least);
    const std::optional<uint64_t> high = most.empty() ? low : Count(most);
    if (!low || !high) return Unsupported(Join({"`", quantifier, "` repeats too often"}));
    if (*low > *high) {
      return Invalid(Join({"the bounds of `", quantifier, "` are out of order"}));
    }
    return Repeat(quantifier);
  }
  // Empty if it is too large.
  static std::optional<uint64_t> Count(std::string_view digits) {
    uint64_t count = 0;
    for (const char c : digits) {
      count = count * 10 + static_cast<uint64_t>(c - '0');
      if (count > kMostRepetitions) return std::nullopt;
    }
    return count;
  }

  bool ReadClass() {
    rest_.remove_prefix(1);
    const bool is_negated = Take("^");
    if (rest_.starts_with(']')) {
      return Unsupported(
          "`[]` and `[^]` are read in different ways; escape a `]` that comes first");
    }
    std::string set = is_negated ? "[^" : "[";
    bool has_nul = false;
    for (;;) {
      if (rest_.empty()) return Invalid("a class of characters is not closed");
      if (Take("]")) break;
      Atom first;
      if (!ReadClassAtom(is_negated, first)) return false;
      set += first.text;
      has_nul = has_nul || first.has_nul;
      if (rest_.size() < 2 || rest_[0] != '-' || rest_[1] == ']') continue;
      rest_.remove_prefix(1);
      Atom last;
      if (!ReadClassAtom(is_negated, last)) return false;
      has_nul = has_nul || last.has_nul;
      // A hyphen beside a class is a character, and no range.
      set.append(first.is_class || last.is_class ? "\\-" : "-").append(last.text);
    }
    if (is_negated) return Append(set + R"(\x{0}])");
    return Append(has_nul ? Join({set, kWithoutNul}) : set + "]");
  }

  bool ReadClassAtom(bool is_negated, Atom& atom) {
    if (rest_.front() == '\\') return ReadEscape(/*in_class=*/true, is_negated, atom);
    const std::string_view character = TakeCharacter();
    if (character.front() == '\0') return SetCode(0, atom);
    atom.text = InClass(character);
    return true;
  }
  static std::string InClass(std::string_view character) {
    const bool is_syntax = character.size() == 1 && Contains(kSyntaxOfClasses, character);
    return Join({is_syntax ? "\\" : "", character});
  }

  bool ReadEscape(bool in_class, bool is_negated, Atom& atom) {
    rest_.remove_prefix(1);
    if (rest_.empty()) return Invalid("it ends with a backslash");
    const std::string_view character = TakeCharacter();
    const char c = character.front();
    if (character.size() > 1 || (!IsLetter(c) && !IsDigit(c))) {
      const bool is_syntax = character.size() == 1 && Contains(kSyntax, character);
      atom.text = in_class ? InClass(character) : Join({is_syntax ? "\\" : "", character});
      return true;
    }
    atom.text = ClassOf(c, is_smallest_ != is_negated);
    if (!atom.text.empty()) {
      atom.is_class = true;
      return true;
    }
    switch (c) {
      case 't':
      case 'n':
      case 'v':
      case 'f':
      case 'r':
        atom.text = Join({"\\", character});
        return true;
      case 'b':
        if (!in_class) return Unsupported("word boundaries (`\\b`) are not supported");
        return SetCode(8, atom);
      case 'B':
        if (in_class) break;
        return Unsupported("word boundaries (`\\B`) are not supported");
      case 'c':
        if (rest_.empty() || !IsLetter(rest_.front())) break;
        return SetCode(static_cast<uint32_t>(TakeByte() & 0x1F), atom);
      case 'p':
      case 'P':
        return ReadProperty(c, atom);
      case 'x':
        return ReadCode(atom);
      case 'u':
        return ReadUnicode(atom);
      case '0':
        if (!rest_.empty() && IsDigit(rest_.front())) break;
        return SetCode(0, atom);
      case 'k':
        return Unsupported("back references (`\\k`) are not supported");
      default:
        if (IsDigit(c) && !in_class) return Unsupported("back references are not supported");
        break;
    }
    return Invalid(Join({"`\\", character, "` is no escape of ECMA-262"}));
  }

  static bool SetCode(uint32_t code, Atom& atom) {
    std::array<char, 8> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), code, 16);
    const std::string_view hex(digits.data(), static_cast<size_t>(end.ptr - digits.data()));
    atom.text = Join({"\\x{", hex, "}"});
    atom.has_nul = code == 0;
    return true;
  }

  std::optional<uint32_t> TakeHex(size_t digits) {
    const std::optional<uint32_t> code = HexNumber(rest_.substr(0, digits));
    if (!code || rest_.size() < digits) return std::nullopt;
    rest_.remove_prefix(digits);
    return code;
  }

  // Behind `\x`.
  bool ReadCode(Atom& atom) {
    const std::optional<uint32_t> code = TakeHex(2);
    if (!code) return Invalid("an escape has too few digits");
    return SetCode(*code, atom);
  }

  // Behind `\u`.
  bool ReadUnicode(Atom& atom) {
    constexpr uint32_t kLastCode = 0x10FFFF;
    std::optional<uint32_t> code;
    if (Take("{")) {
      const size_t end = std::min(rest_.find('}'), rest_.size());
      code = HexNumber(rest_.substr(0, end));
      if (!code || end == rest_.size()) return Invalid("`\\u{` is not closed behind its digits");
      rest_.remove_prefix(end + 1);
    } else {
      code = TakeHex(4);
      if (!code) return Invalid("an escape has too few digits");
    }
    const auto is_between = [&](uint32_t first, uint32_t last) {
      return *code >= first && *code <= last;
    };
    if (is_between(0xD800, 0xDBFF) && Take("\\u")) {
      const std::optional<uint32_t> low = TakeHex(4);
      if (!low) return Invalid("an escape has too few digits");
      if (*low >= 0xDC00 && *low <= 0xDFFF) {
        return SetCode(0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00), atom);
      }
    }
    if (is_between(0xD800, 0xDFFF)) {
      return Unsupported("half of a surrogate pair is no character of an output");
    }
    if (*code > kLastCode) return Invalid("`\\u{` is beyond the last character");
    return SetCode(*code, atom);
  }

  // Behind `\p` or `\P`.
  bool ReadProperty(char letter, Atom& atom) {
    const size_t end = rest_.find('}');
    const std::string_view name = rest_.starts_with('{') && end != std::string_view::npos
                                      ? rest_.substr(1, end - 1)
                                      : std::string_view();
    const bool is_name = std::ranges::all_of(
        name, [](char c) { return IsLetter(c) || IsDigit(c) || c == '_' || c == '='; });
    if (name.empty() || !is_name) {
      return Invalid(
          Join({"`\\", std::string_view(&letter, 1), "` needs the name of a property in braces"}));
    }
    rest_.remove_prefix(end + 1);
    atom = {.text = Join({"\\", std::string_view(&letter, 1), "{", name, "}"}),
            .is_class = true,
            .has_nul = true};
    return true;
  }

  std::string_view rest_;
  const bool is_smallest_;
  EcmaPattern result_;
  absl::flat_hash_set<std::string_view> names_;
  // Groups that are open.
  int depth_ = 0;
  // True behind what a quantifier may follow.
  bool can_repeat_ = false;
};

}  // namespace

EcmaPattern ReadEcmaPattern(std::string_view pattern, EcmaReading reading) {
  return EcmaReader(pattern, reading).Read();
}

}  // namespace orcd
