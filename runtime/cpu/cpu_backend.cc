#include "runtime/cpu/cpu_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/backend/batch_checker.h"
#include "runtime/backend/drafts.h"
#include "runtime/backend/kv_plan.h"
#include "runtime/backend/state_cells.h"
#include "runtime/base/error.h"
#include "runtime/cpu/forward.h"
#include "runtime/cpu/host_info.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/kv_caches.h"
#include "runtime/cpu/numeric_identity.h"
#include "runtime/cpu/ops.h"
#include "runtime/cpu/prefault.h"
#include "runtime/cpu/recurrent_states.h"
#include "runtime/cpu/step_predictor.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/predict_block.h"

namespace orcd {
namespace {

using cpu::AvailableMemoryBytes;
using cpu::Forward;
using cpu::ForwardLimits;
using cpu::ForwardSequence;
using cpu::KvCaches;
using cpu::PredictForward;
using cpu::RecurrentStates;
using cpu::StepPredictor;
using cpu::ThreadPool;

// A step of this size takes half a second for a model of half a billion parameters on two cores,
// and has enough tokens to share each reading of the weights.
constexpr int kDefaultStepTokens = 128;
// A CPU's step takes longer with every token, so that more drafts would not pay.
constexpr int kMaxDrafts = 16;
// Drafts of a step of a model with recurrent layers, of which inputs of every layer are kept.
constexpr int kMaxStepDrafts = 64;
// The cells of recurrent states, if the options do not give their size: this many, as far as they
// fit into these bytes.
constexpr int kDefaultStateCells = 16;
constexpr int64_t kMaxDefaultStateBytes = int64_t{256} << 20;

// State of a sequence that outlives a step.
struct Slot {
  SamplingParams params;
  // Kept only if the parameters have penalties.
  TokenCounts counts;
  // The token drawn last; none before the first draw.
  std::optional<int32_t> last_sample;
  // PartResult::finite.
  bool finite = true;
};

// A part of the step that draws.
struct DrawingPart {
  // Its index in the batch.
  size_t index;
  // Row of the step with the last of its tokens, and number of rows from there on after which it
  // may draw: that one, and those of the drafts that may be believed.
  int64_t first_row;
  int64_t rows;
  // Index of its first row among those whose logits are computed together.
  size_t first_logits;
};

// Rows whose logits are computed together: enough for every sequence without drafts, and for a
// sequence with all drafts.
int MaxLogitRows(const BackendOptions& options) {
  return std::min(options.max_step_tokens, options.max_seqs + kMaxDrafts);
}

ForwardLimits LimitsOf(const ModelSpec& spec, const BackendOptions& options) {
  return {.context = ContextOf(spec, options),
          .step_tokens = options.max_step_tokens,
          .seqs = options.max_seqs,
          .logit_rows = MaxLogitRows(options),
          .drafts = std::min(options.max_step_tokens, kMaxStepDrafts)};
}

absl::Status CheckOptions(const BackendOptions& options) {
  ORCD_RETURN_IF_ERROR(CheckBackendOptions(options));
  if (options.threads < 0 || options.threads > ThreadPool::kMaxThreads) {
    return InvalidField("threads",
                        absl::StrCat("is ", options.threads, ", must be 0 (one a core) to ",
                                     ThreadPool::kMaxThreads));
  }
  return absl::OkStatus();
}

// Without the numbers of blocks, which follow from the memory that the rest leaves.
StepPredictor::Options PredictOptions(const ModelSpec& spec, const BackendOptions& options) {
  return {.context = ContextOf(spec, options),
          .step_tokens = options.max_step_tokens,
          .seqs = options.max_seqs,
          .kv = {.block_tokens = options.block_tokens, .type = options.kv_type}};
}

// Bytes of a block of the model, and of its own block that predicts, if it is loaded.
KvBlockBytes BlockBytes(const Model& model, const std::optional<PredictBlock>& predict,
                        const BackendOptions& options) {
  KvBlockBytes bytes = KvCaches::BlockBytes(model.spec(), options.block_tokens, options.kv_type);
  if (!predict.has_value()) return bytes;
  const KvBlockBytes more =
      PredictForward::BlockBytes(model, *predict, options.block_tokens, options.kv_type);
  bytes.whole += more.whole;
  bytes.window += more.window;
  return bytes;
}

// The blocks that the options ask for, or that suit the model and `available` bytes of memory.
absl::StatusOr<KvPlan> ChooseKvBlocks(const ModelSpec& spec, const KvBlockBytes& block_bytes,
                                      const BackendOptions& options, int64_t available,
                                      int64_t others) {
  if (options.kv_cache_bytes == 0) {
    const int64_t reserved =
        options.reserved_bytes + options.max_seqs * options.reserved_bytes_a_seq;
    const int64_t unreserved = std::max<int64_t>(available - reserved, 0);
    KvPlan plan = PlanKv(spec, options, block_bytes, DefaultKvCacheBytes(unreserved, others));
    plan.blocks = std::min(plan.blocks, BlocksOfAllSequences(spec, options));
    // If not even one block fits, CheckMemory reports that with all the numbers.
    plan.blocks = std::max<int64_t>(plan.blocks, 1);
    if (block_bytes.window > 0) plan.window_blocks = std::max<int64_t>(plan.window_blocks, 1);
    return plan;
  }
  const KvPlan plan = PlanKv(spec, options, block_bytes, options.kv_cache_bytes);
  ORCD_RETURN_IF_ERROR(CheckHoldsABlock(plan, options, options.kv_cache_bytes));
  return plan;
}

// Bytes of the recurrent states of slots and cells.
uint64_t StateBytes(const ModelSpec& spec, const BackendOptions& options, int cells) {
  const uint64_t states = static_cast<uint64_t>(options.max_seqs) + static_cast<uint64_t>(cells);
  return states * spec.state_floats() * sizeof(float);
}

absl::Status CheckMemory(uint64_t weights, uint64_t kv, uint64_t states, uint64_t activations,
                         int64_t available) {
  const uint64_t needed = weights + kv + states + activations;
  if (needed <= static_cast<uint64_t>(available)) return absl::OkStatus();
  const std::string of_states =
      states > 0 ? absl::StrCat(", recurrent states ", states) : std::string();
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("the model needs ", needed, " bytes of memory (weights ", weights, ", KV cache ",
                   kv, of_states, ", activations ", activations, ") and ", available,
                   " are available; lower kv_cache_bytes, max_seqs or max_step_tokens"),
      {.reason = "INSUFFICIENT_MEMORY", .subject = "memory"});
}

// Draws the token at `position` of the slot's sequence, and counts it.
SampledToken SampleOne(Slot& slot, std::span<const float> logits, const TokenMask& mask,
                       uint64_t position, Sampler& sampler) {
  SampledToken sample;
  if (cpu::AllFinite(logits)) {
    sample = sampler.Sample(logits, slot.params, slot.counts, mask, position);
  } else {
    sample.finite = false;
  }
  slot.last_sample = sample.token;
  if (slot.params.has_penalties()) ++slot.counts[sample.token];
  return sample;
}

class CpuBackend : public Backend {
 public:
  // `kv`, `forward` and `predictor`, which may be null, refer to `pool` and to each other and stay
  // where they are.
  CpuBackend(std::shared_ptr<const Model> model, const BackendOptions& options,
             std::unique_ptr<ThreadPool> pool, std::unique_ptr<KvCaches> kv, RecurrentStates states,
             std::unique_ptr<Forward> forward, std::unique_ptr<StepPredictor> predictor);

