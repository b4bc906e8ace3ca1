// Renders a conversation into a prompt, as the model's own template (`tokenizer.chat_template`)
// would.
//
// Templates are programs in Jinja; this project does not run programs from files. It knows the
// templates of the Qwen2 family by their text (known_templates.h), and renders them itself; any
// other template makes chat unsupported, and raw prompts work.
#ifndef ORCD_RUNTIME_TEXT_CHAT_TEMPLATE_H_
#define ORCD_RUNTIME_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/text/known_templates.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

enum class ChatRole { kSystem, kUser, kAssistant, kTool };

struct ChatToolCall {
  std::string name;
  // A JSON object.
  std::string arguments_json;
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;
  // Only of an assistant.
  std::vector<ChatToolCall> tool_calls;
};

struct ChatRequest {
  std::vector<ChatMessage> messages;
  // JSON objects, one a tool.
  std::vector<std::string> tools_json;
  bool add_generation_prompt = true;
};

// A piece of a rendered prompt. Only the template's own text (role names and the default system's
// text included) may become control tokens; what a user wrote may not.
struct PromptPiece {
  std::string text;
  bool is_template = false;
};

// A value. Any thread may render.
class ChatTemplate {
 public:
  // Chat is unsupported.
  ChatTemplate() = default;

  // Recognises `source`; an empty or unknown one gives an unsupported template.
  static ChatTemplate Recognize(std::string_view source);

  bool supported() const { return known_.has_value(); }

  // The prompt; no two neighbouring pieces are both the template's. kFailedPrecondition (reason
  // CHAT_TEMPLATE_UNKNOWN) where unsupported. kInvalidArgument naming the field, as
  // `chat.messages[2].role`, for a conversation that the template cannot render or would render
  // without a part of it: no messages, a system message that is not first, tool calls of another
  // than an assistant, tools and arguments that are no JSON objects, tools for a template without.
  absl::StatusOr<std::vector<PromptPiece>> Render(const ChatRequest& request) const;

 private:
  std::optional<KnownTemplate> known_;
};

// The ids of the pieces' concatenation, control tokens recognised only in the template's own text.
// Where nothing a user wrote spells a special token, these are the ids that Encode with
// `parse_special` gives for the whole text: words may stretch from the template's text into a
// user's.
std::vector<int32_t> EncodePrompt(const Tokenizer& tokenizer,
                                  const std::vector<PromptPiece>& pieces);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_CHAT_TEMPLATE_H_
