// Keeps callers from services that are not of this worker's making.
#ifndef ORCD_WORKER_CALL_GATE_H_
#define ORCD_WORKER_CALL_GATE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>

#include <functional>
#include <memory>
#include <string_view>

namespace orcd {

// Whether a call of `method` (`/package.Service/Method`) may go on.
using CallFilter =
    std::function<bool(std::string_view method, const grpc::ServerContextBase& context)>;

// An interceptor that cancels the calls that `filter` does not let through. The services of gRPC's
// plug-ins (such as channelz) join every server of a process and know no authorization; this
// stands before them. What is refused ends with CANCELLED: an interceptor can say no more.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallGate(
    CallFilter filter);

}  // namespace orcd

#endif  // ORCD_WORKER_CALL_GATE_H_
