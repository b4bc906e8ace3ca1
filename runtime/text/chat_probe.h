// Finds out what a chat template does with parts of a conversation, by rendering small ones.
#ifndef ORCD_RUNTIME_TEXT_CHAT_PROBE_H_
#define ORCD_RUNTIME_TEXT_CHAT_PROBE_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "runtime/text/chat_context.h"
#include "runtime/text/chat_request.h"

namespace orcd {

struct ChatFeatures {
  ContentForms contents = AllContents(ContentForm::kText);
  // False if a conversation with tools, or tool calls, was rendered without them.
  bool tools = true;
  bool tool_calls = true;
};

// Renders a conversation with the given forms; kResourceExhausted ends the probe.
using ProbeRender =
    absl::FunctionRef<absl::StatusOr<std::string>(const ChatRequest&, const ContentForms&)>;

// A template that cannot render a probe keeps the default for it.
ChatFeatures ProbeChatTemplate(ProbeRender render);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_CHAT_PROBE_H_
