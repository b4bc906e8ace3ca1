#include "worker/api/vllm/vllm_service.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/error.h"
#include "worker/api/orcd/admission.h"
#include "worker/api/orcd/cancel_requests.h"
#include "worker/api/orcd/generate_call.h"
#include "worker/api/vllm/generate_translation.h"
#include "worker/api/vllm/kv_event_call.h"
#include "worker/api/vllm/tokenizer_call.h"
#include "worker/api/vllm/vllm_encoder.h"
#include "worker/api/vllm/worker_figures.h"
#include "worker/base/messages.h"
#include "worker/base/status_details.h"
#include "worker/stream/open_request.h"
#include "worker/stream/refused_call.h"
#include "worker/stream/unary_reply.h"

namespace orcd {
namespace {

constexpr int kMaxAbortedIds = 4096;

// Finishes a call with the result of `make`.
template <typename Make>
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, grpc::ByteBuffer* response,
                                 const Make& make) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Reply(context, reactor, response, make());
  return reactor;
}

absl::StatusOr<GenerateAsked> ReadRequest(const grpc::ByteBuffer& bytes) {
  ORCD_ASSIGN_OR_RETURN(vllm_wire::GenerateRequest request,
                        ParseRequest<vllm_wire::GenerateRequest>(bytes));
  GenerateAsked asked;
  const bool is_stream = request.stream();
  ORCD_ASSIGN_OR_RETURN(asked.request, TranslateVllmRequest(std::move(request)));
  asked.encoder = [is_stream](const GenerationRequest& prepared, const Engine&) {
    return std::make_unique<VllmEncoder>(
        VllmEncoder::Request{.stream = is_stream,
                             .prompt_logprobs = prepared.prompt_logprobs >= 0,
                             .first_prompt_token = prepared.prompt.front()});
  };
  return asked;
}

}  // namespace

VllmService::VllmService(ModelHost& host, const Logger& log, const VllmServiceOptions& options)
    : host_(host),
      log_(log),
      options_(options),
      tokenizers_(host),
      tokenizer_calls_(tokenizers_),
      kv_events_(host) {}

void VllmService::Shutdown() { kv_events_.Shutdown(); }

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  const absl::Status may = Authorize(options_.authorizer, *context, Permission::kInference);
  if (!may.ok()) {
    CountRefusal(options_.telemetry, may);
    return RefuseStream(context, log_, "vllm.Generate", may);
  }
  return StartGenerateCall(context, *bytes, host_, log_,
                           {.method = "vllm.Generate",
                            .limits = options_.limits,
                            .telemetry = options_.telemetry,
                            .id_path = {vllm_wire::GenerateRequest::kRequestIdFieldNumber},
                            .read = ReadRequest});
}

grpc::ServerUnaryReactor* VllmService::HealthCheck(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer*,
                                                   grpc::ByteBuffer* response) {
  return Answer(context, response, [&]() -> absl::StatusOr<vllm_wire::HealthCheckResponse> {
    ORCD_RETURN_IF_ERROR(Authorize(options_.authorizer, *context, Permission::kStatus));
    ORCD_RETURN_IF_ERROR(CheckReady(host_.Status()));
    vllm_wire::HealthCheckResponse message;
    message.set_healthy(true);
    message.set_message("ready");
    return message;
  });
}

grpc::ServerUnaryReactor* VllmService::Abort(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* bytes,
                                             grpc::ByteBuffer* response) {
  auto open = [&]() -> absl::StatusOr<vllm_wire::AbortRequest> {
    ORCD_ASSIGN_OR_RETURN(vllm_wire::AbortRequest request,
                          OpenRequest<vllm_wire::AbortRequest>(options_.authorizer, *context,
                                                               Permission::kInference, *bytes));
    if (request.request_ids_size() <= kMaxAbortedIds) return request;
    return InvalidField("request_ids",
                        absl::StrCat("has ", request.request_ids_size(), " ids, may have ",
                                     kMaxAbortedIds, "; abort the rest with another call"));
  };
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<vllm_wire::AbortRequest> request = open();
  if (!request.ok()) {
    Fail(context, reactor, request.status());
    return reactor;
  }
  const absl::flat_hash_set<std::string> ids(request->request_ids().begin(),
                                             request->request_ids().end());
  CancelRequests(host_, options_.telemetry, {ids.begin(), ids.end()},
                 [context, reactor, response](bool) {
                   Reply(context, reactor, response, vllm_wire::AbortResponse());
                 });
  return reactor;
}

grpc::ServerUnaryReactor* VllmService::GetModelInfo(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer*,
                                                    grpc::ByteBuffer* response) {
  return Answer(context, response, [&]() -> absl::StatusOr<vllm_wire::GetModelInfoResponse> {
    ORCD_RETURN_IF_ERROR(Authorize(options_.authorizer, *context, Permission::kStatus));
    // While the lease is held there is a model.
    ORCD_ASSIGN_OR_RETURN(const EngineLease lease, host_.Borrow(""));
    return ToModelInfo(host_.Status().model());
  });
}

grpc::ServerUnaryReactor* VllmService::GetServerInfo(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer*,
                                                     grpc::ByteBuffer* response) {
  return Answer(context, response, [&]() -> absl::StatusOr<vllm_wire::GetServerInfoResponse> {
    ORCD_RETURN_IF_ERROR(Authorize(options_.authorizer, *context, Permission::kStatus));
    return ToServerInfo(host_.Status());
  });
}

grpc::ServerUnaryReactor* VllmService::GetLoads(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* bytes,
                                                grpc::ByteBuffer* response) {
  return Answer(context, response, [&]() -> absl::StatusOr<vllm_wire::GetLoadsResponse> {
    ORCD_ASSIGN_OR_RETURN(const vllm_wire::GetLoadsRequest request,
                          OpenRequest<vllm_wire::GetLoadsRequest>(options_.authorizer, *context,
                                                                  Permission::kStatus, *bytes));
    if (request.dp_rank() != 0) {
      return InvalidField("dp_rank",
                          absl::StrCat("is ", request.dp_rank(), "; there is one rank, 0"));
    }
    return ToLoads(host_.Status(), absl::Now());
  });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmService::GetTokenizer(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer*) {
  auto start = [&]() -> absl::StatusOr<grpc::ServerWriteReactor<grpc::ByteBuffer>*> {
    ORCD_RETURN_IF_ERROR(Authorize(options_.authorizer, *context, Permission::kInference));
    return tokenizer_calls_.Start(context);
  };
  const auto stream = start();
  if (!stream.ok()) return RefuseStream(context, log_, "vllm.GetTokenizer", stream.status());
  return *stream;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmService::SubscribeKvEvents(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  // The events reveal the beginnings of everybody's prompts.
  const auto may = [this, context] {
    return Authorize(options_.authorizer, *context, Permission::kControl);
  };
  auto start = [&]() -> absl::StatusOr<grpc::ServerWriteReactor<grpc::ByteBuffer>*> {
    ORCD_RETURN_IF_ERROR(may());
    ORCD_ASSIGN_OR_RETURN(const vllm_wire::SubscribeKvEventsRequest request,
                          ParseRequest<vllm_wire::SubscribeKvEventsRequest>(*bytes));
    return StartKvEventCall(context, request, host_, kv_events_, may);
  };
  const auto stream = start();
  if (!stream.ok()) return RefuseStream(context, log_, "vllm.SubscribeKvEvents", stream.status());
  return *stream;
}

}  // namespace orcd
