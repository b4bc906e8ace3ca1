// Keeps callers away from services that this worker does not implement itself.
#ifndef ORCD_WORKER_SECURITY_CALL_GATE_H_
#define ORCD_WORKER_SECURITY_CALL_GATE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>

#include <functional>
#include <memory>
#include <string_view>

namespace orcd {

// Returns true if a call of `method` (`/package.Service/Method`) may proceed.
using CallFilter =
    std::function<bool(std::string_view method, const grpc::ServerContextBase& context)>;

// Returns an interceptor that cancels the calls that `filter` rejects. The services of gRPC's
// plug-ins (such as channelz) join every server of a process and know no authorization; the
// interceptor runs before them. A rejected call ends with CANCELLED, since an interceptor cannot
// set another status.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallGate(
    CallFilter filter);

}  // namespace orcd

#endif  // ORCD_WORKER_SECURITY_CALL_GATE_H_
