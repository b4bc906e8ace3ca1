#include "runtime/text/known_templates.h"

#include <string>

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

struct Entry {
  ChatFormat format;
  std::string_view text;
  // The default system text as the template renders it.
  std::string_view system;
  // The same text as the template spells it, inside Jinja quotes.
  std::string_view quoted_system;
};

constexpr Entry kEntries[] = {
    // Qwen2.5 and Qwen2.5-Coder, Instruct.
    {ChatFormat::kQwen25, kQwen25Text, kQwenSystem, kQwenSystem},
    // Qwen2.5 before instruction tuning.
    {ChatFormat::kQwen25, kQwen25Text, kHelpfulSystem, kHelpfulSystem},
    // Qwen2.5-Math.
    {ChatFormat::kQwen25, kQwen25Text, kMathSystem,
     R"(Please reason step by step, and put your final answer within \\boxed{}.)"},
    // Qwen2.
    {ChatFormat::kChatMl, kQwen2Text, kHelpfulSystem, kHelpfulSystem},
    {ChatFormat::kChatMl, kChatMlText, "", ""},
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

std::optional<KnownTemplate> FindKnownTemplate(std::string_view source) {
  source = Trim(source);
  if (source.starts_with(kChatMlFlagText)) {
    source.remove_prefix(kChatMlFlagText.size());
    if (source != kChatMlText) return std::nullopt;
  }
  for (const Entry& entry : kEntries) {
    if (source == WithSystem(entry.text, entry.quoted_system)) {
      return KnownTemplate{entry.format, entry.system};
    }
  }
  return std::nullopt;
}

}  // namespace orcd
