// Renders a conversation into a prompt, as the model's own template (`tokenizer.chat_template`)
// would.
//
// Templates are Jinja programs, and this project does not run programs from files. It recognises
// the templates of the Qwen2 family by their text and renders them itself. With any other template
// chat is unsupported, and raw prompts work.
#ifndef ORCD_RUNTIME_TEXT_CHAT_TEMPLATE_H_
#define ORCD_RUNTIME_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// The template's Jinja source in a model file.
inline constexpr std::string_view kChatTemplateKey = "tokenizer.chat_template";

enum class ChatRole { kSystem, kUser, kAssistant, kTool };

struct ChatToolCall {
  std::string name;
  // A JSON object.
  std::string arguments_json;
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;
  // Only in messages of an assistant.
  std::vector<ChatToolCall> tool_calls;
};

struct ChatRequest {
  std::vector<ChatMessage> messages;
  // JSON objects, one for each tool.
  std::vector<std::string> tools_json;
  bool add_generation_prompt = true;
};

// A piece of a rendered prompt. Control tokens are recognised only in the template's own text (role
// names and the default system text included), never in text that a user wrote.
struct PromptPiece {
  std::string text;
  bool is_template = false;
};

// A value type. Any thread may render.
class ChatTemplate {
 public:
  // No two neighbouring pieces both belong to the template.
  using Renderer = std::function<absl::StatusOr<std::vector<PromptPiece>>(const ChatRequest&)>;

  // An unsupported template.
  ChatTemplate() = default;
  // `render` may be called by any thread. `control_tokens` has static storage.
  ChatTemplate(Renderer render, std::span<const std::string_view> control_tokens)
      : render_(std::move(render)), control_tokens_(control_tokens) {}

  // Recognises `source`; an empty or unknown source gives an unsupported template.
  static ChatTemplate Recognize(std::string_view source);

  bool supported() const { return render_ != nullptr; }
  // The control tokens that prompts need, so that the vocabulary must have them.
  std::span<const std::string_view> control_tokens() const { return control_tokens_; }

  // Renders the prompt. kFailedPrecondition (reason CHAT_TEMPLATE_UNKNOWN) if the template is
  // unsupported. kInvalidArgument naming the field, such as `chat.messages[2].role`, for a
  // conversation that the template cannot render or would render incompletely: no messages, a
  // system message that is not first, tool calls in a message that is not an assistant's, tools or
  // arguments that are not JSON objects, tools for a template without tools.
  absl::StatusOr<std::vector<PromptPiece>> Render(const ChatRequest& request) const;

 private:
  Renderer render_;
  std::span<const std::string_view> control_tokens_;
};

// Encodes the concatenation of the pieces, with control tokens recognised only in the template's
// own text, and BOS and EOS only where the template writes them. If nothing a user wrote spells a
// special token, the ids equal those of the whole text with `parse_special`: words may span the
// border between template and user text.
std::vector<int32_t> EncodePrompt(const Tokenizer& tokenizer,
                                  const std::vector<PromptPiece>& pieces);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_CHAT_TEMPLATE_H_
