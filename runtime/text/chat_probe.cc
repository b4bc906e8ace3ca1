#include "runtime/text/chat_probe.h"

#include <string_view>
#include <utility>

namespace orcd {
namespace {

// Words that no template has: the two parts of a content, and the name and id of a tool call. Some
// templates want ids of nine letters and digits.
constexpr char kFirst[] = "orcdfirst";
constexpr char kSecond[] = "orcdsecond";
constexpr char kCall[] = "orcdcalls";

constexpr char kTool[] =
    R"({"type":"function","function":{"name":"orcdcalls","description":"Probes.",)"
    R"("parameters":{"type":"object","properties":{"x":{"type":"string","description":"X."}},)"
    R"("required":["x"]}}})";

ChatMessage User() { return {.role = ChatRole::kUser, .content = "Hello"}; }

ChatMessage Call() {
  return {.role = ChatRole::kAssistant, .tool_calls = {{kCall, R"({"x":"y"})", kCall}}};
}

// A conversation with `probed`, which is its message of the probed role, and its neighbours.
ChatRequest Around(ChatMessage probed) {
  ChatRequest request;
  switch (probed.role) {
    case ChatRole::kSystem:
    case ChatRole::kDeveloper:
      request.messages = {std::move(probed), User()};
      break;
    case ChatRole::kAssistant:
      request.messages = {User(), std::move(probed), User()};
      break;
    case ChatRole::kTool:
      probed.tool_call_id = kCall;
      probed.name = kCall;
      request.tools_json = {kTool};
      request.messages = {User(), Call(), std::move(probed)};
      break;
    case ChatRole::kUser:
    case ChatRole::kNamed:
      request.messages = {std::move(probed)};
      break;
  }
  return request;
}

class Prober {
 public:
  explicit Prober(ProbeRender render) : render_(render) {}

  ChatFeatures Run() {
    ChatFeatures features;
    for (const ChatRole role : {ChatRole::kSystem, ChatRole::kUser, ChatRole::kAssistant,
                                ChatRole::kTool, ChatRole::kDeveloper}) {
      features.contents[static_cast<size_t>(role)] = Form(role);
    }
    // Other roles mostly are rendered as the user's.
    features.contents[static_cast<size_t>(ChatRole::kNamed)] =
        features.contents[static_cast<size_t>(ChatRole::kUser)];
    forms_ = features.contents;

    ChatRequest with_tools;
    with_tools.messages = {User()};
    with_tools.tools_json = {kTool};
    features.tools = ShowsOrFails(with_tools);
    if (!features.tools) {
      with_tools.messages = {{.role = ChatRole::kSystem, .content = "Help."}, User()};
      features.tools = ShowsOrFails(with_tools);
    }
    ChatRequest with_call;
    with_call.messages = {User(), Call()};
    features.tool_calls = ShowsOrFails(with_call);
    return features;
  }

 private:
  // Empty, which shows nothing, if there is no result.
  std::string Text(const ChatRequest& request) {
    if (exhausted_) return "";
    absl::StatusOr<std::string> text = render_(request, forms_);
    exhausted_ = absl::IsResourceExhausted(text.status());
    failed_ = !text.ok();
    return text.ok() ? *std::move(text) : "";
  }

  ContentForm Form(ChatRole role) {
    forms_ = AllContents(ContentForm::kAsSent);
    const std::string whole = Text(Around({.role = role, .content = kSecond}));
    const std::string parts = Text(Around({.role = role, .content_parts = {kFirst, kSecond}}));
    const size_t first = parts.find(kFirst);
    const size_t second = parts.find(kSecond);
    if (second == std::string::npos || first >= second) return ContentForm::kText;
    // A list that is printed as such shows the keys of its parts.
    const std::string between = parts.substr(first, second - first);
    if (between.find("text") != std::string::npos) return ContentForm::kText;
    return whole.find(kSecond) == std::string::npos ? ContentForm::kParts : ContentForm::kAsSent;
  }

  bool ShowsOrFails(const ChatRequest& request) {
    const std::string text = Text(request);
    return exhausted_ || failed_ || text.find(kCall) != std::string::npos;
  }

  const ProbeRender render_;
  ContentForms forms_ = AllContents(ContentForm::kAsSent);
  bool exhausted_ = false;
  bool failed_ = false;
};

}  // namespace

ChatFeatures ProbeChatTemplate(ProbeRender render) { return Prober(render).Run(); }

}  // namespace orcd
