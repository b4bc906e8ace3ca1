#include "worker/api/kserve/kserve_service.h"

#include <utility>

#include "runtime/base/error.h"
#include "worker/api/kserve/infer_encoder.h"
#include "worker/api/kserve/infer_translation.h"
#include "worker/api/kserve/model_repository.h"
#include "worker/api/kserve/stream_infer_call.h"
#include "worker/api/orcd/admission.h"
#include "worker/api/orcd/generate_call.h"
#include "worker/api/orcd/load_call.h"
#include "worker/base/version.h"
#include "worker/stream/open_request.h"
#include "worker/stream/refused_call.h"
#include "worker/stream/unary_reply.h"

namespace orcd::kserve {
namespace {

constexpr char kName[] = "worker-orcd";
// Triton's names of the extensions that are served.
constexpr const char* kExtensions[] = {"model_repository", "model_configuration",
                                       "binary_tensor_data", "parameters"};

absl::StatusOr<GenerateAsked> ReadInfer(const grpc::ByteBuffer& bytes) {
  ORCD_ASSIGN_OR_RETURN(const inference::ModelInferRequest proto,
                        ParseRequest<inference::ModelInferRequest>(bytes));
  MultiplexedGenerate asked = TranslateInfer(proto, InferCallKind::kUnary);
  ORCD_RETURN_IF_ERROR(asked.refusal);
  return GenerateAsked{
      .request = std::move(asked.request),
      .encoder =
          [form = std::static_pointer_cast<const InferForm>(asked.notes),
           preface = std::move(asked.preface)](const GenerationRequest&, const Engine&) mutable {
            return std::make_unique<InferEncoder>(form, std::move(preface));
          },
      .timeout = asked.timeout};
}

}  // namespace

KserveService::KserveService(ModelHost& host, const Logger& log, KserveServiceOptions options)
    : host_(host), log_(log), options_(std::move(options)), stream_calls_(options_.limits) {}

void KserveService::Shutdown() { stream_calls_.Shutdown(); }

template <typename Request, typename Make>
grpc::ServerUnaryReactor* KserveService::Answer(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* bytes,
                                                grpc::ByteBuffer* response, Make make,
                                                bool (*needs_disk)(const Request&, ModelHost&)) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<Request> request =
      OpenRequest<Request>(options_.authorizer, *context, Permission::kStatus, *bytes);
  if (!request.ok()) {
    Fail(context, reactor, request.status());
    return reactor;
  }
  const bool at_once = needs_disk == nullptr || !needs_disk(*request, host_);
  auto reply = [context, reactor, response, request = *std::move(request), make] {
    const auto message = make(request);
    if (message.ok()) {
      Reply(context, reactor, response, *message);
    } else {
      Fail(context, reactor, InInferWords(message.status()));
    }
  };
  if (at_once) {
    reply();
  } else if (absl::Status posted = host_.threads().disk.Post(bytes->Length(), std::move(reply));
             !posted.ok()) {
    Fail(context, reactor, posted);
  }
  return reactor;
}

grpc::ServerUnaryReactor* KserveService::ServerLive(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* bytes,
                                                    grpc::ByteBuffer* response) {
  return Answer<inference::ServerLiveRequest>(
      context, bytes, response, [&](const auto&) -> absl::StatusOr<inference::ServerLiveResponse> {
        inference::ServerLiveResponse live;
        live.set_live(host_.fault_kind().empty());
        return live;
      });
}

grpc::ServerUnaryReactor* KserveService::ServerReady(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* bytes,
                                                     grpc::ByteBuffer* response) {
  return Answer<inference::ServerReadyRequest>(
      context, bytes, response, [&](const auto&) -> absl::StatusOr<inference::ServerReadyResponse> {
        inference::ServerReadyResponse ready;
        ready.set_ready(host_.Status().state() == v1::WORKER_STATE_READY);
        return ready;
      });
}

grpc::ServerUnaryReactor* KserveService::ModelReady(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* bytes,
                                                    grpc::ByteBuffer* response) {
  return Answer<inference::ModelReadyRequest>(
      context, bytes, response,
      [this](const auto& request) -> absl::StatusOr<inference::ModelReadyResponse> {
        ORCD_RETURN_IF_ERROR(CheckModelVersion(request.name(), request.version()));
        inference::ModelReadyResponse ready;
        ORCD_ASSIGN_OR_RETURN(const bool is_ready,
                              IsReady(options_.model_dir, host_.Status(), request.name()));
        ready.set_ready(is_ready);
        return ready;
      },
      // The readiness of the loaded model does not wait for a file system.
      [](const inference::ModelReadyRequest& request, ModelHost& host) {
        return host.Status().model().model_id() != request.name();
      });
}

grpc::ServerUnaryReactor* KserveService::ServerMetadata(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* bytes,
                                                        grpc::ByteBuffer* response) {
  return Answer<inference::ServerMetadataRequest>(
      context, bytes, response,
      [&](const auto&) -> absl::StatusOr<inference::ServerMetadataResponse> {
        inference::ServerMetadataResponse metadata;
        metadata.set_name(kName);
        metadata.set_version(std::string(Version()));
        for (const char* extension : kExtensions) metadata.add_extensions(extension);
        return metadata;
      });
}

