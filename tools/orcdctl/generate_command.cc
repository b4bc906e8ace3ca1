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
  // Everything but the message that is the prompt.
  v1::ChatPrompt chat;
  std::string prompt;
};

// Adds the objects of the file, if one is named.
absl::Status AddObjects(const char* flag, const std::string& path,
                        google::protobuf::RepeatedPtrField<std::string>& objects) {
  if (path.empty()) return absl::OkStatus();
  ORCD_ASSIGN_OR_RETURN(const std::string json, ReadFile(path));
  ORCD_ASSIGN_OR_RETURN(const std::vector<std::string> parsed, ParseObjects(flag, json));
  objects.Add(parsed.begin(), parsed.end());
  return absl::OkStatus();
}

absl::StatusOr<Prepared> Prepare(Console& console, const GenerateOptions& options) {
  Prepared prepared;
  ORCD_ASSIGN_OR_RETURN(prepared.request, NewGenerateRequest(options));
  ORCD_RETURN_IF_ERROR(CheckUtf8("--system", options.system));
  ORCD_RETURN_IF_ERROR(CheckUtf8("--template-args", options.template_args));
  ORCD_RETURN_IF_ERROR(CheckUtf8("--continue", options.continued));
  prepared.chat = NewChat(options);
  ORCD_RETURN_IF_ERROR(
      AddObjects("--tools", options.tools_file, *prepared.chat.mutable_tools_json()));
  ORCD_RETURN_IF_ERROR(
      AddObjects("--documents", options.documents_file, *prepared.chat.mutable_documents_json()));
  if (!options.template_file.empty()) {
    ORCD_ASSIGN_OR_RETURN(const std::string source, ReadFile(options.template_file));
    ORCD_RETURN_IF_ERROR(CheckUtf8("--template", source));
    prepared.chat.set_chat_template(source);
  }
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
    if (!options.continued.empty()) {
      AddMessage(chat, v1::CHAT_ROLE_ASSISTANT, options.continued);
      chat.set_continue_final_message(true);
    }
    *request.mutable_chat() = std::move(chat);
  }
  return StreamAnswer(session, request, options.stats).exit_code;
}

}  // namespace orcd::ctl
