#include "runtime/engine/load_model.h"

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/engine/self_check.h"

namespace orcd {

namespace {

absl::Status CheckNumerics(const std::shared_ptr<const Model>& model, Backend& backend,
                           const BackendMaker& maker, int threads, LoadObserver& observer) {
  if (!maker.self_check) return absl::OkStatus();
  std::unique_ptr<LayerReference> reference;
  if (maker.make_reference) {
    const int configured = backend.info().max_context;
    const int context = configured > 0 ? configured : model->spec().context_length;
    ORCD_ASSIGN_OR_RETURN(reference,
                          maker.make_reference(model, context, kSelfCheckTokens, threads));
  }
  return SelfCheck(*model, backend, reference.get(), observer);
}

absl::Status OutOfMemory(const std::string& path) {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("memory ran out while ", path,
                                " was loaded; use a smaller model or a smaller KV cache"),
                   {.reason = "INSUFFICIENT_MEMORY", .subject = "memory"});
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Model>> OpenModel(const std::string& path,
                                                       const LoadModelOptions& options,
                                                       LoadObserver& observer) {
  try {
    return Model::Load(path, options.model, observer);
  } catch (const std::bad_alloc&) {
    return OutOfMemory(path);
  }
}

absl::StatusOr<std::unique_ptr<Engine>> StartEngine(
    std::shared_ptr<const Model> model, const LoadModelOptions& options, const BackendMaker& maker,
    std::function<void(const absl::Status&)> on_fault, LoadObserver& observer) {
  const std::string path = model->gguf().files().front().path();
  try {
    BackendOptions backend_options = options.backend;
    backend_options.max_context = options.engine.max_context;
    ORCD_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          maker.make(model, backend_options, observer));
    ORCD_RETURN_IF_ERROR(CheckNumerics(model, *backend, maker, options.backend.threads, observer));
    ORCD_RETURN_IF_ERROR(model->CheckIntact(options.model.threads));
    return std::make_unique<Engine>(std::move(model), std::move(backend), options.engine,
                                    std::move(on_fault));
  } catch (const std::bad_alloc&) {
    return OutOfMemory(path);
  }
}

absl::StatusOr<std::unique_ptr<Engine>> LoadModel(const std::string& path,
                                                  const LoadModelOptions& options,
                                                  const BackendMaker& maker,
                                                  std::function<void(const absl::Status&)> on_fault,
                                                  LoadObserver& observer) {
  ORCD_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, OpenModel(path, options, observer));
  return StartEngine(std::move(model), options, maker, std::move(on_fault), observer);
}

}  // namespace orcd
