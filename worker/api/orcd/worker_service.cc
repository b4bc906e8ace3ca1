#include "worker/api/orcd/worker_service.h"

#include <memory>
#include <string_view>
#include <utility>

#include "runtime/base/error.h"
#include "worker/api/orcd/admission.h"
#include "worker/api/orcd/cancel_requests.h"
#include "worker/api/orcd/drain_call.h"
#include "worker/api/orcd/generate_call.h"
#include "worker/api/orcd/generate_encoder.h"
#include "worker/api/orcd/generate_many_call.h"
#include "worker/api/orcd/load_call.h"
#include "worker/base/status_details.h"
#include "worker/host/within_memory.h"
#include "worker/stream/open_request.h"
#include "worker/stream/refused_call.h"
#include "worker/stream/unary_reply.h"

namespace orcd {
namespace {

absl::StatusOr<v1::TokenizeResponse> TokenizeRequestBytes(const grpc::ByteBuffer& bytes,
                                                          const TranslationOptions& options,
                                                          ModelHost& host) {
  ORCD_ASSIGN_OR_RETURN(v1::TokenizeRequest request, ParseRequest<v1::TokenizeRequest>(bytes));
  ORCD_ASSIGN_OR_RETURN(const EngineLease lease, host.Borrow(request.model_id()));
  ORCD_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                        TranslateInput(std::move(request), lease.engine().model(), options));
  v1::TokenizeResponse message;
  message.mutable_token_ids()->Add(tokens.begin(), tokens.end());
  return message;
}

}  // namespace

WorkerService::WorkerService(ModelHost& host, const Logger& log, WorkerServiceOptions options)
    : host_(host), log_(log), options_(std::move(options)), many_calls_(options_.many_limits) {}

grpc::ServerWriteReactor<grpc::ByteBuffer>* WorkerService::Load(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  const absl::StatusOr<v1::LoadRequest> request =
      OpenRequest<v1::LoadRequest>(options_.authorizer, *context, Permission::kControl, *bytes);
  if (!request.ok()) return RefuseStream(context, log_, "Load", request.status());
  return StartLoadCall(context, *request, host_, log_, options_.telemetry);
}

grpc::ServerUnaryReactor* WorkerService::Unload(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* bytes,
                                                grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<v1::UnloadRequest> request =
      OpenRequest<v1::UnloadRequest>(options_.authorizer, *context, Permission::kControl, *bytes);
  if (!request.ok()) {
    Fail(context, reactor, request.status());
    return reactor;
  }
  host_.Unload(
      request->model_id(), request->force(),
      [this, context, reactor, response](const absl::StatusOr<v1::UnloadResponse>& result) {
        if (result.ok()) LogUnloaded(log_, *result);
        Reply(context, reactor, response, result);
      });
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* WorkerService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  const absl::Status may = Authorize(options_.authorizer, *context, Permission::kInference);
  if (!may.ok()) {
    CountRefusal(options_.telemetry, may);
    return RefuseStream(context, log_, "Generate", may);
  }
  return StartGenerateCall(
      context, *bytes, host_, log_,
      {.method = "Generate",
       .limits = options_.limits,
       .telemetry = options_.telemetry,
       .id_path = {v1::GenerateRequest::kRequestIdFieldNumber},
       .read = [this](const grpc::ByteBuffer& request) -> absl::StatusOr<GenerateAsked> {
         ORCD_ASSIGN_OR_RETURN(v1::GenerateRequest proto,
                               ParseRequest<v1::GenerateRequest>(request));
         GenerateAsked asked;
         asked.request = TranslateRequest(std::move(proto), options_.translation);
         asked.encoder = [](const GenerationRequest& prepared, const Engine& engine) {
           return std::make_unique<GenerateEncoder>(prepared.id, prepared.sampling.seed,
                                                    engine.model().digest(),
                                                    engine.backend_info().numeric_identity);
         };
         return asked;
       }});
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* WorkerService::GenerateMany(
    grpc::CallbackServerContext* context) {
  const absl::Status may = Authorize(options_.authorizer, *context, Permission::kInference);
  if (may.ok()) {
    return many_calls_.Start(context, std::make_unique<GenerateManyDialect>(options_.translation),
                             host_, log_, options_.telemetry, [this, context] {
                               return Authorize(options_.authorizer, *context,
                                                Permission::kInference);
                             });
  }
  CountRefusal(options_.telemetry, may);
  LogRefusal(log_, "GenerateMany", may);
  return new RefusedCall(ToGrpcStatus(may, context));
}

void WorkerService::Shutdown() { many_calls_.Shutdown(); }

grpc::ServerUnaryReactor* WorkerService::Cancel(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* bytes,
                                                grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<v1::CancelRequest> request =
      OpenRequest<v1::CancelRequest>(options_.authorizer, *context, Permission::kInference, *bytes);
  absl::Status status = request.ok() ? CheckRequestId(request->request_id()) : request.status();
  if (!status.ok()) {
    Fail(context, reactor, status);
    return reactor;
  }
  CancelRequests(host_, options_.telemetry, {request->request_id()},
                 [context, reactor, response](bool found) {
                   v1::CancelResponse message;
                   message.set_found(found);
                   Reply(context, reactor, response, message);
                 });
  return reactor;
}

grpc::ServerUnaryReactor* WorkerService::Tokenize(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* bytes,
                                                  grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = Authorize(options_.authorizer, *context, Permission::kInference);
  if (status.ok()) {
    status = host_.threads().work.Post(bytes->Length(), [this, context, bytes, reactor, response] {
      Reply(context, reactor, response, context->IsCancelled() ? ClientGone() : WithinMemory([&] {
              return TokenizeRequestBytes(*bytes, options_.translation, host_);
            }));
    });
  }
  if (!status.ok()) Fail(context, reactor, status);
  return reactor;
}

grpc::ServerUnaryReactor* WorkerService::Health(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer*,
                                                grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status may = Authorize(options_.authorizer, *context, Permission::kStatus); !may.ok()) {
    Fail(context, reactor, may);
    return reactor;
  }
  v1::HealthResponse message;
  *message.mutable_status() = host_.Status();
  Reply(context, reactor, response, message);
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* WorkerService::Drain(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  const absl::StatusOr<v1::DrainRequest> request =
      OpenRequest<v1::DrainRequest>(options_.authorizer, *context, Permission::kControl, *bytes);
  if (!request.ok()) return RefuseStream(context, log_, "Drain", request.status());
  return StartDrainCall(context, *request, host_, log_, options_.on_exit);
}

}  // namespace orcd
