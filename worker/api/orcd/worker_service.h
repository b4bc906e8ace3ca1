// orcd.v1.Worker: dispatches each call to the object that does the work.
#ifndef ORCD_WORKER_API_ORCD_WORKER_SERVICE_H_
#define ORCD_WORKER_API_ORCD_WORKER_SERVICE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>

#include "orcd/v1/worker.grpc.pb.h"
#include "worker/api/orcd/multiplexed_call.h"
#include "worker/api/orcd/request_translation.h"
#include "worker/base/logging.h"
#include "worker/host/model_host.h"
#include "worker/observe/telemetry.h"
#include "worker/security/authorizer.h"
#include "worker/stream/token_stream.h"

namespace orcd {

namespace internal {
template <typename Base>
using RawLoad = v1::Worker::WithRawCallbackMethod_Load<Base>;
template <typename Base>
using RawUnload = v1::Worker::WithRawCallbackMethod_Unload<Base>;
template <typename Base>
using RawGenerate = v1::Worker::WithRawCallbackMethod_Generate<Base>;
template <typename Base>
using RawGenerateMany = v1::Worker::WithRawCallbackMethod_GenerateMany<Base>;
template <typename Base>
using RawCancel = v1::Worker::WithRawCallbackMethod_Cancel<Base>;
template <typename Base>
using RawTokenize = v1::Worker::WithRawCallbackMethod_Tokenize<Base>;
template <typename Base>
using RawHealth = v1::Worker::WithRawCallbackMethod_Health<Base>;
template <typename Base>
using RawDrain = v1::Worker::WithRawCallbackMethod_Drain<Base>;
// Every method takes its request as bytes; see messages.h.
using RawWorkerService = RawLoad<RawUnload<RawGenerate<
    RawGenerateMany<RawCancel<RawTokenize<RawHealth<RawDrain<v1::Worker::Service>>>>>>>>;
}  // namespace internal

struct WorkerServiceOptions {
  TokenStreamLimits limits = {};
  MultiplexedCallLimits many_limits = {};
  TranslationOptions translation = {};
  // Decides which callers may make which calls. Null: everyone may make all calls.
  const Authorizer* authorizer = nullptr;
  // Null: nothing is measured.
  Telemetry* telemetry = nullptr;
  // Called once a drain is over whose request asks for the worker's exit. From any thread.
  std::function<void()> on_exit = [] {};
};

// Owns nothing but its options and the list of GenerateMany calls. gRPC calls it from many threads
// at once; no method waits for the engine, a load or a client. Must outlive the server it is
// registered with.
class WorkerService final : public internal::RawWorkerService {
 public:
  // `host` and `log` must outlive the service.
  WorkerService(ModelHost& host, const Logger& log, WorkerServiceOptions options = {});

  // Ends GenerateMany calls once their requests have ended, and each later one at once, so that the
  // server can stop. Without this they stay open for as long as their clients like.
  void Shutdown();

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Load(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Unload(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* GenerateMany(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Health(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Drain(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;

 private:
  ModelHost& host_;
  const Logger& log_;
  const WorkerServiceOptions options_;
  MultiplexedCalls many_calls_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_WORKER_SERVICE_H_
