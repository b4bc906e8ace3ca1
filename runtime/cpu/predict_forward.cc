#include "runtime/cpu/predict_forward.h"

#include <iterator>
#include <numeric>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/cpu/ops.h"
#include "runtime/cpu/rows.h"

namespace orcd::cpu {
namespace {

ModelSpec SpecOf(const Model& model, const PredictBlock& block) {
  ModelSpec spec = model.spec();
  spec.layers = {block.spec};
  return spec;
}

ModelWeights WeightsOf(const Model& model, const PredictBlock& block) {
  const ModelWeights& all = model.weights();
  ModelWeights weights;
  weights.token_embd = block.token_embd;
  weights.layers = {block.layer};
  weights.rope_factors = all.rope_factors;
  weights.rope_factors_short = all.rope_factors_short;
  weights.rope_factors_long = all.rope_factors_long;
  weights.output_norm = block.output_norm;
  weights.output = block.output;
  return weights;
}

// Bytes of the pairs and of the projected inputs.
uint64_t InputBytes(const ModelSpec& spec, const ForwardLimits& limits) {
  return uint64_t{3} * spec.hidden * limits.step_tokens * sizeof(float);
}

}  // namespace

KvBlockBytes PredictForward::BlockBytes(const Model& model, const PredictBlock& block,
                                        int block_tokens, KvType type) {
  return KvCaches::BlockBytes(SpecOf(model, block), block_tokens, type);
}

uint64_t PredictForward::ActivationBytes(const Model& model, const PredictBlock& block,
                                         const ForwardLimits& limits) {
  const ModelSpec spec = SpecOf(model, block);
  return InputBytes(spec, limits) + Forward::ActivationBytes(spec, limits);
}

absl::StatusOr<std::unique_ptr<PredictForward>> PredictForward::Create(
    const Model& model, const PredictBlock& block, ThreadPool& pool, const KvOptions& kv,
    const ForwardLimits& limits) {
  const ModelSpec spec = SpecOf(model, block);
  ORCD_ASSIGN_OR_RETURN(KvCaches caches, KvCaches::Create(spec, kv.block_tokens, kv.type, kv.blocks,
                                                          kv.window_blocks));
  ORCD_ASSIGN_OR_RETURN(MappedMemory memory,
                        MappedMemory::Create(InputBytes(spec, limits), "predictions"));
  std::unique_ptr<PredictForward> made(
      new PredictForward(model, block, pool, std::move(caches), std::move(memory), limits));
  ORCD_ASSIGN_OR_RETURN(made->forward_, Forward::Create(made->spec_, made->weights_, BestKernels(),
                                                        pool, made->kv_, limits));
  return made;
}

PredictForward::PredictForward(const Model& model, const PredictBlock& block, ThreadPool& pool,
                               KvCaches kv, MappedMemory memory, const ForwardLimits& limits)
    : block_(block),
      spec_(SpecOf(model, block)),
      weights_(WeightsOf(model, block)),
      pool_(pool),
      matmul_(BestKernels(), pool),
      kv_(std::move(kv)),
      memory_(std::move(memory)),
      pairs_(reinterpret_cast<float*>(memory_.bytes().data())),
      input_(pairs_ + int64_t{2} * spec_.hidden * limits.step_tokens) {
  sequences_.reserve(limits.seqs);
  rows_.reserve(limits.step_tokens);
}

std::span<const float> PredictForward::Plan(std::span<const PredictRows> sequences) {
  const int64_t size = spec_.hidden;
  sequences_.clear();
  int64_t rows = 0;
  for (const PredictRows& sequence : sequences) {
    sequences_.push_back({.tokens = sequence.tokens,
                          .first_position = sequence.first_position,
                          .blocks = sequence.blocks,
                          .first_key = 1});
    const int64_t count = std::ssize(sequence.tokens);
    pool_.ParallelFor(count, [&](int64_t i, int) {
      const std::span<float> embedding = Row(pairs_, 2 * (rows + i), size);
      const Matrix& table = block_.token_embd;
      BestKernels().dequantize(table.type, table.row(sequence.tokens[i]), size, embedding.data());
      RmsNorm(embedding, block_.embedding_norm, spec_.norm_eps, embedding);
      RmsNorm(Row(sequence.hidden, i, size), block_.hidden_norm, spec_.norm_eps,
              Row(pairs_, 2 * (rows + i) + 1, size));
    });
    rows += count;
  }
  const Product product = {&block_.projection, {}, pairs_, rows, input_};
  matmul_.Run({&product, 1});
  return {input_, static_cast<size_t>(rows * size)};
}

void PredictForward::Store(std::span<const PredictRows> sequences) {
  const std::span<const float> input = Plan(sequences);
  forward_->StoreLayer(sequences_, 0, input);
}

std::span<const float> PredictForward::Run(std::span<const PredictRows> sequences) {
  const std::span<const float> input = Plan(sequences);
  forward_->RunLayer(sequences_, 0, input, /*tap=*/nullptr);
  rows_.resize(input.size() / spec_.hidden);
  std::iota(rows_.begin(), rows_.end(), 0);
  return forward_->LogitsOfRows(rows_);
}

}  // namespace orcd::cpu