grpc::ServerUnaryReactor* KserveService::ModelMetadata(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes,
                                                       grpc::ByteBuffer* response) {
  return Answer<inference::ModelMetadataRequest>(
      context, bytes, response,
      [&](const auto& request) -> absl::StatusOr<inference::ModelMetadataResponse> {
        ORCD_RETURN_IF_ERROR(CheckLoaded(request.name(), request.version()));
        return DescribeTensors(request.name());
      });
}

grpc::ServerUnaryReactor* KserveService::ModelConfig(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* bytes,
                                                     grpc::ByteBuffer* response) {
  return Answer<inference::ModelConfigRequest>(
      context, bytes, response,
      [&](const auto& request) -> absl::StatusOr<inference::ModelConfigResponse> {
        ORCD_RETURN_IF_ERROR(CheckLoaded(request.name(), request.version()));
        return DescribeConfig(request.name());
      });
}

grpc::ServerUnaryReactor* KserveService::RepositoryIndex(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* bytes,
                                                         grpc::ByteBuffer* response) {
  return Answer<inference::RepositoryIndexRequest>(
      context, bytes, response,
      [this](const auto& request) -> absl::StatusOr<inference::RepositoryIndexResponse> {
        if (!request.repository_name().empty()) {
          return InvalidField("repository_name",
                              "must be empty; there is one repository, --model-dir");
        }
        return ListRepository(options_.model_dir, host_.Status(), request.ready());
      },
      [](const inference::RepositoryIndexRequest&, ModelHost&) { return true; });
}

absl::Status KserveService::CheckLoaded(const std::string& name, const std::string& version) const {
  if (name.empty()) return InvalidField("name", "is empty; RepositoryIndex lists the models");
  ORCD_RETURN_IF_ERROR(CheckModelVersion(name, version));
  return host_.Borrow(name).status();
}

grpc::ServerUnaryReactor* KserveService::ModelInfer(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* bytes,
                                                    grpc::ByteBuffer* response) {
  const absl::Status may = Authorize(options_.authorizer, *context, Permission::kInference);
  if (!may.ok()) {
    CountRefusal(options_.telemetry, may);
    return Refuse(context, "ModelInfer", may);
  }
  return StartUnaryGenerateCall(context, *bytes, response, host_, log_,
                                {.method = "ModelInfer",
                                 .telemetry = options_.telemetry,
                                 .read = ReadInfer,
                                 .in_words = InInferWords});
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* KserveService::ModelStreamInfer(
    grpc::CallbackServerContext* context) {
  auto may = [this, context] {
    return Authorize(options_.authorizer, *context, Permission::kInference);
  };
  if (const absl::Status status = may(); !status.ok()) {
    CountRefusal(options_.telemetry, status);
    LogRefusal(log_, "ModelStreamInfer", status);
    return new RefusedCall(ToGrpcStatus(status, context));
  }
  return stream_calls_.Start(context, std::make_unique<StreamInferDialect>(), host_, log_,
                             options_.telemetry, std::move(may));
}

grpc::ServerUnaryReactor* KserveService::RepositoryModelLoad(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* bytes,
                                                             grpc::ByteBuffer* response) {
  absl::StatusOr<inference::RepositoryModelLoadRequest> request =
      OpenRequest<inference::RepositoryModelLoadRequest>(options_.authorizer, *context,
                                                         Permission::kControl, *bytes);
  if (!request.ok()) return Refuse(context, "RepositoryModelLoad", request.status());
  return StartLoadCall(context, response, *std::move(request), options_.model_dir, host_, log_,
                       options_.telemetry);
}

grpc::ServerUnaryReactor* KserveService::RepositoryModelUnload(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* bytes,
                                                               grpc::ByteBuffer* response) {
  const auto translate = [&]() -> absl::StatusOr<UnloadSpec> {
    ORCD_ASSIGN_OR_RETURN(const inference::RepositoryModelUnloadRequest request,
                          OpenRequest<inference::RepositoryModelUnloadRequest>(
                              options_.authorizer, *context, Permission::kControl, *bytes));
    return ToUnloadSpec(request);
  };
  const absl::StatusOr<UnloadSpec> spec = translate();
  if (!spec.ok()) return Refuse(context, "RepositoryModelUnload", spec.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  host_.Unload(spec->model_id, spec->force,
               [this, context, reactor, response,
                name = spec->model_id](const absl::StatusOr<v1::UnloadResponse>& result) {
                 if (!result.ok()) return Fail(context, reactor, InInferWords(result.status()));
                 LogUnloaded(log_, *result);
                 inference::RepositoryModelUnloadResponse reply;
                 reply.set_model_name(name);
                 reply.set_isunloaded(true);
                 Reply(context, reactor, response, reply);
               });
  return reactor;
}

grpc::ServerUnaryReactor* KserveService::Refuse(grpc::CallbackServerContext* context,
                                                std::string_view method,
                                                const absl::Status& status) const {
  LogRefusal(log_, method, status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Fail(context, reactor, InInferWords(status));
  return reactor;
}

}  // namespace orcd::kserve
