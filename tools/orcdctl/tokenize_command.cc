#include "absl/strings/str_join.h"
#include "tools/orcdctl/commands.h"
#include "tools/orcdctl/exit_codes.h"
#include "tools/orcdctl/human.h"
#include "tools/orcdctl/input.h"

namespace orcd::ctl {

int RunTokenize(Session& session, const TokenizeOptions& options) {
  const absl::StatusOr<std::string> text = ReadText(session.console, options.text);
  if (!text.ok()) {
    session.console.err << text.status().message() << '\n';
    return kExitUsage;
  }
  v1::TokenizeRequest request;
  request.set_model_id(options.model_id);
  request.mutable_text()->set_text(*text);
  request.mutable_text()->set_parse_special(options.parse_special);
  Call call(session, kQuickCall);
  v1::TokenizeResponse response;
  const grpc::Status status = session.worker->Tokenize(call.context(), request, &response);
  if (!status.ok()) return call.Finish(status, "interrupted");
  if (session.json) {
    session.console.out << JsonLine(response);
  } else {
    session.console.out << absl::StrJoin(response.token_ids(), " ") << '\n';
  }
  return kExitOk;
}

}  // namespace orcd::ctl
