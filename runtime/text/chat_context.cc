#include "runtime/text/chat_context.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

using jinja::Kind;
using jinja::Origin;
using jinja::Value;
using jinja::Variable;

// Indexed by ChatRole.
constexpr std::string_view kRoleNames[] = {"system", "user", "assistant", "tool", "developer"};

// Indexed by ToolChoice.
constexpr std::string_view kToolChoices[] = {"", "auto", "none", "required"};

// The names that template arguments may not have.
constexpr std::string_view kReservedNames[] = {
    "messages",  "tools",     "tool_choice", "documents", "add_generation_prompt",
    "bos_token", "eos_token", "unk_token",   "pad_token"};

// Templates that show reasoning call it by one of these names.
constexpr std::string_view kReasoningNames[] = {"reasoning_content", "reasoning", "thinking"};

std::string Indexed(std::string_view field, size_t index) {
  return absl::StrCat(std::string(field), "[", index, "]");
}

// The value of `key` if `value` is a JSON object that has it; else null.
const Value* Member(const Value& value, std::string_view key) {
  if (!value.Is(Kind::kDict)) return nullptr;
  const auto entries = value.dict().entries;
  const auto entry = std::ranges::find_if(
      entries, [key](const jinja::DictEntry& e) { return e.key.text().bytes == key; });
  return entry == entries.end() ? nullptr : &entry->value;
}

// True if `tools` has a function called `name`.
bool HasFunction(const Value& tools, std::string_view name) {
  return std::ranges::any_of(tools.sequence().items, [&](const Value& tool) {
    const Value* const function = Member(tool, "function");
    const Value* const its_name = function == nullptr ? nullptr : Member(*function, "name");
    return its_name != nullptr && its_name->Is(Kind::kString) && its_name->text().bytes == name;
  });
}

class Variables {
 public:
  Variables(const ChatRequest& request, const ContentForms& forms, jinja::Context& context)
      : request_(request), forms_(forms), context_(context) {}

  absl::Status Set(const SpecialTokenTexts& special) {
    ORCD_RETURN_IF_ERROR(SetArguments());
    std::vector<Value> messages;
    for (size_t i = 0; i < request_.messages.size(); ++i) {
      ORCD_ASSIGN_OR_RETURN(messages.emplace_back(), Message(i));
    }
    context_.Set("messages", context_.List(messages));
    Value tools = Value::None();
    if (request_.shows_tools()) {
      ORCD_ASSIGN_OR_RETURN(tools, Objects("chat.tools_json", request_.tools_json));
    }
    context_.Set("tools", tools);
    ORCD_RETURN_IF_ERROR(SetToolChoice(tools));
    Value documents = Value::None();
    if (!request_.documents_json.empty()) {
      ORCD_ASSIGN_OR_RETURN(documents, Objects("chat.documents_json", request_.documents_json));
    }
    context_.Set("documents", documents);
    context_.Set("add_generation_prompt", Value::Bool(request_.add_generation_prompt));
    SetToken("bos_token", special.bos);
    SetToken("eos_token", special.eos);
    SetToken("unk_token", special.unk);
    SetToken("pad_token", special.pad);
    return absl::OkStatus();
  }

 private:
  Value Ours(std::string_view text) { return context_.String(text, Origin::kTemplate); }
  Value Theirs(std::string_view text) { return context_.String(text, Origin::kUser); }

  void SetToken(std::string_view name, std::string_view text) {
    if (!text.empty()) context_.Set(name, Ours(text));
  }

  absl::StatusOr<Value> Object(std::string_view field, std::string_view json) {
    absl::StatusOr<Value> value = context_.Json(json);
    if (!value.ok()) return InvalidField(field, std::string(value.status().message()));
    if (!value->Is(Kind::kDict)) return InvalidField(field, "a JSON object is wanted");
    return value;
  }

  absl::StatusOr<Value> Objects(std::string_view field, const std::vector<std::string>& json) {
    std::vector<Value> objects;
    for (size_t i = 0; i < json.size(); ++i) {
      ORCD_ASSIGN_OR_RETURN(objects.emplace_back(), Object(Indexed(field, i), json[i]));
    }
    return context_.List(objects);
  }

  absl::Status SetArguments() {
    constexpr std::string_view kField = "chat.template_arguments_json";
    if (request_.template_arguments_json.empty()) return absl::OkStatus();
    ORCD_ASSIGN_OR_RETURN(const Value arguments, Object(kField, request_.template_arguments_json));
    for (const jinja::DictEntry& entry : arguments.dict().entries) {
      const std::string_view name = entry.key.text().bytes;
      if (std::ranges::find(kReservedNames, name) != std::end(kReservedNames)) {
        return InvalidField(kField,
                            absl::StrCat("has '", std::string(name),
                                         "', which the request's other fields or the model's file "
                                         "set; leave it out"));
      }
      context_.Set(name, entry.value);
    }
    return absl::OkStatus();
  }

