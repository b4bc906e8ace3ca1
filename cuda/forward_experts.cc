// The layers with experts. Grids are for the most work that a step of so many tokens can have, so
// that graphs hold them (experts.h).
#include <algorithm>
#include <cstdint>
#include <variant>
#include <vector>

#include "cuda/expert_buffers.h"
#include "cuda/forward.h"
#include "cuda/forward_tap.h"
#include "cuda/kernels/common/experts.h"
#include "cuda/status.h"
#include "runtime/base/error.h"

namespace orcd::cuda {
namespace {

// The input of the experts: x itself, or what the norm has made of it.
Activations InputOf(const Prologue& x) {
  const auto* const norm = std::get_if<NormArgs>(&x);
  return norm == nullptr ? std::get<Activations>(x) : norm->out;
}

}  // namespace

using enum TapPoint;

absl::Status Forward::Tap::Router(int layer, float* logits, const ExpertsSpec& spec) {
  const int outputs = RouterOutputs(spec);
  ORCD_ASSIGN_OR_RETURN(std::vector<float> rows,
                        reader_.Floats(logits, int64_t{tokens_} * outputs));
  std::vector<float> shown;
  shown.reserve(int64_t{tokens_} * spec.count);
  for (int t = 0; t < tokens_; ++t) {
    const auto row = rows.begin() + int64_t{t} * outputs;
    shown.insert(shown.end(), row, row + spec.count);
  }
  if (tap_.Replace(kRouter, layer, shown, tokens_, spec.count)) {
    for (int t = 0; t < tokens_; ++t) {
      std::copy_n(shown.begin() + int64_t{t} * spec.count, spec.count,
                  rows.begin() + int64_t{t} * outputs);
    }
    // The reader has waited for all work on the stream.
    ORCD_RETURN_IF_CUDA_ERROR(
        cudaMemcpy(logits, rows.data(), rows.size() * sizeof(float), cudaMemcpyHostToDevice),
        "replacing activations");
    ORCD_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(nullptr), "replacing activations");
  }
  tap_.OnActivation(kRouter, layer, shown, tokens_, spec.count);
  return absl::OkStatus();
}

absl::Status Forward::Tap::ExpertWeights(int layer, const ExpertTables& tables,
                                         const ExpertsSpec& spec, int used) {
  const int64_t choices = int64_t{tokens_} * used;
  ORCD_ASSIGN_OR_RETURN(const std::vector<int32_t> chosen, reader_.Ints(tables.chosen, choices));
  ORCD_ASSIGN_OR_RETURN(const std::vector<float> weights, reader_.Floats(tables.weights, choices));
  std::vector<float> of_all(int64_t{tokens_} * spec.count);
  for (int64_t i = 0; i < choices; ++i) {
    // The shared expert is not shown.
    const bool routed = chosen[i] >= 0 && chosen[i] < spec.count;
    if (routed) of_all[i / used * spec.count + chosen[i]] = weights[i];
  }
  tap_.OnActivation(kExpertWeights, layer, of_all, tokens_, spec.count);
  return absl::OkStatus();
}

ExpertsSpec Forward::AllExperts(int layer) const {
  return cuda::AllExperts(spec_.layers[layer].experts,
                          weights_.layers()[layer].experts.shared_joins);
}

bool Forward::RoutesWithNorm(const Step& step, int layer, const NormArgs& norm) const {
  const ExpertsSpec& spec = spec_.layers[layer].experts;
  return kernels_.route_one_token != nullptr && step.shape.tokens == 1 && step.tap == nullptr &&
         spec.count > 0 && RoutesOneToken(norm, spec) &&
         MultipliesOneToken(AllExperts(layer), spec_.hidden);
}

