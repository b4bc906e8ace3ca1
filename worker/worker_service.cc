#include "worker/worker_service.h"

#include <memory>
#include <string_view>
#include <utility>

#include "runtime/error.h"
#include "runtime/steady_time.h"
#include "worker/drain_call.h"
#include "worker/generate_call.h"
#include "worker/generate_encoder.h"
#include "worker/generate_many_call.h"
#include "worker/load_call.h"
#include "worker/open_request.h"
#include "worker/refused_call.h"
#include "worker/request_translation.h"
#include "worker/status_details.h"
#include "worker/unary_reply.h"

namespace orcd {

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
        if (!result.ok()) return Fail(context, reactor, result.status());
        LogUnloaded(log_, *result);
        Reply(reactor, response, *result);
      });
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* WorkerService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  absl::StatusOr<std::shared_ptr<TokenStream>> stream = StartGenerate(context, *bytes);
  if (!stream.ok()) {
    CountRefusal(options_.telemetry, stream.status());
    return RefuseStream(context, log_, "Generate", stream.status());
  }
  return stream->get();
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* WorkerService::GenerateMany(
    grpc::CallbackServerContext* context) {
  const absl::Status may = Authorize(options_.authorizer, *context, Permission::kInference);
  if (may.ok()) {
    return many_calls_.Start(context, std::make_unique<GenerateManyDialect>(), host_, log_,
                             options_.telemetry, [this, context] {
                               return Authorize(options_.authorizer, *context,
                                                Permission::kInference);
                             });
  }
  LogRefusal(log_, "GenerateMany", may);
  return new RefusedCall(ToGrpcStatus(may, context));
}

void WorkerService::Shutdown() { many_calls_.Shutdown(); }

absl::StatusOr<std::shared_ptr<TokenStream>> WorkerService::StartGenerate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer& bytes) {
  const absl::Time arrival = SteadyNow();
  ORCD_ASSIGN_OR_RETURN(const v1::GenerateRequest proto,
                        OpenRequest<v1::GenerateRequest>(options_.authorizer, *context,
                                                         Permission::kInference, bytes));
  return StartGenerateCall(context, proto, arrival, host_, log_,
                           {.limits = options_.limits,
                            .writes = options_.writes,
                            .telemetry = options_.telemetry,
                            .encoder = [](const GenerationRequest& request, const Engine& engine) {
                              return std::make_unique<GenerateEncoder>(
                                  request.id, request.sampling.seed, engine.model().digest());
                            }});
}

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
  absl::StatusOr<EngineLease> borrowed = host_.Borrow("");
  if (!borrowed.ok()) {
    // Without an engine no request is live.
    Reply(reactor, response, v1::CancelResponse());
    return reactor;
  }
  auto lease = std::make_shared<EngineLease>(*std::move(borrowed));
  Engine& engine = lease->engine();
  engine.Cancel(request->request_id(), FinishReason::kCancelled,
                [reactor, response, lease = std::move(lease),
                 released = Telemetry::TimeRelease(options_.telemetry)](bool found) mutable {
                  lease = nullptr;
                  released(found);
                  v1::CancelResponse message;
                  message.set_found(found);
                  Reply(reactor, response, message);
                });
  return reactor;
}

grpc::ServerUnaryReactor* WorkerService::Tokenize(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* bytes,
                                                  grpc::ByteBuffer* response) {
  auto tokenize = [&]() -> absl::StatusOr<v1::TokenizeResponse> {
    ORCD_ASSIGN_OR_RETURN(const v1::TokenizeRequest request,
                          OpenRequest<v1::TokenizeRequest>(options_.authorizer, *context,
                                                           Permission::kInference, *bytes));
    ORCD_ASSIGN_OR_RETURN(const EngineLease lease, host_.Borrow(request.model_id()));
    ORCD_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                          TranslateInput(request, lease.engine().model()));
    v1::TokenizeResponse message;
    message.mutable_token_ids()->Add(tokens.begin(), tokens.end());
    return message;
  };
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const absl::StatusOr<v1::TokenizeResponse> message = tokenize(); message.ok()) {
    Reply(reactor, response, *message);
  } else {
    Fail(context, reactor, message.status());
  }
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
  Reply(reactor, response, message);
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
