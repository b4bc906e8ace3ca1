// From a file's path to an engine that serves it.
#ifndef ORCD_RUNTIME_ENGINE_LOAD_MODEL_H_
#define ORCD_RUNTIME_ENGINE_LOAD_MODEL_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/backend.h"
#include "runtime/engine/engine.h"
#include "runtime/layer_reference.h"
#include "runtime/load_observer.h"
#include "runtime/model/model.h"

namespace orcd {

struct LoadModelOptions {
  ModelLoadOptions model;
  // Its max_context is the engine's.
  BackendOptions backend;
  EngineOptions engine;
};

// What computes, and what it is held against before it may: null for none, as for the reference
// itself.
struct BackendMaker {
  BackendFactory make;
  LayerReferenceFactory make_reference = nullptr;
  // False only where nothing of the model is computed, so that there are no numerics to check.
  bool self_check = true;
};

// The first half of LoadModel: opens and checks the file, and places nothing.
absl::StatusOr<std::shared_ptr<const Model>> OpenModel(const std::string& path,
                                                       const LoadModelOptions& options,
                                                       LoadObserver& observer);

// The second half: places the weights, runs the self-check, starts the engine.
absl::StatusOr<std::unique_ptr<Engine>> StartEngine(
    std::shared_ptr<const Model> model, const LoadModelOptions& options,
    const BackendMaker& backend, std::function<void(const absl::Status&)> on_fault,
    LoadObserver& observer);

// Opens and checks the file, places the weights, runs the self-check, starts the engine: the stages
// of LoadStage in order. A load that fails or is cancelled (kCancelled) leaves nothing behind. The
// self-check (self_check.h) fails the load where the backend computes garbage: a worker never
// becomes ready with it.
absl::StatusOr<std::unique_ptr<Engine>> LoadModel(const std::string& path,
                                                  const LoadModelOptions& options,
                                                  const BackendMaker& backend,
                                                  std::function<void(const absl::Status&)> on_fault,
                                                  LoadObserver& observer);

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_LOAD_MODEL_H_
