#include "worker/base/json_members.h"

#include <cstddef>
#include <nlohmann/json.hpp>

namespace orcd {
namespace {

// Walks over valid JSON, of which it needs to tell strings and nesting apart alone.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  // True if the next character but white space is `c`, which is then taken.
  bool Take(char c) {
    SkipSpace();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  // Takes a value and returns its text.
  std::string_view Value() {
    SkipSpace();
    const size_t begin = at_;
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (depth == 0 && at_ > begin && (c == ',' || c == '}' || c == ':' || IsSpace(c))) break;
      if (c == '"') {
        SkipString();
      } else {
        if (c == '{' || c == '[') ++depth;
        if (c == '}' || c == ']') --depth;
        ++at_;
      }
    }
    return text_.substr(begin, at_ - begin);
  }

 private:
  static bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

  void SkipSpace() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
  }

  void SkipString() {
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\\') {
        ++at_;
      } else if (text_[at_] == '"') {
        ++at_;
        return;
      }
    }
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

JsonMembers::JsonMembers(std::string_view object) {
  Scanner scanner(object);
  if (!scanner.Take('{') || scanner.Take('}')) return;
  do {
    const nlohmann::json name =
        nlohmann::json::parse(scanner.Value(), nullptr, /*allow_exceptions=*/false);
    if (!name.is_string() || !scanner.Take(':')) break;
    texts_.insert_or_assign(name.get<std::string>(), scanner.Value());
  } while (scanner.Take(','));
}

}  // namespace orcd
