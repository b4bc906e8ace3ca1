#include "tools/orcdctl/commands.h"
#include "tools/orcdctl/exit_codes.h"
#include "tools/orcdctl/human.h"

namespace orcd::ctl {

int RunHealth(Session& session, const HealthOptions& options) {
  Call call(session, kQuickCall);
  v1::HealthResponse response;
  const grpc::Status status = session.worker->Health(call.context(), {}, &response);
  if (!status.ok()) return call.Finish(status, "interrupted");
  session.console.out << (session.json ? JsonLine(response) : DescribeStatus(response.status()));
  if (options.ready && response.status().state() != v1::WORKER_STATE_READY) return kExitFailed;
  return kExitOk;
}

}  // namespace orcd::ctl
