#include "runtime/text/chat_template.h"

#include <utility>

#include "runtime/base/error.h"
#include "runtime/text/json_text.h"

namespace orcd {
namespace {

constexpr std::string_view kToolsBefore =
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
    "provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsAfter =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
    "\"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n";

class Prompt {
 public:
  void Template(std::string_view text) {
    if (pieces_.empty() || !pieces_.back().is_template) pieces_.push_back({"", true});
    pieces_.back().text += text;
  }
  void User(std::string_view text) {
    if (!text.empty()) pieces_.push_back({std::string(text), false});
  }
  std::vector<PromptPiece> Take() { return std::move(pieces_); }

 private:
  std::vector<PromptPiece> pieces_;
};

std::string_view RoleName(ChatRole role) {
  switch (role) {
    case ChatRole::kSystem:
      return "system";
    case ChatRole::kUser:
      return "user";
    case ChatRole::kAssistant:
      return "assistant";
    case ChatRole::kTool:
      return "tool";
  }
  return "";
}

std::string Indexed(std::string_view field, size_t index) {
  return std::string(field).append("[").append(std::to_string(index)).append("]");
}

std::string MessageField(size_t message, std::string_view field) {
  return Indexed("chat.messages", message).append(".").append(field);
}

absl::StatusOr<std::string> NormalizeField(std::string_view field, std::string_view json) {
  absl::StatusOr<std::string> text = NormalizeJsonObject(json);
  if (text.ok()) return text;
  const absl::string_view why = text.status().message();
  return InvalidField(field, std::string_view(why.data(), why.size()));
}

// Checks the rules for conversations that all formats share.
absl::Status CheckMessages(const ChatRequest& request) {
  if (request.messages.empty()) {
    return InvalidField("chat.messages", "there are none; a conversation needs at least one");
  }
  for (size_t i = 0; i < request.messages.size(); ++i) {
    const ChatMessage& message = request.messages[i];
    if (i > 0 && message.role == ChatRole::kSystem) {
      return InvalidField(MessageField(i, "role"), "only the first message can be the system's");
    }
    if (!message.tool_calls.empty() && message.role != ChatRole::kAssistant) {
      return InvalidField(MessageField(i, "tool_calls"),
                          "only an assistant calls tools; this message's role is " +
                              std::string(RoleName(message.role)));
    }
  }
  return absl::OkStatus();
}

void AppendTurn(const ChatMessage& message, Prompt& prompt) {
  prompt.Template("<|im_start|>");
  prompt.Template(RoleName(message.role));
  prompt.Template("\n");
  prompt.User(message.content);
  prompt.Template("<|im_end|>\n");
}

void AppendDefaultSystemTurn(std::string_view system, Prompt& prompt) {
  prompt.Template("<|im_start|>system\n");
  prompt.Template(system);
  prompt.Template("<|im_end|>\n");
}

absl::Status AppendChatMl(const ChatRequest& request, std::string_view default_system,
                          Prompt& prompt) {
  if (!request.tools_json.empty()) {
    return InvalidField("chat.tools_json", "the model's chat template has no place for tools");
  }
  if (!default_system.empty() && request.messages[0].role != ChatRole::kSystem) {
    AppendDefaultSystemTurn(default_system, prompt);
  }
  for (size_t i = 0; i < request.messages.size(); ++i) {
    if (!request.messages[i].tool_calls.empty()) {
      return InvalidField(MessageField(i, "tool_calls"),
                          "the model's chat template has no place for tool calls");
    }
    AppendTurn(request.messages[i], prompt);
  }
  return absl::OkStatus();
}

absl::Status AppendToolsTurn(const ChatRequest& request, std::string_view default_system,
                             Prompt& prompt) {
  prompt.Template("<|im_start|>system\n");
  if (request.messages[0].role == ChatRole::kSystem) {
    prompt.User(request.messages[0].content);
  } else {
    prompt.Template(default_system);
  }
  prompt.Template(kToolsBefore);
  for (size_t i = 0; i < request.tools_json.size(); ++i) {
    ORCD_ASSIGN_OR_RETURN(const std::string tool,
                          NormalizeField(Indexed("chat.tools_json", i), request.tools_json[i]));
    prompt.Template("\n");
    prompt.User(tool);
  }
  prompt.Template(kToolsAfter);
  return absl::OkStatus();
}

absl::Status AppendToolCallsTurn(const ChatMessage& message, size_t index, Prompt& prompt) {
  prompt.Template("<|im_start|>assistant");
  if (!message.content.empty()) {
    prompt.Template("\n");
    prompt.User(message.content);
  }
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const std::string field = Indexed(MessageField(index, "tool_calls"), i) + ".arguments_json";
    ORCD_ASSIGN_OR_RETURN(const std::string arguments,
                          NormalizeField(field, message.tool_calls[i].arguments_json));
    prompt.Template("\n<tool_call>\n{\"name\": \"");
    prompt.User(message.tool_calls[i].name);
    prompt.Template("\", \"arguments\": ");
    prompt.User(arguments);
    prompt.Template("}\n</tool_call>");
  }
  prompt.Template("<|im_end|>\n");
  return absl::OkStatus();
}

// Consecutive tool results share one user turn.
void AppendToolResult(const ChatRequest& request, size_t index, Prompt& prompt) {
  const auto& messages = request.messages;
  const auto is_tool = [&](size_t i) {
    return i < messages.size() && messages[i].role == ChatRole::kTool;
  };
  if (index == 0 || !is_tool(index - 1)) prompt.Template("<|im_start|>user");
  prompt.Template("\n<tool_response>\n");
  prompt.User(messages[index].content);
  prompt.Template("\n</tool_response>");
  if (!is_tool(index + 1)) prompt.Template("<|im_end|>\n");
}

absl::Status AppendQwen25(const ChatRequest& request, std::string_view default_system,
                          Prompt& prompt) {
  const auto& messages = request.messages;
  if (!request.tools_json.empty()) {
    ORCD_RETURN_IF_ERROR(AppendToolsTurn(request, default_system, prompt));
  } else if (messages[0].role == ChatRole::kSystem) {
    AppendTurn(messages[0], prompt);
  } else {
    AppendDefaultSystemTurn(default_system, prompt);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    switch (messages[i].role) {
      case ChatRole::kSystem:
        break;
      case ChatRole::kUser:
        AppendTurn(messages[i], prompt);
        break;
      case ChatRole::kAssistant:
        if (messages[i].tool_calls.empty()) {
          AppendTurn(messages[i], prompt);
        } else {
          ORCD_RETURN_IF_ERROR(AppendToolCallsTurn(messages[i], i, prompt));
        }
        break;
      case ChatRole::kTool:
        AppendToolResult(request, i, prompt);
        break;
    }
  }
  return absl::OkStatus();
}

}  // namespace

