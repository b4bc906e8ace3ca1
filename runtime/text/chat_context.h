// Gives a chat template its variables, as Hugging Face's transformers does:
// https://huggingface.co/docs/transformers/chat_templating
#ifndef ORCD_RUNTIME_TEXT_CHAT_CONTEXT_H_
#define ORCD_RUNTIME_TEXT_CHAT_CONTEXT_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "runtime/text/chat_request.h"
#include "runtime/text/jinja/context.h"

namespace orcd {

// The texts of the special tokens that the model's file names. An empty one is not defined in
// templates.
struct SpecialTokenTexts {
  std::string bos = {};
  std::string eos = {};
  std::string unk = {};
  std::string pad = {};
};

// The form in which a template gets the contents of messages.
enum class ContentForm : uint8_t {
  // Strings and lists of parts, as the client sent them.
  kAsSent,
  // Strings; the texts of parts are joined by newlines, as vLLM does.
  kText,
  // Lists of parts.
  kParts,
};

// Indexed by ChatRole.
using ContentForms = std::array<ContentForm, kChatRoles>;

inline constexpr ContentForms AllContents(ContentForm form) {
  ContentForms forms = {};
  forms.fill(form);
  return forms;
}

// With continue_final_message this follows the last message's content, so that the prompt can be
// cut there. transformers writes the same text, which some templates know.
inline constexpr std::string_view kContinuationTag = "CONTINUE_FINAL_MESSAGE_TAG ";

// Sets the variables of `context`, which views both `request` and `special`. Only names of roles,
// the constant texts of this file and the special tokens are the template's; all other strings are
// the user's. kInvalidArgument (INVALID_FIELD) naming the field, such as
// `chat.messages[2].tool_calls[0].arguments_json`, for JSON that is none or no object, a template
// argument with the name of another field, or a tool choice that names no tool; kResourceExhausted
// without a reason if the context's memory is too small.
absl::Status SetChatVariables(const ChatRequest& request, const SpecialTokenTexts& special,
                              const ContentForms& forms, jinja::Context& context);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_CHAT_CONTEXT_H_
