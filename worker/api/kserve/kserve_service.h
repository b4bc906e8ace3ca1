// inference.GRPCInferenceService: the Open Inference Protocol v2, with Triton's streaming and
// repository calls, over the same engine calls as orcd.v1.Worker.
#ifndef ORCD_WORKER_API_KSERVE_KSERVE_SERVICE_H_
#define ORCD_WORKER_API_KSERVE_KSERVE_SERVICE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "inference/grpc_service.grpc.pb.h"
#include "worker/api/orcd/multiplexed_call.h"
#include "worker/base/logging.h"
#include "worker/host/model_host.h"
#include "worker/observe/telemetry.h"
#include "worker/security/authorizer.h"

namespace orcd::kserve {

namespace internal {
using Service = inference::GRPCInferenceService;
template <typename Base>
using RawServerLive = Service::WithRawCallbackMethod_ServerLive<Base>;
template <typename Base>
using RawServerReady = Service::WithRawCallbackMethod_ServerReady<Base>;
template <typename Base>
using RawModelReady = Service::WithRawCallbackMethod_ModelReady<Base>;
template <typename Base>
using RawServerMetadata = Service::WithRawCallbackMethod_ServerMetadata<Base>;
template <typename Base>
using RawModelMetadata = Service::WithRawCallbackMethod_ModelMetadata<Base>;
template <typename Base>
using RawModelInfer = Service::WithRawCallbackMethod_ModelInfer<Base>;
template <typename Base>
using RawModelStreamInfer = Service::WithRawCallbackMethod_ModelStreamInfer<Base>;
template <typename Base>
using RawModelConfig = Service::WithRawCallbackMethod_ModelConfig<Base>;
template <typename Base>
using RawRepositoryIndex = Service::WithRawCallbackMethod_RepositoryIndex<Base>;
template <typename Base>
using RawRepositoryModelLoad = Service::WithRawCallbackMethod_RepositoryModelLoad<Base>;
template <typename Base>
using RawRepositoryModelUnload = Service::WithRawCallbackMethod_RepositoryModelUnload<Base>;
// Every method takes its request as bytes; see messages.h.
using RawKserveService = RawServerLive<RawServerReady<RawModelReady<RawServerMetadata<
    RawModelMetadata<RawModelInfer<RawModelStreamInfer<RawModelConfig<RawRepositoryIndex<
        RawRepositoryModelLoad<RawRepositoryModelUnload<Service::Service>>>>>>>>>>>;
}  // namespace internal

struct KserveServiceOptions {
  // The only directory models are loaded from.
  std::string model_dir;
  MultiplexedCallLimits limits = {};
  // Decides which caller may make which calls. Null: everyone may make all calls.
  const Authorizer* authorizer = nullptr;
  // Null: nothing is measured.
  Telemetry* telemetry = nullptr;
};

// Owns only its options and the list of ModelStreamInfer calls. gRPC calls it from many threads at
// once; no method waits for the engine, a load or a client. Must outlive the server it is
// registered with.
class KserveService final : public internal::RawKserveService {
 public:
  // `host` and `log` must outlive the service.
  KserveService(ModelHost& host, const Logger& log, KserveServiceOptions options = {});

  // Ends ModelStreamInfer calls as WorkerService::Shutdown ends GenerateMany calls.
  void Shutdown();

  grpc::ServerUnaryReactor* ServerLive(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ServerReady(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ModelReady(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ServerMetadata(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ModelMetadata(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ModelStreamInfer(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* ModelConfig(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RepositoryIndex(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RepositoryModelLoad(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* request,
                                                grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RepositoryModelUnload(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* response) override;

 private:
  // Answers a call with the result of `make`, at once or, if `needs_disk` returns true, on a thread
  // that may wait for a disk.
  template <typename Request, typename Make>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response,
                                   Make make,
                                   bool (*needs_disk)(const Request&, ModelHost&) = nullptr);
  // OK if this is the loaded model and it may be described.
  absl::Status CheckLoaded(const std::string& name, const std::string& version) const;
  grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, std::string_view method,
                                   const absl::Status& status) const;

  ModelHost& host_;
  const Logger& log_;
  const KserveServiceOptions options_;
  MultiplexedCalls stream_calls_;
};

}  // namespace orcd::kserve

#endif  // ORCD_WORKER_API_KSERVE_KSERVE_SERVICE_H_
