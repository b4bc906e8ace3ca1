#include "worker/config/config_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace orcd {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
// Settings are a few kilobytes; a larger file was meant for another flag.
constexpr int64_t kMaxFileBytes = 1 << 20;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
}

// Encodes a code point that is not a surrogate as UTF-8.
std::string ToUtf8(uint32_t c) {
  const auto tail = [c](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | (c >> 18)), tail(12), tail(6), tail(0)};
}

// Parses one file from its start to its end.
class Parser {
 public:
  explicit Parser(std::string_view content) : text_(content) {}

  absl::StatusOr<std::vector<FileSetting>> Parse() {
    while (!AtEnd()) {
      ORCD_RETURN_IF_ERROR(ParseLine());
      SkipBlanks();
      SkipComment();
      if (!AtEnd() && Peek() != '\n')
        return Wrong(absl::StrCat("nothing may follow here: ", Rest()));
      Skip();
    }
    return std::move(settings_);
  }

 private:
  bool AtEnd() const { return pos_ >= text_.size(); }
  char Peek() const { return AtEnd() ? '\0' : text_[pos_]; }
  void Skip() {
    if (!AtEnd() && text_[pos_++] == '\n') ++line_;
  }
  bool Consume(char c) {
    if (Peek() != c || AtEnd()) return false;
    Skip();
    return true;
  }
  void SkipBlanks() {
    while (!AtEnd() && IsBlank(Peek())) Skip();
  }
  void SkipComment() {
    if (Peek() != '#') return;
    while (!AtEnd() && Peek() != '\n') Skip();
  }
  // Skips to the next value of an array.
  void SkipBlanksAndLines() {
    while (!AtEnd() && (IsBlank(Peek()) || Peek() == '\n' || Peek() == '#')) {
      SkipComment();
      Skip();
    }
  }
  // The rest of the line, for messages.
  std::string Rest() const {
    const std::string_view rest = text_.substr(pos_);
    return absl::StrCat("'", View(rest.substr(0, rest.find_first_of("\r\n"))), "'");
  }
  absl::Status Wrong(absl::string_view why) const { return WrongAt(line_, why); }
  static absl::Status WrongAt(int line, absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", why));
  }

  absl::Status ParseLine() {
    SkipBlanks();
    if (AtEnd() || Peek() == '\n' || Peek() == '#') return absl::OkStatus();
    if (Peek() == ';') {
      while (!AtEnd() && Peek() != '\n') Skip();
      return absl::OkStatus();
    }
    if (Peek() == '[') return ParseSection();
    FileSetting setting;
    setting.line = line_;
    ORCD_ASSIGN_OR_RETURN(setting.name, ParseName());
    SkipBlanks();
    if (Consume('=')) {
      SkipBlanks();
      if (Consume('[')) {
        ORCD_RETURN_IF_ERROR(ParseArray(setting.values));
        SkipBlanks();
        if (!AtEnd() && Peek() != '\n' && Peek() != '#') {
          return Wrong(absl::StrCat("nothing may follow an array: ", Rest(),
                                    "; a value that begins with '[' needs quotes"));
        }
      } else {
        ORCD_RETURN_IF_ERROR(ParseList(setting.values));
      }
    } else if (AtEnd() || Peek() == '\n' || Peek() == '#') {
      setting.values = {"true"};
    } else {
      return Wrong(absl::StrCat("'=' is missing after '", setting.name, "'"));
    }
    settings_.push_back(std::move(setting));
    return absl::OkStatus();
  }

