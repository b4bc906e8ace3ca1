#include "runtime/text/chat_template.h"

#include "runtime/base/error.h"
#include "runtime/text/json_text.h"

namespace orcd {
namespace {

// Placeholder, in the texts below, for the default system text. Everything else is verbatim.
constexpr std::string_view kSystemMark = "%SYSTEM%";

constexpr std::string_view kQwen25Text = R"jinja({%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- '%SYSTEM%' }}
    {%- endif %}
    {{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\n%SYSTEM%<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %})jinja";

constexpr std::string_view kQwen2Text =
    R"jinja({% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %})jinja"
    R"jinja({{ '<|im_start|>system\n%SYSTEM%<|im_end|>\n' }}{% endif %})jinja"
    R"jinja({{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}})jinja"
    R"jinja({% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})jinja";

constexpr std::string_view kChatMlText =
    R"jinja({% for message in messages %})jinja"
    R"jinja({{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}})jinja"
    R"jinja({% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})jinja";

// Prefix that some files put before kChatMlText. The flag is always defined in this project.
constexpr std::string_view kChatMlFlagText =
    R"jinja({% if not add_generation_prompt is defined %})jinja"
    R"jinja({% set add_generation_prompt = false %}{% endif %})jinja";

constexpr std::string_view kQwenSystem =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
constexpr std::string_view kHelpfulSystem = "You are a helpful assistant.";
constexpr std::string_view kMathSystem =
    R"(Please reason step by step, and put your final answer within \boxed{}.)";

constexpr std::string_view kTurnTokens[] = {"<|im_start|>", "<|im_end|>"};

constexpr std::string_view kGenerationPrompt = "<|im_start|>assistant\n";
constexpr std::string_view kToolsBefore =
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
    "provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsAfter =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
    "\"arguments\": <args-json-object>}\n</tool_call>";

// Indexed by ChatRole.
constexpr std::string_view kRoleNames[] = {"system", "user", "assistant", "tool"};

std::string_view RoleName(ChatRole role) { return kRoleNames[static_cast<int>(role)]; }

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

// Appends the system's turn without its end.
void BeginSystemTurn(const ChatRequest& request, std::string_view default_system, Prompt& prompt) {
  prompt.Template("<|im_start|>system\n");
  if (request.messages[0].role == ChatRole::kSystem) {
    prompt.User(request.messages[0].content);
  } else {
    prompt.Template(default_system);
  }
}

absl::Status AppendChatMl(const ChatRequest& request, std::string_view default_system,
                          Prompt& prompt) {
  if (!request.tools_json.empty()) {
    return InvalidField("chat.tools_json", "the model's chat template has no place for tools");
  }
  if (!default_system.empty() && request.messages[0].role != ChatRole::kSystem) {
    BeginSystemTurn(request, default_system, prompt);
    prompt.Template("<|im_end|>\n");
  }
  for (size_t i = 0; i < request.messages.size(); ++i) {
    if (!request.messages[i].tool_calls.empty()) {
      return InvalidField(MessageField(i, "tool_calls"),
                          "the model's chat template has no place for tool calls");
    }
    AppendTurn(request.messages[i], prompt);
  }
  if (request.add_generation_prompt) prompt.Template(kGenerationPrompt);
  return absl::OkStatus();
}

absl::Status AppendTools(const ChatRequest& request, Prompt& prompt) {
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
  BeginSystemTurn(request, default_system, prompt);
  if (!request.tools_json.empty()) ORCD_RETURN_IF_ERROR(AppendTools(request, prompt));
  prompt.Template("<|im_end|>\n");
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
  if (request.add_generation_prompt) prompt.Template(kGenerationPrompt);
  return absl::OkStatus();
}

// A row of the table of templates.
struct KnownTemplate {
  std::string_view text;
  // Default system text, rendered if a conversation has no system message; empty: none.
  std::string_view system;
  // The same text as the template spells it, inside Jinja quotes.
  std::string_view quoted_system;
  std::span<const std::string_view> control_tokens;
  // Appends the messages, which are not empty, to the prompt.
  absl::Status (*append)(const ChatRequest& request, std::string_view default_system,
                         Prompt& prompt);
};

constexpr KnownTemplate kKnownTemplates[] = {
    // Qwen2.5 and Qwen2.5-Coder, Instruct.
    {kQwen25Text, kQwenSystem, kQwenSystem, kTurnTokens, AppendQwen25},
    // Qwen2.5 before instruction tuning.
    {kQwen25Text, kHelpfulSystem, kHelpfulSystem, kTurnTokens, AppendQwen25},
    // Qwen2.5-Math.
    {kQwen25Text, kMathSystem,
     R"(Please reason step by step, and put your final answer within \\boxed{}.)", kTurnTokens,
     AppendQwen25},
    // Qwen2.
    {kQwen2Text, kHelpfulSystem, kHelpfulSystem, kTurnTokens, AppendChatMl},
    {kChatMlText, "", "", kTurnTokens, AppendChatMl},
};

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

std::string WithSystem(std::string_view text, std::string_view system) {
  std::string result;
  for (size_t mark; (mark = text.find(kSystemMark)) != std::string_view::npos;) {
    result.append(text.substr(0, mark)).append(system);
    text.remove_prefix(mark + kSystemMark.size());
  }
  return result.append(text);
}

}  // namespace

ChatTemplate ChatTemplate::Recognize(std::string_view source) {
  source = Trim(source);
  if (source.starts_with(kChatMlFlagText)) {
    source.remove_prefix(kChatMlFlagText.size());
    if (source != kChatMlText) return {};
  }
  for (const KnownTemplate& known : kKnownTemplates) {
    if (source != WithSystem(known.text, known.quoted_system)) continue;
    const auto render =
        [&known](const ChatRequest& request) -> absl::StatusOr<std::vector<PromptPiece>> {
      ORCD_RETURN_IF_ERROR(CheckMessages(request));
      Prompt prompt;
      ORCD_RETURN_IF_ERROR(known.append(request, known.system, prompt));
      return prompt.Take();
    };
    return ChatTemplate(render, known.control_tokens);
  }
  return {};
}

absl::StatusOr<std::vector<PromptPiece>> ChatTemplate::Render(const ChatRequest& request) const {
  if (render_) return render_(request);
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   "the model has no chat template that is known here; send the prompt as text "
                   "or as token ids",
                   {.reason = "CHAT_TEMPLATE_UNKNOWN"});
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
