// Feeds arbitrary bytes as each request of orcd.v1.Worker, of vllm.grpc.engine.VllmEngine and of
// inference.GRPCInferenceService, as the replies of an orchestrator, and as headers. They are
// refused or understood, and accepted input satisfies the assumptions of the code behind it.

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/support/slice.h>
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "orcd/v1/orchestrator.pb.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/base/load_observer.h"
#include "runtime/model/model.h"
#include "testing/files.h"
#include "testing/random_model/random_model.h"
#include "worker/api/kserve/infer_translation.h"
#include "worker/api/kserve/model_repository.h"
#include "worker/api/kserve/sampling_parameters.h"
#include "worker/api/orcd/drain_call.h"
#include "worker/api/orcd/load_call.h"
#include "worker/api/orcd/recording_compiler_for_test.h"
#include "worker/api/orcd/request_translation.h"
#include "worker/api/vllm/generate_translation.h"
#include "worker/api/vllm/wire.h"
#include "worker/base/messages.h"
#include "worker/base/to_proto.h"
#include "worker/fleet/directives.h"
#include "worker/host/model_path.h"
#include "worker/observe/trace_context.h"

namespace orcd {
namespace {

// A folder with a model, for as long as the fuzzer runs.
class Fixture {
 public:
  Fixture() {
    // The caller gets parse errors; logging them would be most of the work.
    google::protobuf::SetLogHandler(nullptr);
    const std::string path = dir_.File("nano.gguf");
    if (!WriteRandomModel({}, path).ok()) abort();
    NullLoadObserver observer;
    auto model = Model::Load(path, {}, observer);
    if (!model.ok()) abort();
    model_ = *std::move(model);
  }

  std::string directory() const { return dir_.path().string(); }
  const Model& model() const { return *model_; }