  const BackendInfo& info() const override { return info_; }
  absl::Status Launch(const StepBatch& batch) override;
  absl::Status GiveMasks(std::span<const TokenMask> masks) override;
  absl::StatusOr<StepResult> Wait() override;
  std::vector<float> RecurrentState(int32_t slot) const override {
    const std::span<const float> state = states_.slot(slot);
    return {state.begin(), state.end()};
  }

 private:
  void StartSlots(const StepBatch& batch);
  void RestoreStates(const StepBatch& batch);
  // Moves the slots' states on by the drafts that were right.
  void AdvanceStates(const StepBatch& batch, const StepResult& result);
  void ResolveTokens(const StepBatch& batch);
  // Draws and scores after the step's layers.
  StepResult Results(const StepBatch& batch);
  // Adds the tokens that the parts in drawing_ draw to those of `result`.
  void Sample(const StepBatch& batch, StepResult& result);
  // Scores the targets of the sequence whose first token is row `first_row` of the step.
  std::vector<SampledToken> ScoreTargets(const StepSequence& seq, int64_t first_row);

  const std::shared_ptr<const Model> model_;
  const std::unique_ptr<ThreadPool> pool_;
  const std::unique_ptr<KvCaches> kv_;
  const RecurrentStates states_;
  const std::unique_ptr<Forward> forward_;
  // Null if no tokens are predicted.
  const std::unique_ptr<StepPredictor> predictor_;
  const int max_logit_rows_;
  BackendInfo info_;
  std::optional<BatchChecker> checker_;

