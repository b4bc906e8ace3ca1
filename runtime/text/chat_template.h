// Renders a conversation into a prompt, as the model's own template (`tokenizer.chat_template`)
// would.
//
// Templates are programs in Jinja; this project does not run programs from files. It knows the
// templates of the Qwen2 family by what they contain, and renders them itself; any other template
// makes chat unsupported, and raw prompts work.
#ifndef ORCD_RUNTIME_TEXT_CHAT_TEMPLATE_H_
#define ORCD_RUNTIME_TEXT_CHAT_TEMPLATE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  std::vector<ChatToolCall> tool_calls;
};

struct ChatRequest {
  std::vector<ChatMessage> messages;
  // JSON objects, one a tool.
  std::vector<std::string> tools_json;
  bool add_generation_prompt = true;
};

// A piece of a rendered prompt. Only the template's own text may become control tokens; what a user
// wrote may not.
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

  bool supported() const { return kind_ != Kind::kUnsupported; }

  // kFailedPrecondition (reason CHAT_TEMPLATE_UNKNOWN) where unsupported; kInvalidArgument naming
  // the field for a conversation the template cannot render (no messages, a system message that is
  // not first, tools that are no JSON).
  absl::StatusOr<std::vector<PromptPiece>> Render(const ChatRequest& request) const;

 private:
  enum class Kind { kUnsupported, kChatMl, kQwen25 };
  Kind kind_ = Kind::kUnsupported;
  // The system text that stands in where a conversation has none; empty: none.
  std::string default_system_;
};

// Encodes the pieces, control tokens only from the template's own. Adjacent pieces of user text do
// not merge across the template's.
std::vector<int32_t> EncodePrompt(const Tokenizer& tokenizer,
                                  const std::vector<PromptPiece>& pieces);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_CHAT_TEMPLATE_H_