 private:
  const TempDir dir_;
  std::shared_ptr<const Model> model_;
};

void Require(bool holds) {
  if (!holds) abort();
}

// Rules are compiled by constraint_fuzz.
void TryCompile(RequestBuilder& request, const Model& model) {
  RecordingCompiler compiler;
  if (!request.CompileConstraint(model, compiler).ok()) return;
  Require(compiler.asked().empty() == (request.constraint() == nullptr));
  for (const RecordingCompiler::Asked& asked : compiler.asked()) {
    Require(!asked.spec.field.empty());
    const auto* after = std::get_if<StartAfterToken>(&asked.spec.start);
    Require(after == nullptr || (after->token >= 0 && after->token < model.spec().vocab));
  }
}

void TryBuild(RequestBuilder request, const Model& model) {
  if (!request.CheckParameters(model).ok()) return;
  TryCompile(request, model);
  if (!request.EncodePrompt(model).ok()) return;
  const int vocab = model.spec().vocab;
  Require(CheckRequestId(request.request().id).ok());
  Require(request.sampling().Validate(vocab).ok());
  Require(request.stop().Validate(vocab).ok());
}

void TryVllmGenerate(const vllm_wire::GenerateRequest& request, const Model& model) {
  const absl::StatusOr<RequestBuilder> builder = TranslateVllmRequest(request);
  if (!builder.ok()) {
    Require(absl::IsInvalidArgument(builder.status()));
    return;
  }
  TryBuild(*builder, model);
}

void TryInfer(const inference::ModelInferRequest& request, const Model& model) {
  for (const auto kind : {kserve::InferCallKind::kUnary, kserve::InferCallKind::kStream}) {
    const MultiplexedGenerate asked = kserve::TranslateInfer(request, kind);
    Require(asked.notes != nullptr);
    Require(CheckRequestId(asked.request.request().id).ok());
    if (!asked.refusal.ok()) {
      Require(absl::IsInvalidArgument(asked.refusal) || absl::IsNotFound(asked.refusal));
      Require(kserve::InInferWords(asked.refusal).code() == asked.refusal.code());
      continue;
    }
    Require(asked.timeout > absl::ZeroDuration());
    TryBuild(asked.request, model);
  }
}

void TryLoad(const ModelHost::LoadSpec& spec, const std::string& directory) {
  const absl::StatusOr<std::string> path = ResolveModelPath(directory, spec.model);
  if (!path.ok()) return;
  const std::string real = std::filesystem::canonical(*path).string();
  Require(absl::StartsWith(real, std::filesystem::canonical(directory).string()));
}

// `Reply` is HeartbeatResponse or RegisterResponse.
template <typename Reply>
void TryDirectives(const Reply& reply) {
  size_t begun = 0;
  const auto count = [&begun](const auto&, const Directives::Done& done) {
    ++begun;
    done(absl::OkStatus());
  };
  auto directives = Directives::Create({.load = count, .unload = count, .drain = count}, [] {});
  const std::vector<v1::Directive> taken(reply.directives().begin(), reply.directives().end());
  directives->Take(taken);
  const size_t once = begun;
  Require(once <= static_cast<size_t>(reply.directives_size()));
  directives->Take(taken);
  Require(begun == once || reply.directives_size() > static_cast<int>(Directives::kMaxRemembered));
  directives->OnReported(directives->MakeReport());
}

}  // namespace
}  // namespace orcd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace orcd;
  static const Fixture fixture;
  if (size == 0) return 0;
  const grpc::Slice slice(data + 1, size - 1);
  const grpc::ByteBuffer bytes(&slice, 1);
  switch (data[0] % 17) {
    case 0:
      if (const auto request = ParseRequest<v1::GenerateRequest>(bytes); request.ok()) {
        TryBuild(TranslateRequest(*request), fixture.model());
      }
      break;
    case 1:
      if (const auto request = ParseRequest<v1::TokenizeRequest>(bytes); request.ok()) {
        (void)TranslateInput(*request, fixture.model());
      }
      break;
    case 2:
      if (const auto request = ParseRequest<v1::LoadRequest>(bytes); request.ok()) {
        TryLoad(ToLoadSpec(*request), fixture.directory());
      }
      break;
    case 3:
      if (const auto request = ParseRequest<v1::DrainRequest>(bytes); request.ok()) {
        const auto timeout = DrainTimeout(*request);
        Require(!timeout.ok() || !*timeout || **timeout >= absl::ZeroDuration());
      }
      break;
    case 4:
      if (const auto request = ParseRequest<v1::CancelRequest>(bytes); request.ok()) {
        (void)CheckRequestId(request->request_id());
      }
      break;
    case 5:
      (void)ParseRequest<v1::UnloadRequest>(bytes);
      break;
    case 6:
      if (const auto reply = ParseRequest<v1::HeartbeatResponse>(bytes); reply.ok()) {
        TryDirectives(*reply);
      }
      break;
    case 7:
      if (const auto reply = ParseRequest<v1::RegisterResponse>(bytes); reply.ok()) {
        TryDirectives(*reply);
      }
      break;
    case 8:
      if (const auto request = ParseRequest<v1::GenerateManyRequest>(bytes); request.ok()) {
        const auto timeout = ReadDuration(request->timeout(), "timeout");
        Require(!timeout.ok() || *timeout >= absl::ZeroDuration());
        (void)CheckRequestId(request->cancel().request_id());
        TryBuild(TranslateRequest(request->generate()), fixture.model());
      }
      break;
    case 9:
      if (const auto request = ParseRequest<vllm_wire::GenerateRequest>(bytes); request.ok()) {
        TryVllmGenerate(*request, fixture.model());
      }
      break;
    case 10:
      (void)ParseRequest<vllm_wire::AbortRequest>(bytes);
      break;
    case 11:
      (void)ParseRequest<vllm_wire::GetLoadsRequest>(bytes);
      break;
    case 12:
      if (const auto request = ParseRequest<inference::ModelInferRequest>(bytes); request.ok()) {
        TryInfer(*request, fixture.model());
      }
      break;
    case 13: {
      RequestBuilder request;
      const std::string json(reinterpret_cast<const char*>(data) + 1, size - 1);
      if (kserve::SamplingParameters(request).AddJson(json).ok()) {
        TryBuild(request, fixture.model());
      }
      break;
    }
    case 14:
      if (const auto request = ParseRequest<inference::RepositoryModelLoadRequest>(bytes);
          request.ok()) {
        if (const auto spec = kserve::ToLoadSpec(*request, fixture.directory(), {}); spec.ok()) {
          TryLoad(*spec, fixture.directory());
        }
      }
      break;
    case 15:
      if (const auto request = ParseRequest<inference::RepositoryModelUnloadRequest>(bytes);
          request.ok()) {
        Require(!kserve::ToUnloadSpec(*request).ok() ||
                !kserve::ToUnloadSpec(*request)->model_id.empty());
      }
      break;
    case 16: {
      const auto context = ParseTraceparent({reinterpret_cast<const char*>(data) + 1, size - 1});
      Require(!context || (context->has_parent() && ToHex(context->trace_id).size() == 32));
      break;
    }
  }
  return 0;
}