  absl::Status SetToolChoice(const Value& tools) {
    const ToolChoice choice = request_.tool_choice;
    if (choice == ToolChoice::kUnset) return absl::OkStatus();
    if (choice == ToolChoice::kAuto || choice == ToolChoice::kNone) {
      context_.Set("tool_choice", Ours(kToolChoices[static_cast<size_t>(choice)]));
      return absl::OkStatus();
    }
    if (!tools.IsSequence()) {
      return InvalidField("chat.tool_choice", "asks for a tool, and there are none in tools_json");
    }
    if (choice == ToolChoice::kRequired) {
      context_.Set("tool_choice", Ours(kToolChoices[static_cast<size_t>(choice)]));
      return absl::OkStatus();
    }
    if (!HasFunction(tools, request_.tool_choice_function)) {
      return InvalidField("chat.tool_choice.function", "is the name of no tool in tools_json");
    }
    const Variable function[] = {{"name", Theirs(request_.tool_choice_function)}};
    const Variable named[] = {{"type", Ours("function")}, {"function", context_.Dict(function)}};
    context_.Set("tool_choice", context_.Dict(named));
    return absl::OkStatus();
  }

  absl::StatusOr<Value> ToolCall(const ChatToolCall& call, const std::string& field) {
    ORCD_ASSIGN_OR_RETURN(const Value arguments,
                          Object(field + ".arguments_json", call.arguments_json));
    const Variable function[] = {{"name", Theirs(call.name)}, {"arguments", arguments}};
    std::vector<Variable> entries = {{"type", Ours("function")},
                                     {"function", context_.Dict(function)}};
    if (!call.id.empty()) entries.insert(entries.begin(), {"id", Theirs(call.id)});
    return context_.Dict(entries);
  }

  absl::StatusOr<Value> Message(size_t index) {
    const ChatMessage& message = request_.messages[index];
    std::vector<Variable> entries;
    entries.push_back({"role", message.role == ChatRole::kNamed
                                   ? Theirs(message.role_name)
                                   : Ours(kRoleNames[static_cast<size_t>(message.role)])});
    const bool continued = request_.continue_final_message && index + 1 == request_.messages.size();
    ORCD_ASSIGN_OR_RETURN(const Value content, Content(message, continued));
    entries.push_back({"content", content});
    if (!message.reasoning_content.empty()) {
      const Value reasoning = Theirs(message.reasoning_content);
      for (const std::string_view name : kReasoningNames) entries.push_back({name, reasoning});
    }
    if (!message.tool_calls.empty()) {
      const std::string field = Indexed("chat.messages", index) + ".tool_calls";
      std::vector<Value> calls;
      for (size_t i = 0; i < message.tool_calls.size(); ++i) {
        ORCD_ASSIGN_OR_RETURN(calls.emplace_back(),
                              ToolCall(message.tool_calls[i], Indexed(field, i)));
      }
      entries.push_back({"tool_calls", context_.List(calls)});
    }
    if (!message.tool_call_id.empty()) {
      entries.push_back({"tool_call_id", Theirs(message.tool_call_id)});
    }
    if (!message.name.empty()) entries.push_back({"name", Theirs(message.name)});
    return context_.Dict(entries);
  }

  absl::StatusOr<Value> Content(const ChatMessage& message, bool continued) {
    std::vector<std::string_view> texts(message.content_parts.begin(), message.content_parts.end());
    const bool in_parts = !texts.empty();
    if (!in_parts && (continued || !message.content.empty())) texts.push_back(message.content);
    if (continued) {
      const std::string_view tagged[] = {texts.back(), kContinuationTag};
      ORCD_ASSIGN_OR_RETURN(texts.back(), Joined(tagged, ""));
    }
    const ContentForm form = forms_[static_cast<size_t>(message.role)];
    if (form == ContentForm::kText || (form == ContentForm::kAsSent && !in_parts)) {
      ORCD_ASSIGN_OR_RETURN(const std::string_view text, Joined(texts, "\n"));
      return Theirs(text);
    }
    std::vector<Value> parts;
    for (const std::string_view text : texts) {
      const Variable part[] = {{"type", Ours("text")}, {"text", Theirs(text)}};
      parts.push_back(context_.Dict(part));
    }
    return context_.List(parts);
  }

  // The texts with `separator` between them. The result is valid as long as the texts and the
  // context.
  absl::StatusOr<std::string_view> Joined(std::span<const std::string_view> texts,
                                          std::string_view separator) {
    if (texts.empty()) return std::string_view();
    if (texts.size() == 1) return texts[0];
    size_t size = separator.size() * (texts.size() - 1);
    for (const std::string_view text : texts) size += text.size();
    char* const joined = context_.arena().NewArray<char>(size);
    if (joined == nullptr) {
      return absl::ResourceExhaustedError("the conversation takes more memory than a prompt may");
    }
    char* end = joined;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (i > 0) end = std::ranges::copy(separator, end).out;
      end = std::ranges::copy(texts[i], end).out;
    }
    return std::string_view(joined, size);
  }

  const ChatRequest& request_;
  const ContentForms& forms_;
  jinja::Context& context_;
};

}  // namespace

absl::Status SetChatVariables(const ChatRequest& request, const SpecialTokenTexts& special,
                              const ContentForms& forms, jinja::Context& context) {
  return Variables(request, forms, context).Set(special);
}

}  // namespace orcd
