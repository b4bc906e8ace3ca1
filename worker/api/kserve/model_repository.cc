#include "worker/api/kserve/model_repository.h"

#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "worker/api/kserve/infer_translation.h"
#include "worker/api/kserve/tensors.h"
#include "worker/api/orcd/load_call.h"
#include "worker/host/model_path.h"
#include "worker/stream/refused_call.h"
#include "worker/stream/unary_reply.h"

namespace orcd::kserve {
namespace {

// Project and format, as the protocol requires.
constexpr char kPlatform[] = "orcd_gguf";

std::string StateName(v1::WorkerState state) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::WorkerState_Name(state), "WORKER_STATE_"));
}

// KServe's protocol has the model's name in the field that has the repository's name in Triton's.
absl::StatusOr<std::string> ModelName(const std::string& repository_name,
                                      const std::string& model_name) {
  if (!repository_name.empty() && !model_name.empty()) {
    return InvalidField(
        "repository_name",
        absl::StrCat("is ", Quoted(repository_name), "; there is one repository, leave it empty"));
  }
  if (repository_name.empty() && model_name.empty()) {
    return InvalidField("model_name", "is empty; RepositoryIndex lists the models");
  }
  return model_name.empty() ? repository_name : model_name;
}

absl::Status BadParameter(const std::string& name, std::string_view must_be) {
  return InvalidField(absl::StrCat("parameters.", name), must_be);
}

// Answers once the load has ended. gRPC and the load's thread hold it.
class LoadCall final : public grpc::ServerUnaryReactor {
 public:
  LoadCall(grpc::CallbackServerContext* context, grpc::ByteBuffer* response)
      : context_(context), response_(response) {}

  // Call before gRPC can call the reactor.
  void Hold(std::shared_ptr<LoadCall> self) { self_ = std::move(self); }

  const std::shared_ptr<LoadTask>& task() const { return task_; }

  void OnLoaded(const absl::StatusOr<v1::ModelDescription>& result) {
    if (!result.ok()) return Fail(context_, this, InInferWords(result.status()));
    inference::RepositoryModelLoadResponse reply;
    reply.set_model_name(result->model_id());
    reply.set_isloaded(true);
    Reply(context_, this, response_, reply);
  }

  void OnCancel() override { task_->Cancel(); }
  void OnDone() override { const auto self = std::move(self_); }

 private:
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  const std::shared_ptr<LoadTask> task_ = std::make_shared<LoadTask>();
  std::shared_ptr<LoadCall> self_;
};

}  // namespace

inference::RepositoryIndexResponse ListRepository(const std::string& model_dir,
                                                  const v1::WorkerStatus& status, bool only_ready) {
  const bool is_ready = status.state() == v1::WORKER_STATE_READY;
  inference::RepositoryIndexResponse response;
  const auto add = [&](const std::string& name, const std::string& not_ready) {
    if (only_ready && !not_ready.empty()) return;
    auto* model = response.add_models();
    model->set_name(name);
    model->set_version(kModelVersion);
    model->set_state(not_ready.empty() ? "READY" : "UNAVAILABLE");
    model->set_reason(not_ready);
  };
  if (status.has_model()) {
    add(status.model().model_id(), is_ready ? "" : StateName(status.state()));
  }
  std::error_code unreadable;
  for (const std::string& file : ListModels(model_dir, unreadable)) {
    if (status.has_model() && ReplaceInvalidUtf8(file) == status.model().file()) continue;
    add(DefaultModelId(file), "unloaded");
  }
  return response;
}

absl::StatusOr<bool> IsReady(const std::string& model_dir, const v1::WorkerStatus& status,
                             const std::string& name) {
  if (status.has_model() && status.model().model_id() == name) {
    return status.state() == v1::WORKER_STATE_READY;
  }
  const inference::RepositoryIndexResponse index =
      ListRepository(model_dir, status, /*only_ready=*/false);
  for (const auto& model : index.models()) {
    if (model.name() == name) return false;
  }
  return NoSuchModel("name", name);
}

