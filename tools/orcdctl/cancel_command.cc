#include "tools/orcdctl/commands.h"
#include "tools/orcdctl/exit_codes.h"
#include "tools/orcdctl/human.h"

namespace orcd::ctl {

int RunCancel(Session& session, const CancelOptions& options) {
  if (const absl::Status utf8 = CheckUtf8("ID", options.request_id); !utf8.ok()) {
    session.console.err << utf8.message() << '\n';
    return kExitUsage;
  }
  v1::CancelRequest request;
  request.set_request_id(options.request_id);
  Call call(session, kQuickCall);
  v1::CancelResponse response;
  const grpc::Status status = session.worker->Cancel(call.context(), request, &response);
  if (!status.ok()) return call.Finish(status, "interrupted; the request may still end");
  if (session.json) {
    session.console.out << JsonLine(response);
  } else {
    session.console.out << (response.found() ? "ended " : "no live request has the id ")
                        << AsOneLine(options.request_id) << '\n';
  }
  return kExitOk;
}

}  // namespace orcd::ctl
