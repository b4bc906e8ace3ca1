#include "tools/orcdctl/commands.h"
#include "tools/orcdctl/exit_codes.h"
#include "tools/orcdctl/human.h"

namespace orcd::ctl {
namespace {

// Running requests end within a step, but freeing tens of GB takes time.
constexpr absl::Duration kUnloadTimeout = absl::Minutes(1);

std::string Describe(const v1::UnloadResponse& response) {
  if (response.model_id().empty()) return "nothing was loaded\n";
  std::string text = "unloaded " + AsOneLine(response.model_id());
  if (const uint32_t n = response.cancelled_requests(); n > 0) {
    text += "; cancelled " + std::to_string(n) + (n == 1 ? " request" : " requests");
  }
  return text + "\n";
}

}  // namespace

int RunUnload(Session& session, const UnloadOptions& options) {
  if (const absl::Status utf8 = CheckUtf8("--model-id", options.model_id); !utf8.ok()) {
    session.console.err << utf8.message() << '\n';
    return kExitUsage;
  }
  v1::UnloadRequest request;
  request.set_model_id(options.model_id);
  request.set_force(options.force);
  Call call(session, kUnloadTimeout);
  v1::UnloadResponse response;
  const grpc::Status status = session.worker->Unload(call.context(), request, &response);
  if (status.ok()) session.console.out << (session.json ? JsonLine(response) : Describe(response));
  return call.Finish(status, "interrupted; the worker may still unload");
}

}  // namespace orcd::ctl
