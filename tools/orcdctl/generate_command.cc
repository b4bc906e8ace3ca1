#include "runtime/base/error.h"
#include "tools/orcdctl/answer.h"
#include "tools/orcdctl/chat.h"
#include "tools/orcdctl/commands.h"
#include "tools/orcdctl/exit_codes.h"
#include "tools/orcdctl/input.h"

namespace orcd::ctl {
namespace {

struct Prepared {
  // Everything but the prompt.
  v1::GenerateRequest request;
  // The system message and the tools.
  v1::ChatPrompt chat;
  std::string prompt;
};

absl::StatusOr<Prepared> Prepare(Console& console, const GenerateOptions& options) {
  Prepared prepared;
  ORCD_ASSIGN_OR_RETURN(prepared.request, NewGenerateRequest(options));
  ORCD_RETURN_IF_ERROR(CheckUtf8("--system", options.system));
  std::vector<std::string> tools;
  if (!options.tools_file.empty()) {
    ORCD_ASSIGN_OR_RETURN(const std::string json, ReadFile(options.tools_file));
    ORCD_ASSIGN_OR_RETURN(tools, ParseTools(json));
  }
  prepared.chat = NewChat(options, tools);
  // A chat reads its messages from stdin itself.
  if (!options.interactive || !options.prompt.empty()) {
    ORCD_ASSIGN_OR_RETURN(prepared.prompt, ReadText(console, options.prompt));
  }
  return prepared;
}

}  // namespace

int RunGenerate(Session& session, const GenerateOptions& options) {
  absl::StatusOr<Prepared> prepared = Prepare(session.console, options);
  if (!prepared.ok()) {
    session.console.err << AsOneLine(std::string(prepared.status().message())) << '\n';
    return kExitUsage;
  }
  auto& [request, chat, prompt] = *prepared;
  if (options.interactive) {
    return RunChat(session, request, std::move(chat), prompt, options.stats);
  }
  if (options.raw) {
    request.mutable_text()->set_text(prompt);
    request.mutable_text()->set_parse_special(options.parse_special);
  } else {
    AddMessage(chat, v1::CHAT_ROLE_USER, prompt);
    *request.mutable_chat() = std::move(chat);
  }
  return StreamAnswer(session, request, options.stats).exit_code;
}

}  // namespace orcd::ctl
