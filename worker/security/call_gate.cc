#include "worker/security/call_gate.h"

#include <utility>

namespace orcd {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

class Gate final : public Interceptor {
 public:
  Gate(const CallFilter& filter, ServerRpcInfo* info) : filter_(filter), info_(info) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA) &&
        !filter_(info_->method(), *info_->server_context())) {
      info_->server_context()->TryCancel();
    }
    methods->Proceed();
  }

 private:
  const CallFilter& filter_;
  ServerRpcInfo* const info_;
};

class GateFactory final : public ServerInterceptorFactoryInterface {
 public:
  explicit GateFactory(CallFilter filter) : filter_(std::move(filter)) {}
  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    return new Gate(filter_, info);
  }

 private:
  const CallFilter filter_;
};

}  // namespace

std::unique_ptr<ServerInterceptorFactoryInterface> MakeCallGate(CallFilter filter) {
  return std::make_unique<GateFactory>(std::move(filter));
}

}  // namespace orcd