  std::vector<Slot> slots_;
  // One for each thread.
  std::vector<Sampler> samplers_;
  // State of the step that runs.
  std::vector<int32_t> tokens_;
  std::vector<cpu::SavedState> saves_;
  std::vector<ForwardSequence> sequences_;
  std::vector<DrawingPart> drawing_;
  // Rows of the step whose logits are computed together.
  std::vector<int64_t> logit_rows_;

  // The result of Launch until Wait returns it.
  std::optional<absl::StatusOr<StepResult>> result_;
};

CpuBackend::CpuBackend(std::shared_ptr<const Model> model, const BackendOptions& options,
                       std::unique_ptr<ThreadPool> pool, std::unique_ptr<KvCaches> kv,
                       RecurrentStates states, std::unique_ptr<Forward> forward,
                       std::unique_ptr<StepPredictor> predictor)
    : model_(std::move(model)),
      pool_(std::move(pool)),
      kv_(std::move(kv)),
      states_(std::move(states)),
      forward_(std::move(forward)),
      predictor_(std::move(predictor)),
      max_logit_rows_(MaxLogitRows(options)),
      slots_(options.max_seqs),
      samplers_(pool_->threads()) {
  info_.name = "cpu";
  info_.device = CpuDeviceName();
  info_.threads = pool_->threads();
  info_.numeric_identity = CpuNumericIdentity(options.kv_type);
  info_.max_seqs = options.max_seqs;
  info_.max_step_tokens = options.max_step_tokens;
  info_.block_tokens = options.block_tokens;
  info_.kv_blocks = static_cast<int>(kv_->whole.blocks());
  info_.window_blocks = static_cast<int>(kv_->window_blocks());
  info_.max_context = ContextOf(model_->spec(), options);
  info_.max_in_flight = 1;
  info_.prompt_logprobs = true;
  info_.max_drafts = kMaxDrafts;
  info_.recurrent = model_->spec().recurrent();
  if (info_.recurrent) {
    info_.max_step_drafts = LimitsOf(model_->spec(), options).drafts;
    info_.state_cells = states_.cells();
    info_.state_bytes = states_.bytes();
    info_.state_cell_bytes = states_.cell_bytes();
  }
  info_.weights_bytes = model_->size_bytes();
  info_.kv_bytes = kv_->bytes();
  info_.workspace_bytes = forward_->workspace_bytes();
  if (predictor_ != nullptr) {
    info_.max_predictions = kMaxDrafts;
    info_.kv_bytes += predictor_->kv_bytes();
    info_.workspace_bytes += predictor_->workspace_bytes();
  }
  checker_.emplace(info_, model_->spec());
  tokens_.reserve(options.max_step_tokens);
  saves_.reserve(info_.state_cells);
  sequences_.reserve(options.max_seqs);
  drawing_.reserve(options.max_seqs);
  logit_rows_.reserve(max_logit_rows_);
}

absl::Status CpuBackend::Launch(const StepBatch& batch) {
  if (result_.has_value()) {
    return absl::FailedPreconditionError("a step was launched before the last one was waited for");
  }
  ORCD_RETURN_IF_ERROR(checker_->Check(batch));
  StartSlots(batch);
  ResolveTokens(batch);
  RestoreStates(batch);
  forward_->Run(sequences_, batch.tap);
  StepResult result = Results(batch);
  AdvanceStates(batch, result);
  if (predictor_ != nullptr) predictor_->Run(batch, sequences_, *forward_, result);
  // Results computed from a file that changed meanwhile must not pass for the model's. If the file
  // was only touched, the step waits until its bytes have been checked against the digest.
  if (absl::Status intact = model_->CheckIntact(pool_->threads()); !intact.ok()) {
    result_ = intact;
  } else {
    result_ = std::move(result);
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::GiveMasks(std::span<const TokenMask> masks) {
  return checker_->CheckMasks(masks);
}

absl::StatusOr<StepResult> CpuBackend::Wait() {
  if (!result_.has_value()) {
    return absl::FailedPreconditionError("there is no step to wait for");
  }
  checker_->OnWait();
  return *std::exchange(result_, std::nullopt);
}

void CpuBackend::StartSlots(const StepBatch& batch) {
  for (const StepSequence& seq : batch.seqs) {
    if (seq.start_params == nullptr) continue;
    Slot& slot = slots_[seq.slot];
    slot.params = *seq.start_params;
    slot.last_sample.reset();
    slot.finite = true;
    slot.counts.clear();
    if (!slot.params.has_penalties()) continue;
    CountTokens(seq.start_history, seq.start_prompt_tokens, slot.params, slot.counts);
  }
}

void CpuBackend::RestoreStates(const StepBatch& batch) {
  for (const StepSequence& seq : batch.seqs) {
    if (seq.restore_state < 0) continue;
    cpu::CopyState(*pool_, states_.cell(seq.restore_state), states_.slot(seq.slot));
  }
}

void CpuBackend::AdvanceStates(const StepBatch& batch, const StepResult& result) {
  if (!info_.recurrent) return;
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    if (batch.seqs[i].drafts.empty()) continue;
    forward_->AdvanceState(i, std::ssize(result.parts[i].samples) - 1);
  }
}

void CpuBackend::ResolveTokens(const StepBatch& batch) {
  tokens_.clear();
  saves_.clear();
  sequences_.clear();
  for (const StepSequence& seq : batch.seqs) {
    const size_t first_save = saves_.size();
    for (const StateSave& save : seq.save_states) {
      saves_.push_back({.tokens = save.tokens, .state = states_.cell(save.cell)});
    }
    const size_t first = tokens_.size();
    for (int32_t token : seq.tokens) {
      tokens_.push_back(token == kPreviousSample ? *slots_[seq.slot].last_sample : token);
    }
    tokens_.insert(tokens_.end(), seq.drafts.begin(), seq.drafts.end());
    sequences_.push_back({.tokens = std::span(tokens_).subspan(first),
                          .first_position = seq.start_position,
                          .blocks = {seq.blocks, seq.window_blocks},
                          .drafts = std::ssize(seq.drafts),
                          .state = states_.slot(seq.slot),
                          .saves = std::span(saves_).subspan(first_save)});
  }
}

StepResult CpuBackend::Results(const StepBatch& batch) {
  StepResult result;
  result.parts.resize(batch.seqs.size());
  result.expert_load = forward_->TakeExpertLoad();
  drawing_.clear();
  int64_t first_row = 0;
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    const StepSequence& seq = batch.seqs[i];
    const int64_t tokens = std::ssize(seq.tokens);
    const int64_t finite_rows = forward_->FiniteRows(i);
    bool& finite = slots_[seq.slot].finite;
    finite = finite && finite_rows >= tokens;
    result.parts[i].finite = finite;
    if (seq.sample) {
      drawing_.push_back({.index = i,
                          .first_row = first_row + tokens - 1,
                          .rows = 1 + std::max<int64_t>(finite_rows - tokens, 0),
                          .first_logits = 0});
    }
    first_row += RowsOf(seq);
  }
  Sample(batch, result);
  first_row = 0;
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    const StepSequence& seq = batch.seqs[i];
    if (!seq.targets.empty()) result.parts[i].target_logprobs = ScoreTargets(seq, first_row);
    first_row += RowsOf(seq);
  }
  return result;
}

