// Renders libFuzzer's inputs as templates: a template, and after a NUL its variables as JSON, if it
// is not to have those below. Nothing may crash or hang, pieces must be well formed, the same input
// gives the same text, and what is the user's is in no piece of the template.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "runtime/text/jinja/render_for_test.h"
#include "runtime/text/jinja/template.h"

namespace {

// A character of private use, which stands in every string of the user's.
constexpr std::string_view kMark = "\uE123";
constexpr std::string_view kVariables = R"({
  "s": "He\ue123llo <b>", "e": "", "i": 7, "x": 2.5, "n": null, "t": true, "l": [3, 1, 2],
  "words": ["b\ue123a", "\ue123A", "c \ue123"], "d": {"k": "v\ue123", "a": [1, {"b": "\ue123"}]},
  "messages": [{"role": "system", "content": " Be brief.\ue123 "},
               {"role": "user", "content": "H\ue123i"},
               {"role": "assistant", "content": "<think>a\ue123</think>\n\nb\ue123",
                "tool_calls": [{"function": {"name": "f\ue123", "arguments": {"c": "P\ue123"}}}]},
               {"role": "user", "content": [{"type": "text", "text": "A\ue123"}]}],
  "tools": [{"type": "function", "function": {"name": "f\ue123", "parameters": {}}}],
  "add_generation_prompt": true})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(data, data + size);
  const size_t end = input.find('\0');
  const std::string source = input.substr(0, end);
  const std::string_view variables =
      end == input.npos ? kVariables : std::string_view(input).substr(end + 1);

  const auto chat_template = orcd::jinja::Template::Parse(source);
  if (!chat_template.ok()) return 0;
  const auto pieces = orcd::jinja::RenderJson(*chat_template, variables);
  const auto again = orcd::jinja::RenderJson(*chat_template, variables);
  if (pieces.status() != again.status()) std::abort();
  if (!pieces.ok()) return 0;
  if (!orcd::jinja::AreWellFormed(*pieces)) std::abort();
  if (orcd::jinja::Bracketed(*pieces) != orcd::jinja::Bracketed(*again)) std::abort();

  // A template may write the mark itself.
  if (end != input.npos || source.find(kMark) != source.npos || source.find('\\') != source.npos) {
    return 0;
  }
  for (const orcd::PromptPiece& piece : *pieces) {
    if (piece.is_template && piece.text.find(kMark) != piece.text.npos) std::abort();
  }
  return 0;
}
