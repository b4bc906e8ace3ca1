#include "runtime/engine/load_model.h"

#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/engine/block_drafter.h"
#include "runtime/engine/draft_memory.h"
#include "runtime/engine/draft_vocabulary.h"
#include "runtime/engine/model_drafter.h"
#include "runtime/engine/ngram_drafter.h"
#include "runtime/engine/self_check.h"
#include "runtime/model/predict_block.h"

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
                          maker.make_reference(model, context, kSelfCheckReferenceTokens, threads));
  }
  return SelfCheck(*model, backend, reference.get(), observer);
}

// For a draft model: the progress of a load is that of the model itself.
class SilentObserver : public NullLoadObserver {
 public:
  explicit SilentObserver(LoadObserver& observer) : observer_(observer) {}
  bool cancelled() const override { return observer_.cancelled(); }

 private:
  LoadObserver& observer_;
};

struct MadeDrafter {
  std::unique_ptr<Drafter> drafter;
  SpeculationInfo info;
};

const std::string& PathOf(const Model& model) { return model.gguf().files().front().path(); }

// `options.backend` is that of the model which verifies guesses.
absl::StatusOr<std::unique_ptr<Backend>> PlaceDraft(const std::shared_ptr<const Model>& draft,
                                                    const LoadModelOptions& options,
                                                    const BackendMaker& maker,
                                                    LoadObserver& observer) {
  ORCD_ASSIGN_OR_RETURN(
      std::unique_ptr<Backend> backend,
      maker.make(draft, DraftBackendOptions(draft->spec(), options.backend), observer));
  ORCD_RETURN_IF_ERROR(CheckNumerics(draft, *backend, maker, options.backend.threads, observer));
  ORCD_RETURN_IF_ERROR(draft->CheckIntact(options.model.threads));
  return backend;
}

// Why the model's backend predicts no tokens, as a sentence.
absl::StatusOr<std::string> WhyNothingIsPredicted(const Model& model, const BackendInfo& backend) {
  ORCD_ASSIGN_OR_RETURN(const std::optional<PredictBlock> block,
                        PredictBlock::FromGguf(model.gguf(), model.spec(), model.weights()));
  if (!block.has_value()) {
    return std::string(
        "no tokens are guessed: the model's file holds no block that predicts tokens (nextn)");
  }
  return absl::StrCat("no tokens are guessed: the backend '", backend.name,
                      "' does not compute the block that predicts tokens");
}

// Makes the drafter for a backend that computes `model` and was made with options.backend, whose
// max_seqs are the backend's. `draft` is null unless it is a model.
absl::StatusOr<MadeDrafter> MakeDrafter(const Model& model, const BackendInfo& backend,
                                        const std::shared_ptr<const Model>& draft,
                                        const LoadModelOptions& options, const BackendMaker& maker,
                                        LoadObserver& observer) {
  MadeDrafter made;
  if (options.draft.kind == DraftKind::kNone) return made;
  if (backend.max_drafts == 0) {
    made.info.warning =
        absl::StrCat("no tokens are guessed: the backend '", backend.name, "' verifies no guesses");
    return made;
  }
  if (options.draft.kind == DraftKind::kNgram) {
    made.info.drafter = "ngram";
    made.drafter = std::make_unique<NgramDrafter>(backend.max_seqs);
    return made;
  }
  if (options.draft.kind == DraftKind::kBlock) {
    if (backend.max_predictions == 0) {
      ORCD_ASSIGN_OR_RETURN(made.info.warning, WhyNothingIsPredicted(model, backend));
      return made;
    }
    made.info.drafter = "mtp";
    made.drafter = std::make_unique<BlockDrafter>(backend.max_seqs);
    return made;
  }
  SilentObserver silent(observer);
  absl::StatusOr<std::unique_ptr<Backend>> placed = PlaceDraft(draft, options, maker, silent);
  const std::string& path = PathOf(*draft);
  if (!placed.ok()) return Annotate(placed.status(), absl::StrCat("draft model ", path));
  const BackendInfo& info = (*placed)->info();
  made.info.drafter = "model";
  made.info.model = ReplaceInvalidUtf8(path.substr(path.rfind('/') + 1));
  made.info.bytes = info.weights_bytes + info.kv_bytes + info.state_bytes + info.workspace_bytes;
  made.drafter = std::make_unique<ModelDrafter>(draft, *std::move(placed), model.spec().vocab);
  return made;
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
    ORCD_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model,
                          Model::Load(path, options.model, observer));
    // A damaged block fails a load before another model has made way for it.
    if (options.draft.kind == DraftKind::kBlock) {
      ORCD_RETURN_IF_ERROR(
          PredictBlock::FromGguf(model->gguf(), model->spec(), model->weights()).status());
    }
    return model;
  } catch (const std::bad_alloc&) {
    return OutOfMemory(path);
  }
}

absl::StatusOr<std::shared_ptr<const Model>> OpenDraftModel(const Model& model,
                                                            const LoadModelOptions& options,
                                                            LoadObserver& observer) {
  if (options.draft.kind != DraftKind::kModel) return std::shared_ptr<const Model>();
  const std::string& path = options.draft.path;
  ModelLoadOptions load;
  load.expected_sha256 = options.draft.expected_sha256;
  load.threads = options.model.threads;
  load.sampling_defaults = false;
  SilentObserver silent(observer);
  try {
    ORCD_ASSIGN_OR_RETURN(std::shared_ptr<const Model> draft, Model::Load(path, load, silent));
    const absl::Status same = CheckDraftVocabulary(model.tokenizer(), draft->tokenizer());
    if (!same.ok()) return Annotate(same, path);
    return draft;
  } catch (const std::bad_alloc&) {
    return OutOfMemory(path);
  }
}

absl::StatusOr<std::unique_ptr<Engine>> StartEngine(
    std::shared_ptr<const Model> model, const LoadModelOptions& options, const BackendMaker& maker,
    std::function<void(const absl::Status&)> on_fault, LoadObserver& observer,
    std::shared_ptr<const Model> draft) {
  const std::string path = PathOf(*model);
  try {
    LoadModelOptions own = options;
    own.backend.max_context = options.engine.max_context;
    own.backend.predict = options.draft.kind == DraftKind::kBlock;
    if (draft == nullptr) {
      ORCD_ASSIGN_OR_RETURN(draft, OpenDraftModel(*model, options, observer));
    }
    if (draft != nullptr) {
      ORCD_RETURN_IF_ERROR(CheckBackendOptions(own.backend));
      own.backend.reserved_bytes +=
          DraftMemoryBytes(*draft, DraftBackendOptions(draft->spec(), own.backend));
      own.backend.reserved_bytes_a_seq += DraftStateBytes(draft->spec());
    }
    ORCD_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          maker.make(model, own.backend, observer));
    own.backend.max_seqs = backend->info().max_seqs;
    ORCD_RETURN_IF_ERROR(CheckNumerics(model, *backend, maker, own.backend.threads, observer));
    ORCD_RETURN_IF_ERROR(model->CheckIntact(own.model.threads));
    ORCD_ASSIGN_OR_RETURN(MadeDrafter made,
                          MakeDrafter(*model, backend->info(), draft, own, maker, observer));
    return std::make_unique<Engine>(std::move(model), std::move(backend), options.engine,
                                    std::move(on_fault), std::move(made.drafter),
                                    std::move(made.info));
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