absl::Status Forward::RunExperts(const Step& step, int layer, const Prologue& x) {
  const ExpertsSpec all = AllExperts(layer);
  const DeviceLayer& w = weights_.layers()[layer];
  const ExpertBuffers& b = buffers_.experts;
  ExpertTables tables = b.tables;
  if (RouterOutputs(all) == all.count) tables.shared_weights = nullptr;
  branch_ = {.partials = b.out,
             .splits = 1,
             .partials_tokens = step.shape.tokens,
             .post_norm = w.ffn_post_norm,
             .post_norm_point = kFfnPostNorm,
             .layer = layer};
  if (kernels_.fuses && step.shape.tokens == 1 && MultipliesOneToken(all, spec_.hidden)) {
    ORCD_RETURN_IF_ERROR(MultiplyOneToken(step, layer, x, tables));
    if (AddsOneToken(step, all)) return absl::OkStatus();
  } else {
    ORCD_RETURN_IF_ERROR(ChooseExperts(step, layer, x, tables));
    ORCD_RETURN_IF_ERROR(MultiplyExperts(step, layer, std::get<Activations>(x), tables));
  }
  CombineExpertsArgs combine = {.spec = all,
                                .added = all.used,
                                .tables = tables,
                                .y = b.y,
                                .bias = w.experts.down_bias,
                                .scale = 1 / kSwiGluScale,
                                .shared_scale = 1 / kSwiGluScale,
                                .hidden = spec_.hidden,
                                .tokens = step.shape.tokens,
                                .out = b.out};
  if (step.tap != nullptr) ORCD_RETURN_IF_ERROR(TapExperts(step, layer, x, combine));
  if (all.shared_ffn > 0) {
    ORCD_RETURN_IF_ERROR(RunGate(step, layer, {.prologue = InputOf(x)}));
    ORCD_RETURN_IF_ERROR(MultiplySplitK(step, buffers_.products,
                                        {.prologue = View(buffers_.gated, step.shape.tokens),
                                         .product = {.matrices = {w.down}, .num_matrices = 1}}));
    combine.shared = buffers_.products;
    combine.shared_splits = splits_;
    combine.shared_tokens = products_tokens_;
  }
  ORCD_RETURN_IF_CUDA_ERROR(LaunchCombineExperts(combine, step.stream), "adding experts");
  return absl::OkStatus();
}

bool Forward::AddsOneToken(const Step& step, const ExpertsSpec& all) {
  return step.tap == nullptr && all.shared_ffn == 0;
}

absl::Status Forward::ChooseExperts(const Step& step, int layer, const Prologue& x,
                                    const ExpertTables& tables) {
  const ExpertsSpec& spec = spec_.layers[layer].experts;
  const DeviceExperts& w = weights_.layers()[layer].experts;
  const ExpertBuffers& b = buffers_.experts;
  const ExpertsSpec all = AllExperts(layer);
  const int tokens = step.shape.tokens;
  const RouterArgs router = {.x = b.x,
                             .weights = w.router,
                             .bias = w.router_bias,
                             .count = spec.count,
                             .outputs = RouterOutputs(spec),
                             .hidden = spec_.hidden,
                             .tokens = tokens,
                             .logits = b.logits};
  const ChooseExpertsArgs choice = {
      .spec = spec,
      .shared_joins = w.shared_joins,
      .logits = b.logits,
      .selection_bias = w.selection_bias,
      .step_tokens = step.tables.tokens,
      .tokens = tokens,
      .tile_rows = ExpertTileRows(all, tokens),
      .tables = tables,
      // A load is that of the model's layers.
      .load = layer < num_layers_ ? b.load : nullptr,
      .published_load = layer == step.load_layer ? step.load : nullptr};
  if (const auto* const norm = std::get_if<NormArgs>(&x)) {
    ORCD_RETURN_IF_CUDA_ERROR(
        kernels_.route_one_token(
            {.norm = *norm, .router = router, .choice = choice, .passed = b.passed}, device_,
            step.stream),
        "choosing experts");
    return absl::OkStatus();
  }
  ORCD_RETURN_IF_CUDA_ERROR(LaunchRouter(router, step.stream), "a router");
  if (step.tap != nullptr) ORCD_RETURN_IF_ERROR(step.tap->Router(layer, b.logits, spec));
  ORCD_RETURN_IF_CUDA_ERROR(LaunchChooseExperts(choice, step.stream), "choosing experts");
  if (step.tap == nullptr) return absl::OkStatus();
  return step.tap->ExpertWeights(layer, tables, spec, all.used);
}

