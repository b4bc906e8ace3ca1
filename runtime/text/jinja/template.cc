#include "runtime/text/jinja/template.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/interpreter.h"
#include "runtime/text/jinja/parser.h"

namespace orcd::jinja {
namespace {

// With `\n` for every line break, and without the one at the end.
std::string Normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text.push_back(source[i]);
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text.push_back('\n');
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return ReplaceInvalidUtf8(text);
}

// A template that takes letters from everywhere makes no more pieces than this.
constexpr size_t kMaxPieces = size_t{1} << 18;

class Pieces {
 public:
  void Add(const Text& text) {
    if (text.origins == nullptr) return Add(text.bytes, text.origin);
    for (size_t begin = 0, end; begin < text.bytes.size(); begin = end) {
      end = begin + 1;
      while (end < text.bytes.size() && text.origins[end] == text.origins[begin]) ++end;
      Add(text.bytes.substr(begin, end - begin), text.origins[begin]);
    }
  }
  absl::StatusOr<std::vector<PromptPiece>> Take() {
    if (pieces_.size() <= kMaxPieces) return std::move(pieces_);
    return absl::ResourceExhaustedError(
        absl::StrCat("the prompt has more than ", kMaxPieces, " pieces"));
  }

 private:
  void Add(std::string_view bytes, Origin origin) {
    if (bytes.empty() || pieces_.size() > kMaxPieces) return;
    const bool is_template = origin == Origin::kTemplate;
    if (pieces_.empty() || pieces_.back().is_template != is_template) {
      pieces_.push_back({"", is_template});
    }
    pieces_.back().text += bytes;
  }

  std::vector<PromptPiece> pieces_;
};

}  // namespace

absl::StatusOr<Template> Template::Parse(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the template has ", source.size(), " bytes; at most ", kMaxTemplateBytes, " are read"));
  }
  ORCD_ASSIGN_OR_RETURN(std::shared_ptr<const Program> program, ParseProgram(Normalized(source)));
  return Template(std::move(program));
}

absl::StatusOr<std::vector<PromptPiece>> Template::Render(Context& context) const {
  ORCD_ASSIGN_OR_RETURN(const auto texts, Interpreter(*program_, context).Run());
  Pieces pieces;
  for (const Text& text : texts) pieces.Add(text);
  return pieces.Take();
}

}  // namespace orcd::jinja