inference::ModelMetadataResponse DescribeTensors(const std::string& name) {
  inference::ModelMetadataResponse response;
  response.set_name(name);
  response.add_versions(kModelVersion);
  response.set_platform(kPlatform);
  const auto describe = [](const TensorSpec& spec, auto* tensor) {
    tensor->set_name(spec.name);
    tensor->set_datatype(spec.datatype);
    tensor->add_shape(spec.size);
  };
  for (const TensorSpec& spec : InputSpecs()) describe(spec, response.add_inputs());
  for (const TensorSpec& spec : OutputSpecs()) describe(spec, response.add_outputs());
  return response;
}

inference::ModelConfigResponse DescribeConfig(const std::string& name) {
  inference::ModelConfigResponse response;
  inference::ModelConfig& config = *response.mutable_config();
  config.set_name(name);
  config.set_platform(kPlatform);
  config.set_backend("orcd");
  const auto describe = [](const TensorSpec& spec, auto* tensor) {
    tensor->set_name(spec.name);
    tensor->set_data_type(spec.type);
    tensor->add_dims(spec.size);
  };
  for (const TensorSpec& spec : InputSpecs()) {
    inference::ModelInput* input = config.add_input();
    describe(spec, input);
    input->set_optional(spec.optional);
  }
  for (const TensorSpec& spec : OutputSpecs()) describe(spec, config.add_output());
  config.mutable_model_transaction_policy()->set_decoupled(true);
  return response;
}

absl::StatusOr<ModelHost::LoadSpec> ToLoadSpec(const inference::RepositoryModelLoadRequest& request,
                                               const std::string& model_dir,
                                               const v1::WorkerStatus& status) {
  ORCD_ASSIGN_OR_RETURN(const std::string name,
                        ModelName(request.repository_name(), request.model_name()));
  ModelHost::LoadSpec spec{.model_field = "model_name", .sha256_field = "parameters.sha256"};
  if (status.has_model() && status.model().model_id() == name) {
    spec.model = status.model().file();
    spec.model_id = name;
    spec.replace = true;
  } else {
    spec.model = FindModelFile(model_dir, name);
  }
  for (const auto& [key, value] : request.parameters()) {
    if (key == "replace") {
      if (!value.has_bool_param()) return BadParameter(key, "must be a bool_param");
      spec.replace = value.bool_param();
    } else if (key == "sha256") {
      if (!value.has_string_param()) return BadParameter(key, "must be a string_param");
      spec.sha256 = value.string_param();
    } else {
      return InvalidField("parameters", absl::StrCat("has ", Quoted(key),
                                                     ", which is not supported; leave it out. "
                                                     "Supported: replace, sha256"));
    }
  }
  return spec;
}

absl::StatusOr<UnloadSpec> ToUnloadSpec(const inference::RepositoryModelUnloadRequest& request) {
  UnloadSpec spec;
  ORCD_ASSIGN_OR_RETURN(spec.model_id, ModelName(request.repository_name(), request.model_name()));
  for (const auto& [key, value] : request.parameters()) {
    if (key != "force" && key != "unload_dependents") {
      return InvalidField("parameters", absl::StrCat("has ", Quoted(key),
                                                     ", which is not supported; leave it out. "
                                                     "Supported: force, unload_dependents"));
    }
    if (!value.has_bool_param()) return BadParameter(key, "must be a bool_param");
    if (key == "force") spec.force = value.bool_param();
  }
  return spec;
}

grpc::ServerUnaryReactor* StartLoadCall(grpc::CallbackServerContext* context,
                                        grpc::ByteBuffer* response,
                                        inference::RepositoryModelLoadRequest request,
                                        const std::string& model_dir, ModelHost& host,
                                        const Logger& log, Telemetry* telemetry) {
  auto call = std::make_shared<LoadCall>(context, response);
  call->Hold(call);
  // On a disk thread: the search for the model's file may hang on a network file system.
  host.threads().disk.PostAlways(0, [call, context, request = std::move(request), model_dir, &host,
                                     &log, telemetry] {
    const absl::StatusOr<ModelHost::LoadSpec> spec = ToLoadSpec(request, model_dir, host.Status());
    if (!spec.ok()) {
      LogRefusal(log, "RepositoryModelLoad", spec.status());
      call->OnLoaded(spec.status());
      return;
    }
    StartLoad(
        *context, *spec, host, log, telemetry,
        [call](const absl::StatusOr<v1::ModelDescription>& result) { call->OnLoaded(result); },
        call->task());
  });
  return call.get();
}

}  // namespace orcd::kserve