absl::Status Forward::MultiplyExperts(const Step& step, int layer, const Activations& x,
                                      const ExpertTables& tables) {
  const ExpertsSpec all = AllExperts(layer);
  const ExpertBuffers& b = buffers_.experts;
  const int tokens = step.shape.tokens;
  const int max_rows = MaxExpertRows(all, tokens);
  const Activations inputs = View(b.inputs, max_rows);
  const Activations gated = View(buffers_.gated, max_rows);
  const int padded_hidden =
      (spec_.hidden + kActivationCols - 1) / kActivationCols * kActivationCols;
  ORCD_RETURN_IF_CUDA_ERROR(
      LaunchGatherExpertRows(
          {.x = x, .cols = padded_hidden, .tables = tables, .max_rows = max_rows, .to = inputs},
          step.stream),
      "sorting tokens by expert");
  ORCD_RETURN_IF_ERROR(ClearPadding(step, gated, all.ffn));
  ExpertMatmulArgs args = ExpertProduct(layer, tables, tokens);
  args.x = inputs;
  args.epilogue = SwiGlu{gated, spec_.layers[layer].activation};
  ORCD_RETURN_IF_CUDA_ERROR(kernels_.expert_gemm(args, device_, step.stream),
                            "a product of experts");
  args = ExpertProduct(layer, tables, tokens, /*down=*/true);
  args.x = gated;
  args.epilogue = StoreF32{b.y, spec_.hidden};
  ORCD_RETURN_IF_CUDA_ERROR(kernels_.expert_gemm(args, device_, step.stream),
                            "a product of experts");
  return absl::OkStatus();
}

ExpertMatmulArgs Forward::ExpertProduct(int layer, const ExpertTables& tables, int tokens,
                                        bool down) const {
  const ExpertsSpec all = AllExperts(layer);
  const DeviceExperts& w = weights_.layers()[layer].experts;
  const TiledMatrix& experts = down ? w.down : w.gate_up;
  const int tile_rows = ExpertTileRows(all, tokens);
  return {.experts = experts,
          .expert_rows = experts.rows / all.count,
          .tiles = tables.tiles,
          .max_tiles = MaxExpertTiles(all, tokens, tile_rows),
          .tile_rows = tile_rows,
          .stored_rows = down ? spec_.hidden : 2 * all.ffn,
          .bias = down ? nullptr : w.gate_up_bias};
}

absl::Status Forward::MultiplyOneToken(const Step& step, int layer, const Prologue& x,
                                       const ExpertTables& tables) {
  const ExpertsSpec all = AllExperts(layer);
  const ExpertBuffers& b = buffers_.experts;
  const Activations gated = View(buffers_.gated, all.used);
  // Nothing may come between the products.
  ORCD_RETURN_IF_ERROR(ClearPadding(step, gated, all.ffn));
  ORCD_RETURN_IF_ERROR(ChooseExperts(step, layer, x, tables));
  ExpertMatmulArgs args = ExpertProduct(layer, tables, /*tokens=*/1);
  args.x = InputOf(x);
  args.epilogue = SwiGlu{gated, spec_.layers[layer].activation};
  args.one_token = OneToken::kSharedRow;
  ORCD_RETURN_IF_CUDA_ERROR(kernels_.expert_gemm(args, device_, step.stream),
                            "a product of experts");
  args = ExpertProduct(layer, tables, /*tokens=*/1, /*down=*/true);
  args.x = gated;
  args.one_token = OneToken::kOwnRows;
  if (AddsOneToken(step, all)) {
    args.epilogue = SumOfChoices{.weights = tables.weights,
                                 .bias = weights_.layers()[layer].experts.down_bias,
                                 .scale = 1 / kSwiGluScale,
                                 .out = b.out};
  } else {
    args.epilogue = StoreF32{b.y, spec_.hidden};
  }
  ORCD_RETURN_IF_CUDA_ERROR(kernels_.expert_gemm(args, device_, step.stream),
                            "a product of experts");
  return absl::OkStatus();
}

absl::Status Forward::TapExperts(const Step& step, int layer, const Prologue& x,
                                 CombineExpertsArgs args) {
  const ExpertsSpec& spec = spec_.layers[layer].experts;
  const bool shared_joins = args.spec.used > spec.used;
  args.added = spec.used;
  ORCD_RETURN_IF_CUDA_ERROR(LaunchCombineExperts(args, step.stream), "adding experts");
  ORCD_RETURN_IF_ERROR(step.tap->Rows(kExperts, layer, args.out, spec_.hidden));
  if (!shared_joins) return absl::OkStatus();
  const TiledMatrix shared = SharedGateUp(spec, weights_.layers()[layer].experts);
  return RunGate(step, layer,
                 {.prologue = x, .product = {.matrices = {shared}, .num_matrices = 1}});
}

}  // namespace orcd::cuda