void CpuBackend::Sample(const StepBatch& batch, StepResult& result) {
  const size_t vocab = static_cast<size_t>(model_->spec().vocab);
  for (auto first = drawing_.begin(); first != drawing_.end();) {
    // As many parts as the logits have room for; a part alone always fits.
    logit_rows_.clear();
    auto end = first;
    for (; end != drawing_.end() && std::ssize(logit_rows_) + end->rows <= max_logit_rows_; ++end) {
      end->first_logits = logit_rows_.size();
      for (int64_t i = 0; i < end->rows; ++i) logit_rows_.push_back(end->first_row + i);
    }
    const std::span<const float> logits = forward_->LogitsOfRows(logit_rows_);
    pool_->ParallelFor(end - first, [&](int64_t i, int thread) {
      const DrawingPart& part = first[i];
      const StepSequence& seq = batch.seqs[part.index];
      const auto draw = [&](size_t index, const TokenMask& mask) {
        const uint64_t position = seq.start_position + seq.tokens.size() + index;
        return SampleOne(slots_[seq.slot],
                         logits.subspan((part.first_logits + index) * vocab, vocab), mask, position,
                         samplers_[thread]);
      };
      DrawWhileRight(seq, part.rows - 1, draw, result.parts[part.index].samples);
    });
    first = end;
  }
}

