// vllm.grpc.engine.VllmEngine, the service for gateways that schedule on vLLM's workers. A façade:
// every request becomes one of orcd.v1, so that checks, defaults and limits are the same.
#ifndef ORCD_WORKER_API_VLLM_VLLM_SERVICE_H_
#define ORCD_WORKER_API_VLLM_VLLM_SERVICE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <string_view>

#include "vllm/vllm_engine.grpc.pb.h"
#include "worker/api/vllm/kv_event_feed.h"
#include "worker/api/vllm/tokenizer_archives.h"
#include "worker/api/vllm/tokenizer_call.h"
#include "worker/api/vllm/wire.h"
#include "worker/base/logging.h"
#include "worker/host/model_host.h"
#include "worker/observe/telemetry.h"
#include "worker/security/authorizer.h"
#include "worker/stream/token_stream.h"

namespace orcd {

namespace internal {
template <typename Base>
using RawVllmGenerate = vllm_wire::VllmEngine::WithRawCallbackMethod_Generate<Base>;
template <typename Base>
using RawVllmHealthCheck = vllm_wire::VllmEngine::WithRawCallbackMethod_HealthCheck<Base>;
template <typename Base>
using RawVllmAbort = vllm_wire::VllmEngine::WithRawCallbackMethod_Abort<Base>;
template <typename Base>
using RawVllmGetModelInfo = vllm_wire::VllmEngine::WithRawCallbackMethod_GetModelInfo<Base>;
template <typename Base>
using RawVllmGetServerInfo = vllm_wire::VllmEngine::WithRawCallbackMethod_GetServerInfo<Base>;
template <typename Base>
using RawVllmGetLoads = vllm_wire::VllmEngine::WithRawCallbackMethod_GetLoads<Base>;
template <typename Base>
using RawVllmGetTokenizer = vllm_wire::VllmEngine::WithRawCallbackMethod_GetTokenizer<Base>;
template <typename Base>
using RawVllmSubscribeKvEvents =
    vllm_wire::VllmEngine::WithRawCallbackMethod_SubscribeKvEvents<Base>;
// Every method takes its request as bytes; see messages.h.
using RawVllmService = RawVllmGenerate<
    RawVllmHealthCheck<RawVllmAbort<RawVllmGetModelInfo<RawVllmGetServerInfo<RawVllmGetLoads<
        RawVllmGetTokenizer<RawVllmSubscribeKvEvents<vllm_wire::VllmEngine::Service>>>>>>>>;
}  // namespace internal

struct VllmServiceOptions {
  TokenStreamLimits limits = {};
  // Decides which caller may make which calls. Null: everyone may make all calls.
  const Authorizer* authorizer = nullptr;
  // Null: nothing is measured.
  Telemetry* telemetry = nullptr;
};

// Owns its options, the archive of the loaded model's tokenizer and the feed of its prefix cache.
// gRPC calls it from many threads at once; no method waits for the engine, a load or a client. Must
// outlive the server it is registered with.
class VllmService final : public internal::RawVllmService {
 public:
  // `host` and `log` must outlive the service. Nobody else may use `host` yet.
  VllmService(ModelHost& host, const Logger& log, const VllmServiceOptions& options = {});

  // Ends the calls that would stay open for as long as their clients like, and ends each later such
  // call at once, so that the server can stop.
  void Shutdown();

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* HealthCheck(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GetTokenizer(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* SubscribeKvEvents(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override;

 private:
  ModelHost& host_;
  const Logger& log_;
  const VllmServiceOptions options_;
  TokenizerArchives tokenizers_;
  TokenizerCalls tokenizer_calls_;
  KvEventFeeds kv_events_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_VLLM_VLLM_SERVICE_H_
