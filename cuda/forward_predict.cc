// The block that predicts tokens: one layer more, with a head of its own. What it keeps of a step
// is of the step's shape and joins its graph; predictions are launched behind it, as their number
// varies.
#include <span>

#include "cuda/forward.h"
#include "cuda/kernels/common/predict.h"
#include "cuda/status.h"
#include "cuda/step_tables.h"
#include "runtime/base/error.h"

namespace orcd::cuda {

absl::Status Forward::RunHeadBesideBlock(const Step& step) {
  const int rows = step.shape.logit_rows;
  MatmulArgs args = {
      .product = {.matrices = {weights_.output()}, .num_matrices = 1, .tokens = rows},
      .epilogue = StoreF32{buffers_.logits, spec_.vocab}};
  ORCD_RETURN_IF_ERROR(Norm(step, weights_.output_norm(), args, /*in_product=*/false,
                            /*head=*/false, buffers_.predict.hidden));
  if (rows == 0) return absl::OkStatus();
  // In a decode step, row i of the logits is token i.
  if (!step.shape.decode || step.tap != nullptr) {
    ORCD_RETURN_IF_ERROR(
        Norm(step, weights_.output_norm(), args, /*in_product=*/true, /*head=*/true));
  }
  ORCD_RETURN_IF_ERROR(Multiply(step, args));
  return ScaleLogits(step, buffers_.logits, rows);
}

absl::Status Forward::RunPredictInputs(const Step& step, PredictInputsArgs from) {
  const DevicePredictBlock& block = *weights_.predict_block();
  residual_ = buffers_.residual[0];
  new_residual_ = buffers_.residual[1];
  branch_ = {};
  from.step = step.tables;
  from.states.rows = buffers_.predict.hidden;
  from.embedding = weights_.block_embedding();
  from.embedding_norm = block.embedding_norm;
  from.hidden_norm = block.hidden_norm;
  from.eps = spec_.norm_eps;
  from.hidden = spec_.hidden;
  from.tokens = step.shape.tokens;
  from.pairs = View(buffers_.predict.pairs, step.shape.tokens);
  from.residual = residual_;
  ORCD_RETURN_IF_ERROR(ClearPadding(step, from.pairs, 2 * spec_.hidden));
  ORCD_RETURN_IF_CUDA_ERROR(LaunchPredictInputs(from, step.stream), "the inputs of predictions");
  return MultiplyForResidual(
      step, /*can_add=*/true, {},
      {.prologue = from.pairs, .product = {.matrices = {block.projection}, .num_matrices = 1}});
}

absl::Status Forward::FollowSequences(const StepDraws& of, const StepShape& shape,
                                      cudaStream_t stream) {
  const int layer = num_layers_;
  const Step step = {.tables = of.step, .runs = of.runs, .shape = shape, .stream = stream};
  ORCD_RETURN_IF_ERROR(RunPredictInputs(step, {.runs = of.runs,
                                               .block_token_ids = buffers_.block_token_ids,
                                               .block_tokens = kv_.whole.block_tokens,
                                               .states = {.of_slots = buffers_.predict.of_slots}}));
  QkvProduct qkv;
  ORCD_RETURN_IF_ERROR(MultiplyQkv(step, layer, qkv));
  if (!RopeEpilogues(step, plans_[layer])) ORCD_RETURN_IF_ERROR(Rope(step, layer, qkv));
  const KeepHiddenArgs keep = {
      .of = of,
      .runs = shape.sequences,
      .states = {.of_slots = buffers_.predict.of_slots, .rows = buffers_.predict.hidden},
      .hidden = spec_.hidden};
  ORCD_RETURN_IF_CUDA_ERROR(LaunchKeepHidden(keep, stream), "keeping hidden states");
  return absl::OkStatus();
}

absl::Status Forward::RunPredictHead(const Step& step) {
  MatmulArgs args = {.product = {.matrices = {weights_.block_output()}, .num_matrices = 1},
                     .epilogue = StoreF32{buffers_.logits, spec_.vocab}};
  ORCD_RETURN_IF_ERROR(Norm(step, weights_.predict_block()->output_norm, args,
                            /*in_product=*/false, /*head=*/false, buffers_.predict.hidden));
  ORCD_RETURN_IF_ERROR(Multiply(step, args));
  return ScaleLogits(step, buffers_.logits, step.shape.tokens);
}

absl::Status Forward::Predict(const StepDraws& of, const PredictTables& tables,
                              std::span<const int> rows, DrawResult* results, int stride,
                              cudaStream_t stream) {
  const PredictBuffers& b = buffers_.predict;
  StepTables predicted = of.step;
  predicted.tokens = b.tokens;
  predicted.sequences = b.sequences;
  predicted.logit_tokens = nullptr;
  for (size_t i = 0; i < rows.size(); ++i) {
    ORCD_RETURN_IF_CUDA_ERROR(LaunchPredictTokens({.of = of,
                                                   .entries = tables.entries,
                                                   .count = rows[i],
                                                   .before = static_cast<int>(i),
                                                   .predicted = b.predicted,
                                                   .tokens = b.tokens,
                                                   .sequences = b.sequences},
                                                  stream),
                              "the tables of predictions");
    const StepShape shape = DecodeShape(rows[i], layer_);
    const Step step = {.tables = predicted, .runs = {}, .shape = shape, .stream = stream};
    // The first take the hidden states of the model, further ones the block's own.
    ORCD_RETURN_IF_ERROR(
        RunPredictInputs(step, {.states = {.of_slots = i == 0 ? b.of_slots : nullptr}}));
    ORCD_RETURN_IF_ERROR(RunMixer(step, num_layers_));
    ORCD_RETURN_IF_ERROR(RunAttentionOutput(step, num_layers_));
    ORCD_RETURN_IF_ERROR(RunFfn(step, num_layers_));
    ORCD_RETURN_IF_ERROR(RunPredictHead(step));
    ORCD_RETURN_IF_CUDA_ERROR(
        kernels_.sample({.step = predicted,
                         .draws = tables.draws,
                         .block_token_ids = buffers_.block_token_ids,
                         .block_tokens = kv_.whole.block_tokens,
                         .not_finite = b.no_marks,
                         .logits = buffers_.logits,
                         .vocab = spec_.vocab,
                         .rows = rows[i],
                         .results = results + int64_t{stride} * static_cast<int64_t>(i),
                         .last_sample = b.predicted},
                        device_, stream),
        "predicting tokens");
  }
  return absl::OkStatus();
}

}  // namespace orcd::cuda