std::vector<SampledToken> CpuBackend::ScoreTargets(const StepSequence& seq, int64_t first_row) {
  const int64_t targets = std::ssize(seq.targets);
  const size_t vocab = static_cast<size_t>(model_->spec().vocab);
  std::vector<SampledToken> scored(targets);
  for (int64_t first = 0; first < targets; first += max_logit_rows_) {
    logit_rows_.resize(std::min<int64_t>(max_logit_rows_, targets - first));
    std::iota(logit_rows_.begin(), logit_rows_.end(), first_row + first);
    const std::span<const float> logits = forward_->LogitsOfRows(logit_rows_);
    pool_->ParallelFor(std::ssize(logit_rows_), [&](int64_t i, int thread) {
      const std::span<const float> row = logits.subspan(i * vocab, vocab);
      SampledToken& target = scored[first + i];
      if (cpu::AllFinite(row)) {
        target = samplers_[thread].Score(row, seq.targets[first + i], seq.target_logprobs);
      } else {
        target.finite = false;
      }
    });
  }
  return scored;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(std::shared_ptr<const Model> model,
                                                          const BackendOptions& asked,
                                                          LoadObserver& observer) {
  ORCD_RETURN_IF_ERROR(CheckOptions(asked));
  BackendOptions options = asked;
  if (options.max_step_tokens == 0) {
    options.max_step_tokens = std::max(kDefaultStepTokens, options.max_seqs);
  }
  const ModelSpec& spec = model->spec();
  const int64_t available = AvailableMemoryBytes();
  const ForwardLimits limits = LimitsOf(spec, options);
  std::optional<PredictBlock> block;
  if (options.predict) {
    ORCD_ASSIGN_OR_RETURN(block, PredictBlock::FromGguf(model->gguf(), spec, model->weights()));
  }
  StepPredictor::Options predict = PredictOptions(spec, options);
  uint64_t activations = Forward::ActivationBytes(spec, limits);
  if (block.has_value()) activations += StepPredictor::WorkspaceBytes(*model, *block, predict);
  const int64_t cell_bytes = spec.state_floats() * static_cast<int64_t>(sizeof(float));
  const int cells = StateCells(options, cell_bytes,
                               std::min(kDefaultStateCells * cell_bytes, kMaxDefaultStateBytes));
  const uint64_t state_bytes = StateBytes(spec, options, cells);
  ORCD_ASSIGN_OR_RETURN(
      const KvPlan plan,
      ChooseKvBlocks(spec, BlockBytes(*model, block, options), options, available,
                     static_cast<int64_t>(model->size_bytes() + state_bytes + activations)));
  ORCD_RETURN_IF_ERROR(
      CheckMemory(model->size_bytes(), plan.bytes(), state_bytes, activations, available));

  auto pool =
      std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : cpu::UsableCores());
  ORCD_ASSIGN_OR_RETURN(KvCaches caches,
                        KvCaches::Create(spec, options.block_tokens, options.kv_type, plan.blocks,
                                         plan.window_blocks));
  auto kv = std::make_unique<KvCaches>(std::move(caches));
  ORCD_ASSIGN_OR_RETURN(RecurrentStates states,
                        RecurrentStates::Create(spec.state_floats(), options.max_seqs, cells));
  ORCD_ASSIGN_OR_RETURN(auto forward, Forward::Create(spec, model->weights(), cpu::BestKernels(),
                                                      *pool, *kv, limits));
  std::unique_ptr<StepPredictor> predictor;
  if (block.has_value()) {
    predict.kv.blocks = plan.blocks;
    predict.kv.window_blocks = plan.window_blocks;
    ORCD_ASSIGN_OR_RETURN(predictor, StepPredictor::Create(*model, *block, *pool, predict));
  }
  ORCD_RETURN_IF_ERROR(cpu::Prefault(model->gguf(), *pool, observer));
  ORCD_RETURN_IF_ERROR(model->CheckIntact(pool->threads()));
  return std::make_unique<CpuBackend>(std::move(model), options, std::move(pool), std::move(kv),
                                      std::move(states), std::move(forward), std::move(predictor));
}

int64_t DefaultKvCacheBytes(int64_t available, int64_t others) {
  return std::min(available / 4, std::max<int64_t>(available - others, 0) / 2);
}

std::string CpuDeviceName() {
  return absl::StrCat(cpu::ProcessorName(), " (", cpu::BestKernels().name, " kernels)");
}

}  // namespace orcd
