// Measures how fast one thread renders chat templates, and parses them.
//
//   template_bench [TEMPLATE…] [--benchmark_…]
//
// Renders a conversation of 20 turns with tools, calls and results, and one of a single turn: with
// a template written as those of Hermes and Qwen3 are, and with each file TEMPLATE.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/text/jinja/render_for_test.h"
#include "runtime/text/jinja/template.h"
#include "testing/files.h"

namespace orcd {
namespace {

constexpr std::string_view kTemplate = R"jinja({%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\nYou may call these functions:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nAnswer a call with <tool_call>{\"name\": …, \"arguments\": …}</tool_call><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == 'user' and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %})jinja";

constexpr std::string_view kTools = R"([
{"type": "function", "function": {"name": "get_weather", "description": "The weather in a city on the days to come.",
 "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "The city"},
  "days": {"type": "integer", "default": 3, "enum": [1, 2, 3, 7]}, "units": {"type": ["string", "null"]}},
  "required": ["city"]}}},
{"type": "function", "function": {"name": "search", "description": "Searches the web and returns the first results.",
 "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}}}}},
{"type": "function", "function": {"name": "now", "description": "The time.",
 "parameters": {"type": "object", "properties": {}}}}])";

// 400 bytes, as a paragraph of an answer has them.
std::string Paragraph() {
  std::string text;
  while (text.size() < 400) text += "The quick brown fox jumps over the lazy dog, naïvely. ";
  return text;
}

// The variables of a conversation as JSON: in each turn a question, a call, its result, an answer.
std::string Conversation(int turns) {
  const std::string paragraph = Paragraph();
  std::string messages = absl::StrCat(R"({"role": "system", "content": ")", paragraph, R"("})");
  for (int turn = 0; turn < turns; ++turn) {
    absl::StrAppend(
        &messages, R"(, {"role": "user", "content": ")", paragraph, R"("})",
        R"(, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", )",
        R"("function": {"name": "get_weather", "arguments": {"city": "Paris", "days": )", turn,
        R"(}}}]}, {"role": "tool", "content": "{\"sky\": \"blue\"}"})",
        R"(, {"role": "assistant", "content": "<think>\nShort.\n</think>\n\n)", paragraph, R"("})");
  }
  return absl::StrCat(
      R"({"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, )",
      R"("tools": )", std::string(kTools), R"(, "messages": [)", messages, "]}");
}

// Registers the benchmarks of one template; false, after a message, if it does not render them.
bool Register(const std::string& name, const std::string& source) {
  const auto chat_template = jinja::Template::Parse(source);
  if (!chat_template.ok()) {
    std::fprintf(stderr, "template_bench: %s: %s\n", name.c_str(),
                 chat_template.status().ToString().c_str());
    return false;
  }
  for (const int turns : {1, 20}) {
    const std::string variables = Conversation(turns);
    const auto pieces = jinja::RenderJson(*chat_template, variables);
    if (!pieces.ok()) {
      std::fprintf(stderr, "template_bench: %s: %s\n", name.c_str(),
                   pieces.status().ToString().c_str());
      return false;
    }
    const size_t bytes = jinja::Joined(*pieces).size();
    benchmark::RegisterBenchmark(
        absl::StrCat("Render/", name, "/turns:", turns).c_str(),
        [bytes, variables, chat_template = *chat_template](benchmark::State& state) {
          for (auto step : state) {
            static_cast<void>(step);
            benchmark::DoNotOptimize(jinja::RenderJson(chat_template, variables));
          }
          state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes));
        })
        ->Unit(benchmark::kMicrosecond);
  }
  benchmark::RegisterBenchmark(absl::StrCat("Parse/", name).c_str(), [source](
                                                                         benchmark::State& state) {
    for (auto step : state) {
      static_cast<void>(step);
      benchmark::DoNotOptimize(jinja::Template::Parse(source));
    }
    state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * source.size()));
  })->Unit(benchmark::kMicrosecond);
  return true;
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (!Register("tools_and_thinking", std::string(kTemplate))) return 1;
  for (int i = 1; i < argc; ++i) {
    const std::string source = ReadFile(argv[i]);
    if (source.empty()) {
      std::fprintf(stderr, "template_bench: %s: nothing can be read from it\n", argv[i]);
      return 1;
    }
    if (!Register(argv[i], source)) return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace orcd

int main(int argc, char** argv) { return orcd::Main(argc, argv); }
