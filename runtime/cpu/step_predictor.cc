#include "runtime/cpu/step_predictor.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/time/time.h"
#include "runtime/backend/drafts.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "runtime/cpu/ops.h"
#include "runtime/cpu/rows.h"

namespace orcd::cpu {
namespace {

ForwardLimits LimitsOf(const StepPredictor::Options& options) {
  return {.context = options.context,
          .step_tokens = options.step_tokens,
          .seqs = options.seqs,
          .logit_rows = std::min(options.seqs, options.step_tokens)};
}

uint64_t HiddenBytes(const ModelSpec& spec, const StepPredictor::Options& options) {
  const uint64_t rows = uint64_t{2} * options.seqs + options.step_tokens;
  return rows * spec.hidden * sizeof(float);
}

}  // namespace

uint64_t StepPredictor::WorkspaceBytes(const Model& model, const PredictBlock& block,
                                       const Options& options) {
  return HiddenBytes(model.spec(), options) +
         PredictForward::ActivationBytes(model, block, LimitsOf(options));
}

absl::StatusOr<std::unique_ptr<StepPredictor>> StepPredictor::Create(const Model& model,
                                                                     const PredictBlock& block,
                                                                     ThreadPool& pool,
                                                                     const Options& options) {
  ORCD_ASSIGN_OR_RETURN(MappedMemory memory,
                        MappedMemory::Create(HiddenBytes(model.spec(), options), "hidden states"));
  ORCD_ASSIGN_OR_RETURN(auto forward,
                        PredictForward::Create(model, block, pool, options.kv, LimitsOf(options)));
  return std::unique_ptr<StepPredictor>(
      new StepPredictor(model, pool, options, std::move(memory), std::move(forward)));
}

StepPredictor::StepPredictor(const Model& model, ThreadPool& pool, const Options& options,
                             MappedMemory memory, std::unique_ptr<PredictForward> forward)
    : pool_(pool),
      hidden_(model.spec().hidden),
      vocab_(model.spec().vocab),
      memory_(std::move(memory)),
      of_slots_(reinterpret_cast<float*>(memory_.bytes().data())),
      of_step_(of_slots_ + options.seqs * hidden_),
      forward_(std::move(forward)) {
  model_rows_.reserve(options.step_tokens);
  rows_.reserve(options.seqs);
  predicting_.reserve(options.seqs);
  tokens_.reserve(options.seqs);
}

void StepPredictor::Run(const StepBatch& batch, std::span<const ForwardSequence> sequences,
                        Forward& forward, StepResult& result) {
  Store(batch, sequences, forward, result);
  if (predicting_.empty()) return;
  const absl::Time begin = SteadyNow();
  Predict(sequences, result);
  result.prediction_seconds = absl::ToDoubleSeconds(SteadyNow() - begin);
}

void StepPredictor::Store(const StepBatch& batch, std::span<const ForwardSequence> sequences,
                          Forward& forward, const StepResult& result) {
  rows_.clear();
  predicting_.clear();
  int64_t first_row = 0;
  float* hidden = of_step_;
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    const StepSequence& seq = batch.seqs[i];
    const PartResult& part = result.parts[i];
    const std::span<float> of_slot = Row(of_slots_, seq.slot, hidden_);
    if (seq.start_params != nullptr) std::ranges::fill(of_slot, 0.0f);
    const int64_t right = std::max<int64_t>(std::ssize(part.samples) - 1, 0);
    const int64_t rows = std::ssize(seq.tokens) + right;
    model_rows_.resize(rows);
    std::iota(model_rows_.begin(), model_rows_.end(), first_row);
    first_row += RowsOf(seq);
    // Nobody reads what follows from numbers that are not finite.
    if (!part.finite) continue;
    std::ranges::copy(of_slot, hidden);
    forward.HeadInputs(model_rows_, hidden + hidden_);
    const int64_t skipped = seq.start_position == 0 ? 1 : 0;
    if (rows > skipped) {
      rows_.push_back({.tokens = sequences[i].tokens.first(rows).subspan(skipped),
                       .first_position = seq.start_position + skipped,
                       .blocks = sequences[i].blocks,
                       .hidden = hidden + skipped * hidden_});
    }
    hidden += rows * hidden_;
    std::copy_n(hidden, hidden_, of_slot.data());
    const int64_t position = seq.start_position + rows;
    const int64_t room = forward_->Room(sequences[i].blocks) - position;
    const int64_t count = std::min<int64_t>(seq.predictions, room);
    if (count > 0 && part.samples.back().finite) {
      predicting_.push_back(
          {.part = i, .position = position, .left = count, .hidden = of_slot.data()});
    }
    hidden += hidden_;
  }
  if (!rows_.empty()) forward_->Store(rows_);
}

void StepPredictor::Predict(std::span<const ForwardSequence> sequences, StepResult& result) {
  while (!predicting_.empty()) {
    rows_.clear();
    tokens_.clear();
    for (const Predicting& next : predicting_) {
      const PartResult& part = result.parts[next.part];
      tokens_.push_back(part.predictions.empty() ? part.samples.back().token
                                                 : part.predictions.back());
      rows_.push_back({.tokens = {&tokens_.back(), 1},
                       .first_position = next.position,
                       .blocks = sequences[next.part].blocks,
                       .hidden = next.hidden});
    }
    const std::span<const float> logits = forward_->Run(rows_);
    pool_.ParallelFor(std::ssize(predicting_), [&](int64_t i, int) {
      Predicting& next = predicting_[i];
      const std::span<const float> row = logits.subspan(i * vocab_, vocab_);
      if (!AllFinite(row)) {
        next.left = 0;
        return;
      }
      const auto most = std::ranges::max_element(row) - row.begin();
      result.parts[next.part].predictions.push_back(static_cast<int32_t>(most));
      next.hidden = forward_->hidden() + i * hidden_;
      ++next.position;
      --next.left;
    });
    std::erase_if(predicting_, [](const Predicting& next) { return next.left == 0; });
  }
}

}  // namespace orcd::cpu
