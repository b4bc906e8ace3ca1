// Renders conversations made of libFuzzer's inputs, as a client would send them: contents, names,
// and JSON that may be invalid. No byte of them may become the template's.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/utf8.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/chat_template_goldens_for_test.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = orcd::ReplaceInvalidUtf8({reinterpret_cast<const char*>(data), size});
  orcd::ChatRequest request;
  request.messages = {{.role = orcd::ChatRole::kUser, .content_parts = {text, text}, .name = text},
                      {.role = orcd::ChatRole::kAssistant,
                       .content = text,
                       .tool_calls = {{text, text, text}},
                       .reasoning_content = text},
                      {.role = orcd::ChatRole::kTool, .content = text, .tool_call_id = text}};
  request.tools_json = {text};
  request.template_arguments_json = text;
  static const orcd::ChatTemplate chat_template = orcd::ChatTemplate::Parse(orcd::kQwen25Source);
  if (!chat_template.supported()) std::abort();
  // The template's own text is the same whatever a client sends.
  static const auto own_text = [](const std::vector<orcd::PromptPiece>& pieces) {
    std::string own;
    for (const orcd::PromptPiece& piece : pieces) {
      if (piece.is_template) own += piece.text;
    }
    return own;
  };
  static const std::string expected = [] {
    orcd::ChatRequest plain;
    plain.messages = {
        {.role = orcd::ChatRole::kUser, .content = "x"},
        {.role = orcd::ChatRole::kAssistant, .content = "x", .tool_calls = {{"x", "{}"}}},
        {.role = orcd::ChatRole::kTool, .content = "x"}};
    plain.tools_json = {"{}"};
    return own_text(chat_template.Render(plain, absl::UnixEpoch()).value());
  }();
  for (const bool with_json : {true, false}) {
    if (!with_json) {
      request.tools_json = {"{}"};
      request.template_arguments_json.clear();
      request.messages[1].tool_calls = {{text, "{}", text}};
    }
    const auto pieces = chat_template.Render(request, absl::UnixEpoch());
    if (pieces.ok() && !text.empty() && own_text(*pieces) != expected) std::abort();
  }
  orcd::ChatTemplate::Parse(text);
  return 0;
}
