// Loads a model file and starts an engine that serves it.
#ifndef ORCD_RUNTIME_ENGINE_LOAD_MODEL_H_
#define ORCD_RUNTIME_ENGINE_LOAD_MODEL_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/layer_reference.h"
#include "runtime/base/load_observer.h"
#include "runtime/engine/engine.h"
#include "runtime/model/model.h"

namespace orcd {

enum class DraftKind { kNone, kNgram, kBlock, kModel };

// Guesses of the tokens that come next; see drafter.h.
struct DraftOptions {
  // kBlock: what the model's own block predicts, where its file has one (predict_block.h).
  DraftKind kind = DraftKind::kNone;
  // kModel: a GGUF file whose vocabulary is the model's but for padding (draft_vocabulary.h).
  std::string path;
  // SHA-256, in hex, that the file must have; empty: not checked.
  std::string expected_sha256;
};

struct LoadModelOptions {
  ModelLoadOptions model;
  // backend.max_context is overwritten by engine.max_context, and backend.predict by draft.kind.
  BackendOptions backend;
  EngineOptions engine;
  DraftOptions draft = {};
};

// Makes the backend, and the reference that the self-check compares it with (null: no reference, as
// for the reference backend itself).
struct BackendMaker {
  BackendFactory make;
  LayerReferenceFactory make_reference = nullptr;
  // False only for a backend that computes nothing of the model and so has no numerics to check.
  bool self_check = true;
};

// The first half of LoadModel: opens and checks the file. Places no weights.
absl::StatusOr<std::shared_ptr<const Model>> OpenModel(const std::string& path,
                                                       const LoadModelOptions& options,
                                                       LoadObserver& observer);

// Opens and checks the file of options.draft, if it is a model's, and that its vocabulary is the
// one of `model`; null if the draft is no model. Places no weights. Messages begin with the draft's
// path. Reports no progress.
absl::StatusOr<std::shared_ptr<const Model>> OpenDraftModel(const Model& model,
                                                            const LoadModelOptions& options,
                                                            LoadObserver& observer);

// The second half: places the weights, runs the self-check, makes the drafter, starts the engine.
// `draft` is the result of OpenDraftModel for `model`; if it is null, StartEngine opens the file. A
// draft model has a backend of its own and passes a self-check too; its errors fail the load, and
// begin with `draft model` and its path. If the model's backend verifies no drafts or does not
// predict, or the file has no block for that, the engine starts without a drafter, and
// SpeculationInfo::warning says so.
absl::StatusOr<std::unique_ptr<Engine>> StartEngine(
    std::shared_ptr<const Model> model, const LoadModelOptions& options,
    const BackendMaker& backend, std::function<void(const absl::Status&)> on_fault,
    LoadObserver& observer, std::shared_ptr<const Model> draft = nullptr);

// Opens and checks the file, places the weights, runs the self-check and starts the engine: the
// stages of LoadStage in order. A load that fails or is cancelled (kCancelled) leaves nothing
// behind. The self-check (self_check.h) fails the load if the backend computes garbage, so such a
// worker never becomes ready.
absl::StatusOr<std::unique_ptr<Engine>> LoadModel(const std::string& path,
                                                  const LoadModelOptions& options,
                                                  const BackendMaker& backend,
                                                  std::function<void(const absl::Status&)> on_fault,
                                                  LoadObserver& observer);

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_LOAD_MODEL_H_