ChatTemplate ChatTemplate::Recognize(std::string_view source) {
  ChatTemplate chat_template;
  chat_template.known_ = FindKnownTemplate(source);
  return chat_template;
}

absl::StatusOr<std::vector<PromptPiece>> ChatTemplate::Render(const ChatRequest& request) const {
  if (!known_) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     "the model has no chat template that is known here; send the prompt as text "
                     "or as token ids",
                     {.reason = "CHAT_TEMPLATE_UNKNOWN"});
  }
  ORCD_RETURN_IF_ERROR(CheckMessages(request));
  Prompt prompt;
  switch (known_->format) {
    case ChatFormat::kChatMl:
      ORCD_RETURN_IF_ERROR(AppendChatMl(request, known_->default_system, prompt));
      break;
    case ChatFormat::kQwen25:
      ORCD_RETURN_IF_ERROR(AppendQwen25(request, known_->default_system, prompt));
      break;
  }
  if (request.add_generation_prompt) prompt.Template("<|im_start|>assistant\n");
  return prompt.Take();
}

std::vector<int32_t> EncodePrompt(const Tokenizer& tokenizer,
                                  const std::vector<PromptPiece>& pieces) {
  std::string text;
  std::vector<TextSpan> spans;
  for (const PromptPiece& piece : pieces) {
    const size_t begin = text.size();
    text += piece.text;
    spans.push_back({begin, text.size(), piece.is_template});
  }
  return tokenizer.Encode(text, spans);
}

}  // namespace orcd
