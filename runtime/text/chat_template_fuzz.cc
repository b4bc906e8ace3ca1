// Renders conversations made of libFuzzer's inputs, as a client would send them: contents, names,
// and JSON that may be invalid.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "runtime/text/chat_template.h"
#include "runtime/text/chat_template_goldens_for_test.h"
#include "runtime/text/json_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(data, data + size);
  if (const auto once = orcd::NormalizeJsonObject(text); once.ok()) {
    // Normalising normalised JSON changes nothing.
    const auto twice = orcd::NormalizeJsonObject(*once);
    if (!twice.ok() || *twice != *once) std::abort();
  }
  orcd::ChatRequest request;
  request.messages = {{orcd::ChatRole::kUser, text, {}},
                      {orcd::ChatRole::kAssistant, text, {{text, text}}},
                      {orcd::ChatRole::kTool, text, {}}};
  request.tools_json = {text};
  static const orcd::ChatTemplate chat_template =
      orcd::ChatTemplate::Recognize(orcd::kQwen25Source);
  if (!chat_template.supported()) std::abort();
  const auto pieces = chat_template.Render(request);
  if (pieces.ok() == !orcd::NormalizeJsonObject(text).ok()) std::abort();
  orcd::ChatTemplate::Recognize(text);
  return 0;
}
