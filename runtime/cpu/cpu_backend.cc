#include "runtime/cpu/cpu_backend.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/backend/batch_checker.h"
#include "runtime/backend/kv_plan.h"
#include "runtime/base/error.h"
#include "runtime/cpu/forward.h"
#include "runtime/cpu/host_info.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/kv_caches.h"
#include "runtime/cpu/ops.h"
#include "runtime/cpu/prefault.h"
#include "runtime/cpu/thread_pool.h"

namespace orcd {
namespace {

using cpu::AvailableMemoryBytes;
using cpu::Forward;
using cpu::ForwardSequence;
using cpu::KvCaches;
using cpu::ThreadPool;

// A step of this size takes half a second for a model of half a billion parameters on two cores,
// and has enough tokens to share each reading of the weights.
constexpr int kDefaultStepTokens = 128;

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

absl::Status CheckOptions(const BackendOptions& options) {
  ORCD_RETURN_IF_ERROR(CheckBackendOptions(options));
  if (options.threads < 0 || options.threads > ThreadPool::kMaxThreads) {
    return InvalidField("threads",
                        absl::StrCat("is ", options.threads, ", must be 0 (one a core) to ",
                                     ThreadPool::kMaxThreads));
  }
  return absl::OkStatus();
}

// The blocks that the options ask for, or that suit the model and `available` bytes of memory.
absl::StatusOr<KvPlan> ChooseKvBlocks(const ModelSpec& spec, const BackendOptions& options,
                                      int64_t available, int64_t others) {
  const KvBlockBytes block_bytes =
      KvCaches::BlockBytes(spec, options.block_tokens, options.kv_type);
  if (options.kv_cache_bytes == 0) {
    KvPlan plan = PlanKv(spec, options, block_bytes, DefaultKvCacheBytes(available, others));
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

absl::Status CheckMemory(uint64_t weights, uint64_t kv, uint64_t activations, int64_t available) {
  const uint64_t needed = weights + kv + activations;
  if (needed <= static_cast<uint64_t>(available)) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("the model needs ", needed, " bytes of memory (weights ", weights, ", KV cache ",
                   kv, ", activations ", activations, ") and ", available,
                   " are available; lower kv_cache_bytes, max_seqs or max_step_tokens"),
      {.reason = "INSUFFICIENT_MEMORY", .subject = "memory"});
}

class CpuBackend : public Backend {
 public:
  // `kv` and `forward` refer to `pool` and to each other and stay where they are.
  CpuBackend(std::shared_ptr<const Model> model, const BackendOptions& options,
             std::unique_ptr<ThreadPool> pool, std::unique_ptr<KvCaches> kv,
             std::unique_ptr<Forward> forward);

  const BackendInfo& info() const override { return info_; }
  absl::Status Launch(const StepBatch& batch) override;
  absl::Status GiveMasks(std::span<const TokenMask> masks) override;
  absl::StatusOr<StepResult> Wait() override;

 private:
  void StartSlots(const StepBatch& batch);
  void ResolveTokens(const StepBatch& batch);
  // Adds the drawn tokens to the parts of `result`.
  void Sample(const StepBatch& batch, std::span<const float> logits, StepResult& result);
  // Scores the targets of the sequence whose first token is row `first_row` of the step.
  std::vector<SampledToken> ScoreTargets(const StepSequence& seq, int64_t first_row);
  SampledToken SampleOne(const StepSequence& seq, std::span<const float> logits, Sampler& sampler);

  const std::shared_ptr<const Model> model_;
  const std::unique_ptr<ThreadPool> pool_;
  const std::unique_ptr<KvCaches> kv_;
  const std::unique_ptr<Forward> forward_;
  BackendInfo info_;
  std::optional<BatchChecker> checker_;

  std::vector<Slot> slots_;
  // One for each thread.
  std::vector<Sampler> samplers_;
  // State of the step that runs.
  std::vector<int32_t> tokens_;
  std::vector<ForwardSequence> sequences_;
  // Indices of the sequences that draw.
  std::vector<size_t> sampled_;

  // The result of Launch until Wait returns it.
  std::optional<absl::StatusOr<StepResult>> result_;
};

CpuBackend::CpuBackend(std::shared_ptr<const Model> model, const BackendOptions& options,
                       std::unique_ptr<ThreadPool> pool, std::unique_ptr<KvCaches> kv,
                       std::unique_ptr<Forward> forward)
    : model_(std::move(model)),
      pool_(std::move(pool)),
      kv_(std::move(kv)),
      forward_(std::move(forward)),
      slots_(options.max_seqs),
      samplers_(pool_->threads()) {
  info_.name = "cpu";
  info_.device = CpuDeviceName();
  info_.threads = pool_->threads();
  info_.max_seqs = options.max_seqs;
  info_.max_step_tokens = options.max_step_tokens;
  info_.block_tokens = options.block_tokens;
  info_.kv_blocks = static_cast<int>(kv_->whole.blocks());
  info_.window_blocks = static_cast<int>(kv_->window_blocks());
  info_.max_context = ContextOf(model_->spec(), options);
  info_.max_in_flight = 1;
  info_.prompt_logprobs = true;
  info_.weights_bytes = model_->size_bytes();
  info_.kv_bytes = kv_->bytes();
  info_.workspace_bytes = forward_->workspace_bytes();
  checker_.emplace(info_, model_->spec());
  tokens_.reserve(options.max_step_tokens);
  sequences_.reserve(options.max_seqs);
  sampled_.reserve(options.max_seqs);
}

absl::Status CpuBackend::Launch(const StepBatch& batch) {
  if (result_.has_value()) {
    return absl::FailedPreconditionError("a step was launched before the last one was waited for");
  }
  ORCD_RETURN_IF_ERROR(checker_->Check(batch));
  StartSlots(batch);
  ResolveTokens(batch);
  const std::span<const float> logits = forward_->Run(sequences_, batch.tap);
  // Results computed from a file that changed meanwhile must not pass for the model's. If the file
  // was only touched, the step waits until its bytes have been checked against the digest.
  if (absl::Status intact = model_->CheckIntact(pool_->threads()); !intact.ok()) {
    result_ = intact;
  } else {
    StepResult result;
    result.parts.resize(batch.seqs.size());
    Sample(batch, logits, result);
    int64_t first_row = 0;
    for (size_t i = 0; i < batch.seqs.size(); ++i) {
      const StepSequence& seq = batch.seqs[i];
      PartResult& part = result.parts[i];
      bool& finite = slots_[seq.slot].finite;
      finite = finite && forward_->KvFinite(i);
      part.finite = finite;
      // Targets come after all samples, since they use the memory of `logits`.
      if (!seq.targets.empty()) part.target_logprobs = ScoreTargets(seq, first_row);
      first_row += static_cast<int64_t>(seq.tokens.size());
    }
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

void CpuBackend::ResolveTokens(const StepBatch& batch) {
  tokens_.clear();
  sequences_.clear();
  for (const StepSequence& seq : batch.seqs) {
    const size_t first = tokens_.size();
    for (int32_t token : seq.tokens) {
      tokens_.push_back(token == kPreviousSample ? *slots_[seq.slot].last_sample : token);
    }
    sequences_.push_back({.tokens = {tokens_.data() + first, seq.tokens.size()},
                          .first_position = seq.start_position,
                          .blocks = {seq.blocks, seq.window_blocks},
                          .logits = seq.sample});
  }
}

void CpuBackend::Sample(const StepBatch& batch, std::span<const float> logits, StepResult& result) {
  sampled_.clear();
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    if (batch.seqs[i].sample) sampled_.push_back(i);
  }
  const size_t vocab = static_cast<size_t>(model_->spec().vocab);
  pool_->ParallelFor(static_cast<int64_t>(sampled_.size()), [&](int64_t row, int thread) {
    const size_t i = sampled_[row];
    result.parts[i].samples.push_back(
        SampleOne(batch.seqs[i], logits.subspan(row * vocab, vocab), samplers_[thread]));
  });
}

std::vector<SampledToken> CpuBackend::ScoreTargets(const StepSequence& seq, int64_t first_row) {
  const int64_t targets = static_cast<int64_t>(seq.targets.size());
  const size_t vocab = static_cast<size_t>(model_->spec().vocab);
  std::vector<SampledToken> scored(targets);
  for (int64_t first = 0; first < targets; first += info_.max_seqs) {
    const int64_t count = std::min<int64_t>(info_.max_seqs, targets - first);
    const std::span<const float> logits = forward_->LogitsOfRows(first_row + first, count);
    pool_->ParallelFor(count, [&](int64_t i, int thread) {
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

SampledToken CpuBackend::SampleOne(const StepSequence& seq, std::span<const float> logits,
                                   Sampler& sampler) {
  Slot& slot = slots_[seq.slot];
  SampledToken sample;
  if (cpu::AllFinite(logits)) {
    const uint64_t position = static_cast<uint64_t>(seq.start_position) + seq.tokens.size();
    sample = sampler.Sample(logits, slot.params, slot.counts, seq.mask, position);
  } else {
    sample.finite = false;
  }
  slot.last_sample = sample.token;
  if (slot.params.has_penalties()) ++slot.counts[sample.token];
  return sample;
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
  const uint64_t activations =
      Forward::ActivationBytes(spec, options.max_step_tokens, options.max_seqs);
  ORCD_ASSIGN_OR_RETURN(const KvPlan plan,
                        ChooseKvBlocks(spec, options, available,
                                       static_cast<int64_t>(model->size_bytes() + activations)));
  ORCD_RETURN_IF_ERROR(CheckMemory(model->size_bytes(), plan.bytes(), activations, available));

  auto pool =
      std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : cpu::UsableCores());
  ORCD_ASSIGN_OR_RETURN(KvCaches caches,
                        KvCaches::Create(spec, options.block_tokens, options.kv_type, plan.blocks,
                                         plan.window_blocks));
  auto kv = std::make_unique<KvCaches>(std::move(caches));
  ORCD_ASSIGN_OR_RETURN(
      auto forward,
      Forward::Create(spec, model->weights(), ContextOf(spec, options), cpu::BestKernels(), *pool,
                      *kv, options.max_step_tokens, options.max_seqs));
  ORCD_RETURN_IF_ERROR(cpu::Prefault(model->gguf(), *pool, observer));
  ORCD_RETURN_IF_ERROR(model->CheckIntact(pool->threads()));
  return std::make_unique<CpuBackend>(std::move(model), options, std::move(pool), std::move(kv),
                                      std::move(forward));
}

int64_t DefaultKvCacheBytes(int64_t available, int64_t others) {
  return std::min(available / 4, std::max<int64_t>(available - others, 0) / 2);
}

std::string CpuDeviceName() {
  return absl::StrCat(cpu::ProcessorName(), " (", cpu::BestKernels().name, " kernels)");
}

}  // namespace orcd