  absl::Status ParseSection() {
    const std::string rest = Rest();
    Skip();
    SkipBlanks();
    ORCD_ASSIGN_OR_RETURN(const std::string name, ParseName());
    SkipBlanks();
    if (absl::AsciiStrToLower(name) != "default" || !Consume(']')) {
      return Wrong(absl::StrCat("there are no sections: leave ", rest, " out"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ParseName() {
    if (Peek() == '"' || Peek() == '\'') return ParseQuoted();
    std::string name;
    while (!AtEnd() && IsNameCharacter(Peek())) {
      name += Peek();
      Skip();
    }
    if (name.empty()) return Wrong(absl::StrCat("no setting begins with ", Rest()));
    return name;
  }

  // Parses a quoted value; returns it without its quotes.
  absl::StatusOr<std::string> ParseQuoted() {
    const char quote = Peek();
    Skip();
    std::string value;
    while (true) {
      if (AtEnd() || Peek() == '\n') {
        return Wrong(absl::StrCat("a quote (", std::string(1, quote), ") is not closed"));
      }
      const char c = Peek();
      Skip();
      if (c == quote) return value;
      if (c != '\\' || quote == '\'') {
        value += c;
        continue;
      }
      ORCD_ASSIGN_OR_RETURN(const std::string escaped, ParseEscape());
      value += escaped;
    }
  }

  // Parses the rest of an escape, after its backslash.
  absl::StatusOr<std::string> ParseEscape() {
    static constexpr std::pair<char, char> kEscapes[] = {
        {'"', '"'}, {'\\', '\\'}, {'b', '\b'}, {'t', '\t'}, {'n', '\n'}, {'f', '\f'}, {'r', '\r'}};
    const char c = Peek();
    for (const auto& [name, meaning] : kEscapes) {
      if (!Consume(name)) continue;
      return std::string(1, meaning);
    }
    if (c == 'u' || c == 'U') {
      Skip();
      const size_t digits = c == 'u' ? 4 : 8;
      uint32_t code = 0;
      size_t count = 0;
      for (; count < digits && absl::ascii_isxdigit(static_cast<unsigned char>(Peek())); ++count) {
        const char digit = absl::ascii_tolower(static_cast<unsigned char>(Peek()));
        code = code * 16 + static_cast<uint32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
        Skip();
      }
      if (count == digits && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF)) {
        return ToUtf8(code);
      }
      return Wrong(absl::StrCat("\\", std::string(1, c), " is not followed by ", digits,
                                " hex digits of a character"));
    }
    return Wrong(
        absl::StrCat("\\", std::string(1, c),
                     " is no escape of TOML's; write \\\\ for a backslash, or quote with '"));
  }

  // A value without quotes, until a comment, the end of the line, or one of `ends`.
  std::string ParseBare(std::string_view ends) {
    std::string value;
    while (!AtEnd() && Peek() != '\n' && Peek() != '#' &&
           ends.find(Peek()) == std::string_view::npos) {
      value += Peek();
      Skip();
    }
    return std::string(absl::StripAsciiWhitespace(value));
  }

  absl::StatusOr<std::string> ParseValue(std::string_view ends) {
    if (Peek() == '"' || Peek() == '\'') return ParseQuoted();
    return ParseBare(ends);
  }

  // Parses the values of a setting in INI syntax, separated by commas or blanks. There is mostly
  // one, and there may be none.
  absl::Status ParseList(std::vector<std::string>& values) {
    while (!AtEnd() && Peek() != '\n' && Peek() != '#') {
      if (Peek() == ',') return Wrong("a value of the list is missing");
      ORCD_ASSIGN_OR_RETURN(std::string value, ParseValue(", \t\r"));
      values.push_back(std::move(value));
      const size_t before = pos_;
      SkipBlanks();
      Consume(',');
      SkipBlanks();
      if (pos_ == before && !AtEnd() && Peek() != '\n' && Peek() != '#') {
        return Wrong(absl::StrCat("nothing may follow a closed quote: ", Rest()));
      }
    }
    return absl::OkStatus();
  }

  // Parses the rest of an array, after its '['.
  absl::Status ParseArray(std::vector<std::string>& values) {
    const int begin = line_;
    while (true) {
      SkipBlanksAndLines();
      if (Consume(']')) return absl::OkStatus();
      if (AtEnd()) return WrongAt(begin, "an array ([) is not closed");
      ORCD_ASSIGN_OR_RETURN(std::string value, ParseValue(",]"));
      if (value.empty() && Peek() == ',') return Wrong("a value of the array is missing");
      values.push_back(std::move(value));
      SkipBlanksAndLines();
      if (Consume(',')) continue;
      if (AtEnd()) return WrongAt(begin, "an array ([) is not closed");
      if (Peek() != ']') return Wrong(absl::StrCat("a comma or ] is missing before ", Rest()));
    }
  }

  const std::string_view text_;
  size_t pos_ = 0;
  int line_ = 1;
  std::vector<FileSetting> settings_;
};

int LineOf(std::string_view text, size_t pos) {
  return 1 +
         static_cast<int>(std::count(text.begin(), text.begin() + static_cast<long>(pos), '\n'));
}

}  // namespace

absl::StatusOr<std::vector<FileSetting>> ParseConfigFile(std::string_view content) {
  if (content.starts_with("\xFF\xFE") || content.starts_with("\xFE\xFF")) {
    return absl::InvalidArgumentError("line 1: the file is UTF-16; save it as UTF-8");
  }
  if (content.starts_with(kByteOrderMark)) content.remove_prefix(kByteOrderMark.size());
  if (const size_t bad = FindInvalidUtf8(content); bad < content.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("line ", LineOf(content, bad), ": the file is not UTF-8"));
  }
  for (size_t i = 0; i < content.size(); ++i) {
    const auto c = static_cast<unsigned char>(content[i]);
    if ((c < ' ' && c != '\n' && c != '\t' && c != '\r') || c == 0x7f) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", LineOf(content, i), ": there is a control character"));
    }
  }
  return Parser(content).Parse();
}

absl::StatusOr<std::vector<FileSetting>> ReadConfigFile(const std::string& path) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(path, why));
  };
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return wrong(absl::StrCat(" cannot be read: ", std::strerror(errno)));
  }
  if (S_ISDIR(info.st_mode)) return wrong(" is a directory, not a file of settings");
  std::ifstream file(path, std::ios::binary);
  std::string content;
  char buffer[4096];
  while (file.read(buffer, sizeof(buffer)) || file.gcount() > 0) {
    content.append(buffer, static_cast<size_t>(file.gcount()));
    if (static_cast<int64_t>(content.size()) > kMaxFileBytes) {
      return wrong(
          absl::StrCat(" has more than the ", kMaxFileBytes, " bytes that settings may have"));
    }
  }
  if (!file.eof()) return wrong(absl::StrCat(" cannot be read: ", std::strerror(errno)));
  absl::StatusOr<std::vector<FileSetting>> settings = ParseConfigFile(content);
  if (settings.ok()) return settings;
  return wrong(absl::StrCat(", ", settings.status().message()));
}

}  // namespace orcd
