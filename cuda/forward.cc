#include "cuda/forward.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/forward_tap.h"
#include "cuda/row_order.h"
#include "cuda/status.h"
#include "runtime/base/error.h"

namespace orcd::cuda {
namespace {

using enum TapPoint;

// Least size of the buffer of dequantised weights: room for a part of the head in F16.
constexpr int64_t kMinDequantisedBytes = 64 << 20;

constexpr int RoundUp(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Floats of a product's result, including split-K partials.
int64_t ProductFloats(const Product& product, int tokens) {
  const int split_tokens = PartialsTokens(std::min(tokens, kMaxPartialsTokens));
  if (Rows(product) == 0) return 0;
  const int splits = Splits(RowTiles(product), product.matrices[0].cols);
  return std::max(int64_t{splits} * split_tokens, int64_t{tokens}) * Rows(product);
}

int64_t F16Bytes(const TiledMatrix& matrix) {
  return int64_t{matrix.row_tiles()} * kTileRows * RoundUp(matrix.cols, kActivationCols) * 2;
}

// True if products of up to `tokens` tokens take the weights as they are.
bool TakesUpTo(const KernelSet& kernels, const TiledMatrix& matrix, int tokens) {
  const Product product = {.matrices = {matrix}, .num_matrices = 1, .tokens = tokens};
  return kernels.matvec_takes(product) || (kernels.gemm_takes(matrix.format, kMatvecTokens + 1) &&
                                           kernels.gemm_takes(matrix.format, tokens));
}

// Index of `rope` among `ropes`, which have it.
size_t IndexOf(const RopeSpec& rope, const std::vector<RopeSpec>& ropes) {
  return static_cast<size_t>(std::find(ropes.begin(), ropes.end(), rope) - ropes.begin());
}

// Returns the epilogue of a product's rows from `row` on.
Epilogue FromRow(Epilogue epilogue, int row) {
  if (auto* const store = std::get_if<StoreF32>(&epilogue)) store->y += row;
  if (auto* const qkv = std::get_if<StoreQkv>(&epilogue)) qkv->first_row += row;
  return epilogue;
}

}  // namespace

std::vector<RopeSpec> RopesOf(const ModelSpec& spec) {
  std::vector<RopeSpec> ropes;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.rope.kind == RopeKind::kNone) continue;
    if (IndexOf(layer.rope, ropes) == ropes.size()) ropes.push_back(layer.rope);
  }
  return ropes;
}

std::vector<LayerPlan> PlanLayers(const ModelSpec& spec, const DeviceWeights& weights,
                                  const ForwardBuffers& buffers) {
  const std::vector<RopeSpec> ropes = RopesOf(spec);
  std::vector<LayerPlan> plans;
  int in_whole = 0;
  int in_windows = 0;
  int64_t state_floats = 0;
  int64_t draft_floats = 0;
  for (int i = 0; i < spec.num_layers(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const DeviceLayer& w = weights.layers()[i];
    LayerPlan& plan = plans.emplace_back();
    plan.qkv = {.bias = w.qkv_bias,
                .q_norm = w.q_norm,
                .k_norm = w.k_norm,
                .norm_eps = spec.norm_eps,
                .norm_projection = layer.qk_norm == QkNorm::kProjection,
                .temperature = layer.temperature,
                .temperature_length = layer.temperature_length,
                .heads = layer.heads,
                .kv_heads = layer.kv_heads,
                .head_dim = layer.head_dim};
    if (layer.rope.kind != RopeKind::kNone) {
      plan.qkv.angles = buffers.angles[IndexOf(layer.rope, ropes)];
      plan.qkv.rope_dims = layer.rope.dims;
      plan.qkv.rope_pairs = layer.rope.kind == RopeKind::kNorm && !w.halves ? RopePairs::kNeighbours
                                                                            : RopePairs::kHalves;
    }
    if (w.qkv_bias != nullptr && SplitsQueries(layer.head_dim)) {
      plan.qkv.query_split = buffers.query_split + i * layer.kv_heads;
    }
    const bool predicts = weights.predict_block() && i == spec.num_layers() - 1;
    plan.rule = {.score_scale = layer.score_scale,
                 .score_softcap = layer.score_softcap,
                 .window = layer.window,
                 .sinks = w.attn_sinks,
                 .first_key = predicts ? 1 : 0};
    plan.not_finite = predicts ? buffers.predict.not_finite : buffers.not_finite;
    if (layer.recurrent()) {
      plan.state_offset = state_floats;
      plan.draft_offset = draft_floats;
      state_floats += DeltaStateFloats(layer.delta);
      draft_floats += DeltaDraftFloats(layer.delta);
    } else {
      plan.cache_layer = layer.window > 0 ? in_windows++ : in_whole++;
    }
    // An epilogue adds by instructions that are exact for powers of two only.
    const bool unscaled = spec.residual_scale == 1;
    plan.attn_adds = unscaled && w.attn_output_bias == nullptr && w.attn_post_norm == nullptr;
    plan.ffn_adds = unscaled && w.down_bias == nullptr && w.ffn_post_norm == nullptr &&
                    layer.experts.count == 0;
  }
  return plans;
}

ForwardBuffers::ForwardBuffers(const ModelSpec& spec, const DeviceWeights& weights,
                               const ForwardLimits& limits, uint8_t* slab) {
  Carver carver(slab);
  const LayerSpec& shape = spec.layers[0];
  int ffn = 0;
  int attended_cols = shape.q_size();
  for (const LayerSpec& layer : spec.layers) {
    ffn = std::max(ffn, FfnWidth(layer));
    attended_cols = std::max(attended_cols, layer.delta.value_size());
  }
  const int tokens = RoundUp(limits.max_tokens, 8);
  const int rows = RoundUp(limits.max_seqs, 8);
  const auto activations = [&](int count, int cols) {
    return carver.Take<__half>(ActivationBytes(count, cols) / 2);
  };
  residual[0] = carver.Take<float>(int64_t{tokens} * spec.hidden);
  residual[1] = carver.Take<float>(spec.hidden);
  normed = activations(tokens, spec.hidden);
  int64_t product_floats = 0;
  int64_t qkv_floats = 0;
  int64_t gate_and_up_floats = 0;
  dequantised_bytes = 0;
  // Bytes of the matrices that are dequantised together.
  const auto dequantise = [&](std::initializer_list<const TiledMatrix*> matrices) {
    int64_t together = 0;
    for (const TiledMatrix* matrix : matrices) {
      const bool in_place =
          matrix->rows == 0 || matrix->format == TileFormat::kF16 ||
          (limits.kernels != nullptr && TakesUpTo(*limits.kernels, *matrix, limits.max_tokens));
      if (!in_place) together += F16Bytes(*matrix);
    }
    if (together == 0) return;
    dequantised_bytes = std::max({dequantised_bytes, together, kMinDequantisedBytes});
  };
  for (size_t i = 0; i < weights.layers().size(); ++i) {
    const DeviceLayer& layer = weights.layers()[i];
    for (const TiledMatrix* inputs : {layer.qkv, layer.delta.inputs}) {
      const Product product = {.matrices = {inputs[0], inputs[1], inputs[2]}, .num_matrices = 3};
      qkv_floats = std::max(qkv_floats, ProductFloats(product, tokens));
      dequantise({&inputs[0], &inputs[1], &inputs[2]});
    }
    for (const TiledMatrix* matrix :
         {&layer.attn_gate, &layer.attn_output, &layer.delta.output, &layer.down}) {
      const Product product = {.matrices = {*matrix}, .num_matrices = 1};
      product_floats = std::max(product_floats, ProductFloats(product, tokens));
      dequantise({matrix});
    }
    dequantise({&layer.gate_up, &layer.up});
    if (layer.experts.shared_joins) {
      // For taps.
      const TiledMatrix shared = SharedGateUp(spec.layers[i].experts, layer.experts);
      dequantise({&shared});
    }
    if (layer.gate_apart()) gate_and_up_floats = int64_t{tokens} * 2 * ffn;
  }
  const DevicePredictBlock* const block =
      weights.predict_block() ? &*weights.predict_block() : nullptr;
  if (block != nullptr) {
    const Product product = {.matrices = {block->projection}, .num_matrices = 1};
    product_floats = std::max(product_floats, ProductFloats(product, tokens));
    dequantise({&block->projection});
  }
  // Heads are dequantised part by part.
  if (dequantised_bytes == 0) {
    dequantise({&weights.output()});
    if (block != nullptr) dequantise({&weights.block_output()});
    dequantised_bytes = std::min(dequantised_bytes, kMinDequantisedBytes);
  }
  products = carver.Take<float>(product_floats);
  qkv = carver.Take<float>(qkv_floats);
  q = carver.Take<__half>(int64_t{tokens} * shape.q_size());
  q_lo = carver.Take<__half>(int64_t{tokens} * shape.q_size());
  attended = activations(tokens, attended_cols);
  gathered_residual = carver.Take<float>(int64_t{rows} * spec.hidden);
  gathered_attended = activations(rows, attended_cols);
  head_in = activations(rows, spec.hidden);
  for (const RopeSpec& rope : RopesOf(spec)) {
    angles.push_back(carver.Take<float>(int64_t{limits.context_length} * rope.dims));
  }
  query_split = carver.Take<int32_t>(int64_t{spec.num_layers()} * shape.kv_heads);
  gate_and_up = gate_and_up_floats == 0 ? nullptr : carver.Take<float>(gate_and_up_floats);
  dequantised = carver.Take<uint8_t>(dequantised_bytes);
  if (limits.kernels == nullptr || (limits.kernels->fuses && tokens > kMaxPartialsTokens)) {
    stream_k.sums = carver.Take<uint8_t>(StreamKWorkspace::kSumsBytes);
    stream_k.ready = carver.Take<int32_t>(StreamKWorkspace::kReady);
  }
  constexpr int64_t kFloat = sizeof(float);
  // Experts have their gated rows, and then the shared expert's, beside their other rows.
  const int64_t gated_bytes =
      (std::max(ActivationBytes(tokens, ffn), ExpertBuffers::GatedBytes(spec, weights, tokens)) +
       255) /
      256 * 256;
  uint8_t* const aliased = carver.Take<uint8_t>(
      std::max({gated_bytes + ExpertBuffers::RowBytes(spec, weights, tokens),
                DeltaBuffers::RowBytes(spec, tokens), kFloat * rows * spec.vocab,
                kFloat * limits.max_key_tiles * shape.heads * (shape.head_dim + 2)}));
  gated = reinterpret_cast<__half*>(aliased);
  logits = reinterpret_cast<float*>(aliased);
  attention_partials = reinterpret_cast<float*>(aliased);
  attention_counters = carver.Take<int32_t>(int64_t{limits.max_seqs} * shape.kv_heads);
  last_sample = carver.Take<int32_t>(limits.max_seqs);
  block_token_ids = carver.Take<int32_t>(limits.kv_tokens);
  not_finite = carver.Take<int32_t>(limits.max_seqs);
  experts = ExpertBuffers(spec, weights, tokens, slab == nullptr ? nullptr : aliased + gated_bytes,
                          carver);
  delta = DeltaBuffers(spec, tokens, limits.max_drafts, aliased, carver);
  if (block != nullptr) predict = PredictBuffers(spec.hidden, tokens, limits.max_seqs, carver);
  bytes = carver.taken();
}

Forward::Forward(const ModelSpec& spec, const DeviceWeights& weights, const ForwardBuffers& buffers,
                 const KvCaches& kv, const DeltaStates& states, const DeviceInfo& device)
    : spec_(spec),
      num_layers_(spec.num_layers() - (weights.predict_block() ? 1 : 0)),
      layer_(spec.layers[0]),
      weights_(weights),
      buffers_(buffers),
      kv_(kv),
      states_(states),
      plans_(PlanLayers(spec, weights, buffers)),
      device_(device.traits),
      kernels_(*device.kernels) {}

Activations Forward::View(__half* data, int tokens) {
  return {.data = data, .tokens = RoundUp(tokens, 8)};
}

absl::Status Forward::ClearPadding(const Step& step, const Activations& to, int cols) {
  if (cols % kActivationCols == 0) return absl::OkStatus();
  ORCD_RETURN_IF_CUDA_ERROR(LaunchClearPadding({.of = to, .cols = cols}, step.stream),
                            "clearing padding");
  return absl::OkStatus();
}

absl::Status Forward::Enqueue(const StepTables& tables, const StepRuns& runs,
                              const StepShape& shape, int turn, cudaStream_t stream,
                              ActivationTap* tap, ExpertLoad* load) {
  std::optional<Tap> shown;
  if (tap != nullptr) shown.emplace(*tap, stream, shape.tokens);
  const int last = num_layers_ - 1;
  // The block that predicts tokens takes the hidden states of all of them.
  const bool all_rows = tap != nullptr || weights_.predict_block();
  // The last layer with experts that the step runs to the end.
  int load_layer = !all_rows && shape.logit_rows == 0 ? last - 1 : last;
  while (load_layer >= 0 && spec_.layers[load_layer].experts.count == 0) --load_layer;
  const Step step = {.tables = tables,
                     .runs = runs,
                     .shape = shape,
                     .turn = turn,
                     .stream = stream,
                     .tap = tap == nullptr ? nullptr : &*shown,
                     .load = load,
                     .load_layer = load_layer};
  residual_ = buffers_.residual[0];
  new_residual_ = buffers_.residual[1];
  branch_ = {};

  ORCD_RETURN_IF_CUDA_ERROR(LaunchEmbed({.step = tables,
                                         .block_token_ids = buffers_.block_token_ids,
                                         .block_tokens = kv_.whole.block_tokens,
                                         .not_finite = buffers_.not_finite,
                                         .last_sample = buffers_.last_sample,
                                         .embedding = weights_.embedding(),
                                         .scale = spec_.embedding_scale,
                                         .residual = residual_,
                                         .tokens = shape.tokens},
                                        stream),
                            "embedding");
  if (tap != nullptr) ORCD_RETURN_IF_ERROR(shown->Rows(kEmbed, -1, residual_, spec_.hidden));
  for (int layer = 0; layer < last; ++layer) {
    ORCD_RETURN_IF_ERROR(RunMixer(step, layer));
    ORCD_RETURN_IF_ERROR(RunAttentionOutput(step, layer));
    ORCD_RETURN_IF_ERROR(RunFfn(step, layer));
  }
  ORCD_RETURN_IF_ERROR(RunMixer(step, last));
  // In the last layer, tokens without logits only contribute keys and values, or to the recurrent
  // state; their rows are dropped from here on.
  StepShape left = shape;
  StepTables left_tables = tables;
  if (!all_rows && shape.logit_rows < shape.tokens) {
    if (shape.logit_rows == 0) return absl::OkStatus();
    ORCD_RETURN_IF_ERROR(GatherLogitRows(step));
    left.tokens = shape.logit_rows;
    left_tables.logit_tokens = nullptr;
    left_tables.tokens = nullptr;
  }
  const Step rest = {.tables = left_tables,
                     .runs = runs,
                     .shape = left,
                     .turn = turn,
                     .stream = stream,
                     .tap = step.tap,
                     .load = load,
                     .load_layer = load_layer};
  if (layer_.form == LayerForm::kParallel && left.tokens < shape.tokens) {
    // The FFN takes the rows that are left of attention's input.
    MatmulArgs unused;
    ORCD_RETURN_IF_ERROR(
        Norm(rest, weights_.layers()[last].attn_norm, unused, /*in_product=*/false));
  }
  ORCD_RETURN_IF_ERROR(RunAttentionOutput(rest, last));
  ORCD_RETURN_IF_ERROR(RunFfn(rest, last));
  if (tap != nullptr) ORCD_RETURN_IF_ERROR(TapHead(rest));
  return weights_.predict_block() ? RunHeadBesideBlock(rest) : RunHead(rest);
}

absl::Status Forward::MultiplySplitK(const Step& step, float* to, MatmulArgs args) {
  Product& product = args.product;
  product.splits = Splits(RowTiles(product), product.matrices[0].cols);
  product.tokens = step.shape.tokens;
  const bool sum = product.tokens > kMaxPartialsTokens || kernels_.gemm_sums(product);
  splits_ = sum ? 1 : product.splits;
  products_tokens_ = PartialsTokens(product.tokens);
  if (to != nullptr) args.epilogue = StoreF32{to, Rows(product), sum};
  return Multiply(step, args);
}

absl::Status Forward::MultiplyForResidual(const Step& step, bool can_add, Branch branch,
                                          MatmulArgs args) {
  if (can_add && HasEpilogues(step)) {
    args.epilogue = AddToResidual{residual_, spec_.hidden, branch.scale};
    return MultiplySplitK(step, nullptr, args);
  }
  ORCD_RETURN_IF_ERROR(MultiplySplitK(step, buffers_.products, args));
  branch.partials = buffers_.products;
  branch.splits = splits_;
  branch.partials_tokens = products_tokens_;
  branch_ = branch;
  return absl::OkStatus();
}

absl::Status Forward::Multiply(const Step& step, MatmulArgs args) {
  Product& product = args.product;
  if (product.tokens == 0) product.tokens = step.shape.tokens;
  args.model_formats = weights_.formats();
  args.stream_k = buffers_.stream_k;
  if (kernels_.matvec_takes(product)) {
    ORCD_RETURN_IF_CUDA_ERROR(kernels_.matvec(args, device_, step.stream), "a product");
    return absl::OkStatus();
  }
  // Each launch takes consecutive matrices: formats that one kernel takes together, or matrices
  // that are all dequantised first.
  const auto dequantises = [&](const TiledMatrix& matrix) {
    return !kernels_.gemm_takes(matrix.format, product.tokens);
  };
  const MatmulArgs all = args;
  const TiledMatrix* const matrices = all.product.matrices;
  int first_row = 0;
  for (int i = 0; i < all.product.num_matrices; i += product.num_matrices) {
    product.num_matrices = 0;
    for (int j = i; j < all.product.num_matrices; ++j) {
      const bool together =
          j == i || (dequantises(matrices[j]) == dequantises(matrices[i]) &&
                     (dequantises(matrices[i]) ||
                      kernels_.gemm_takes_behind(matrices[j - 1].format, matrices[j].format)));
      if (!together) break;
      product.matrices[product.num_matrices++] = matrices[j];
    }
    args.epilogue = FromRow(all.epilogue, first_row);
    first_row += Rows(product);
    if (dequantises(matrices[i])) {
      ORCD_RETURN_IF_ERROR(MultiplyDequantised(step, args));
    } else {
      ORCD_RETURN_IF_CUDA_ERROR(kernels_.gemm(args, device_, step.stream), "a product");
    }
  }
  return absl::OkStatus();
}

absl::Status Forward::MultiplyDequantised(const Step& step, MatmulArgs args) {
  const Product all = args.product;
  const int64_t tile_bytes =
      int64_t{RoundUp(all.matrices[0].cols, kActivationCols)} * 2 * kTileRows;
  const int most = static_cast<int>(buffers_.dequantised_bytes / tile_bytes);
  const int row_tiles = RowTiles(all);
  args.product.weights_are_new = true;
  if (row_tiles <= most) {
    uint8_t* to = buffers_.dequantised;
    for (int i = 0; i < all.num_matrices;) {
      // One launch dequantises consecutive matrices of one format.
      Product together;
      uint8_t* const begin = to;
      const TileFormat format = all.matrices[i].format;
      for (; i < all.num_matrices && all.matrices[i].format == format; ++i) {
        together.matrices[together.num_matrices++] = all.matrices[i];
        args.product.matrices[i].data = to;
        args.product.matrices[i].format = TileFormat::kF16;
        to += args.product.matrices[i].bytes();
      }
      ORCD_RETURN_IF_CUDA_ERROR(
          kernels_.dequantise(together, 0, RowTiles(together), begin, step.stream),
          "dequantising weights");
    }
    ORCD_RETURN_IF_CUDA_ERROR(kernels_.gemm(args, device_, step.stream), "a product");
    return absl::OkStatus();
  }
  // Only the head is larger than the buffer: it is dequantised and multiplied part by part.
  if (most == 0 || all.num_matrices > 1 || !std::holds_alternative<StoreF32>(args.epilogue)) {
    return absl::InternalError("there is no room for a layer's matrix in F16");
  }
  const Epilogue epilogue = args.epilogue;
  const TiledMatrix& matrix = all.matrices[0];
  for (int tile = 0; tile < row_tiles; tile += most) {
    const int tiles = std::min(most, row_tiles - tile);
    ORCD_RETURN_IF_CUDA_ERROR(
        kernels_.dequantise(all, tile, tiles, buffers_.dequantised, step.stream),
        "dequantising weights");
    args.product.matrices[0] = {.data = buffers_.dequantised,
                                .format = TileFormat::kF16,
                                .rows = std::min(matrix.rows - tile * kTileRows, tiles * kTileRows),
                                .cols = matrix.cols,
                                .exponent = matrix.exponent};
    args.epilogue = FromRow(epilogue, tile * kTileRows);
    ORCD_RETURN_IF_CUDA_ERROR(kernels_.gemm(args, device_, step.stream), "a product");
  }
  return absl::OkStatus();
}

bool Forward::HasEpilogues(const Step& step) const {
  return kernels_.fuses && step.shape.tokens > kMaxPartialsTokens && step.tap == nullptr;
}

bool Forward::RopeEpilogues(const Step& step, const LayerPlan& plan) const {
  return HasEpilogues(step) && !step.shape.decode && RopeEpilogueTakes(plan.qkv);
}

NormArgs Forward::NormOf(const Branch& branch, const float* weight) const {
  NormArgs norm = {.residual = residual_,
                   .partials = branch.partials,
                   .splits = branch.splits,
                   .partials_tokens = branch.partials_tokens,
                   .scale = branch.scale,
                   .bias = branch.bias,
                   .post_norm = branch.post_norm,
                   .residual_scale = spec_.residual_scale,
                   .weight = weight,
                   .kind = spec_.norm,
                   .eps = spec_.norm_eps,
                   .hidden = spec_.hidden};
  if (norm.bias == nullptr && norm.post_norm == nullptr) {
    norm.scale *= norm.residual_scale;
    norm.residual_scale = 1;
  }
  return norm;
}

absl::Status Forward::RunNorm(const Step& step, const Branch& branch, NormArgs norm) {
  DeviceMemory shown;
  if (step.tap != nullptr && norm.post_norm != nullptr) {
    ORCD_ASSIGN_OR_RETURN(
        shown, DeviceMemory::Allocate(step.tap->tokens() * spec_.hidden * sizeof(float), "a tap"));
    norm.branch = reinterpret_cast<float*>(shown.data());
  }
  ORCD_RETURN_IF_CUDA_ERROR(LaunchNorm(norm, step.stream), "a norm");
  if (norm.branch == nullptr) return absl::OkStatus();
  return step.tap->Rows(branch.post_norm_point, branch.layer, norm.branch, spec_.hidden);
}

absl::Status Forward::Norm(const Step& step, const float* weight, MatmulArgs& args, bool in_product,
                           bool head, float* out_f32) {
  const Branch branch = std::exchange(branch_, {});
  NormArgs norm = NormOf(branch, weight);
  norm.out_f32 = out_f32;
  norm.tokens = head ? step.shape.logit_rows : step.shape.tokens;
  if (in_product && kernels_.fuses && step.shape.tokens == 1 && step.tap == nullptr &&
      ProductsNormalise(norm)) {
    args.prologue = LeaveToLaunch(norm);
    return absl::OkStatus();
  }
  if (head) norm.rows = step.tables.logit_tokens;
  norm.out = View(head ? buffers_.head_in : buffers_.normed, norm.tokens);
  args.prologue = norm.out;
  ORCD_RETURN_IF_ERROR(ClearPadding(step, norm.out, spec_.hidden));
  return RunNorm(step, branch, norm);
}

NormArgs Forward::LeaveToLaunch(NormArgs norm) {
  norm.new_residual = new_residual_;
  std::swap(residual_, new_residual_);
  return norm;
}

absl::Status Forward::AddBranch(const Step& step) {
  const Branch branch = std::exchange(branch_, {});
  if (branch.partials == nullptr) return absl::OkStatus();
  NormArgs norm = NormOf(branch, nullptr);
  norm.tokens = step.shape.tokens;
  return RunNorm(step, branch, norm);
}

const KvCacheView& Forward::CacheOf(const LayerPlan& plan) const {
  return plan.in_windows() ? kv_.windows : kv_.whole;
}

StepTables Forward::TablesOf(const Step& step, const LayerPlan& plan) {
  return plan.in_windows() ? step.tables.OfWindows() : step.tables;
}

absl::Status Forward::RunMixer(const Step& step, int layer) {
  attended_ = View(buffers_.attended, step.shape.tokens);
  if (spec_.layers[layer].recurrent()) return RunDeltaNet(step, layer);
  ORCD_RETURN_IF_ERROR(RunAttention(step, layer));
  return GateAttention(step, layer);
}

absl::Status Forward::MixerNorm(const Step& step, int layer, MatmulArgs& args, bool in_product) {
  // A parallel FFN takes the same input.
  ORCD_RETURN_IF_ERROR(Norm(step, weights_.layers()[layer].attn_norm, args,
                            in_product && layer_.form != LayerForm::kParallel));
  if (step.tap == nullptr) return absl::OkStatus();
  if (layer > 0) ORCD_RETURN_IF_ERROR(step.tap->Rows(kLayer, layer - 1, residual_, spec_.hidden));
  if (layer_.form == LayerForm::kPostNorm) return absl::OkStatus();
  return step.tap->Normed(kAttnNorm, layer, args, spec_.hidden);
}

absl::Status Forward::MultiplyQkv(const Step& step, int layer, QkvProduct& qkv) {
  const DeviceLayer& w = weights_.layers()[layer];
  const LayerPlan& plan = plans_[layer];
  MatmulArgs qkv_args = {
      .product = {.matrices = {w.qkv[0], w.qkv[1], w.qkv[2]}, .num_matrices = 3}};
  // A gate takes the same input.
  ORCD_RETURN_IF_ERROR(MixerNorm(step, layer, qkv_args, /*in_product=*/w.attn_gate.rows == 0));
  qkv = plan.qkv;
  if (RopeEpilogues(step, plan)) {
    qkv_args.epilogue = StoreQkv{RopeOf(step, plan, qkv)};
    return MultiplySplitK(step, nullptr, qkv_args);
  }
  ORCD_RETURN_IF_ERROR(MultiplySplitK(step, buffers_.qkv, qkv_args));
  qkv.partials = buffers_.qkv;
  qkv.splits = splits_;
  qkv.partials_tokens = products_tokens_;
  return absl::OkStatus();
}

absl::Status Forward::RunAttention(const Step& step, int layer) {
  const LayerPlan& plan = plans_[layer];
  QkvProduct qkv;
  ORCD_RETURN_IF_ERROR(MultiplyQkv(step, layer, qkv));
  const bool decodes = step.shape.decode && step.tap == nullptr;
  const bool makes_rows = decodes && !step.shape.drafts && DecodeMakesRows(qkv);
  if (!makes_rows && !RopeEpilogues(step, plan)) ORCD_RETURN_IF_ERROR(Rope(step, layer, qkv));
  ORCD_RETURN_IF_ERROR(ClearPadding(step, attended_, layer_.q_size()));
  if (decodes) {
    ORCD_RETURN_IF_CUDA_ERROR(
        kernels_.decode_attention({.step = TablesOf(step, plan),
                                   .sequences = step.shape.sequences,
                                   .qkv = qkv,
                                   .q = makes_rows ? nullptr : buffers_.q,
                                   .q_lo = makes_rows ? nullptr : buffers_.q_lo,
                                   .sees_step = step.shape.drafts,
                                   .rule = plan.rule,
                                   .kv = CacheOf(plan),
                                   .not_finite = plan.not_finite,
                                   .layer = plan.cache_layer,
                                   .key_splits = step.shape.key_splits,
                                   .partials = buffers_.attention_partials,
                                   .counters = buffers_.attention_counters,
                                   .out = attended_},
                                  device_, step.stream),
        "attention");
  } else {
    ORCD_RETURN_IF_CUDA_ERROR(kernels_.prefill_attention({.step = TablesOf(step, plan),
                                                          .sequences = step.shape.sequences,
                                                          .query_tiles = step.shape.query_tiles,
                                                          .q = buffers_.q,
                                                          .q_lo = buffers_.q_lo,
                                                          .query_split = qkv.query_split,
                                                          .rule = plan.rule,
                                                          .kv = CacheOf(plan),
                                                          .layer = plan.cache_layer,
                                                          .heads = layer_.heads,
                                                          .out = attended_},
                                                         device_, step.stream),
                              "attention");
  }
  if (step.tap == nullptr) return absl::OkStatus();
  return step.tap->F16(kAttn, layer, attended_, layer_.q_size(), 1);
}

absl::Status Forward::GateAttention(const Step& step, int layer) {
  const TiledMatrix& gate = weights_.layers()[layer].attn_gate;
  if (gate.rows == 0) return absl::OkStatus();
  ORCD_RETURN_IF_ERROR(MultiplySplitK(step, buffers_.products,
                                      {.prologue = View(buffers_.normed, step.shape.tokens),
                                       .product = {.matrices = {gate}, .num_matrices = 1}}));
  ORCD_RETURN_IF_CUDA_ERROR(LaunchGateAttention({.partials = buffers_.products,
                                                 .splits = splits_,
                                                 .partials_tokens = products_tokens_,
                                                 .cols = gate.rows,
                                                 .tokens = step.shape.tokens,
                                                 .values = attended_},
                                                step.stream),
                            "the gate of attention");
  if (step.tap == nullptr) return absl::OkStatus();
  return step.tap->F16(kAttnGated, layer, attended_, gate.rows, 1);
}

int Forward::AttendedCols(int layer) const {
  const LayerSpec& spec = spec_.layers[layer];
  return spec.recurrent() ? spec.delta.value_size() : spec.q_size();
}

absl::Status Forward::GatherLogitRows(const Step& step) {
  const GatherRowsArgs args = {
      .residual = residual_,
      .attended = attended_,
      .rows = step.tables.logit_tokens,
      .count = step.shape.logit_rows,
      .hidden = spec_.hidden,
      // With the zeros behind them.
      .attended_cols = RoundUp(AttendedCols(num_layers_ - 1), kActivationCols),
      .gathered_residual = buffers_.gathered_residual,
      .gathered_attended = View(buffers_.gathered_attended, step.shape.logit_rows)};
  ORCD_RETURN_IF_CUDA_ERROR(LaunchGatherRows(args, step.stream), "gathering rows");
  residual_ = args.gathered_residual;
  attended_ = args.gathered_attended;
  return absl::OkStatus();
}

absl::Status Forward::RunAttentionOutput(const Step& step, int layer) {
  const DeviceLayer& w = weights_.layers()[layer];
  const bool recurrent = spec_.layers[layer].recurrent();
  const TiledMatrix& output = recurrent ? w.delta.output : w.attn_output;
  ORCD_RETURN_IF_ERROR(MultiplyForResidual(
      step, plans_[layer].attn_adds,
      {.bias = w.attn_output_bias,
       .post_norm = w.attn_post_norm,
       .post_norm_point = kAttnPostNorm,
       .layer = layer},
      {.prologue = attended_, .product = {.matrices = {output}, .num_matrices = 1}}));
  if (step.tap == nullptr) return absl::OkStatus();
  return step.tap->Product(kAttnOutput, layer, branch_, spec_.hidden);
}

RopeArgs Forward::RopeOf(const Step& step, const LayerPlan& plan, const QkvProduct& qkv) const {
  return {.step = TablesOf(step, plan),
          .qkv = qkv,
          .q = buffers_.q,
          .q_lo = buffers_.q_lo,
          .kv = CacheOf(plan),
          .not_finite = plan.not_finite,
          .layer = plan.cache_layer,
          .tokens = step.shape.tokens};
}

absl::Status Forward::Rope(const Step& step, int layer, const QkvProduct& qkv) {
  const int tokens = step.shape.tokens;
  const int q_size = layer_.q_size();
  const int kv_size = layer_.kv_size();
  const int rows = q_size + 2 * kv_size;
  RopeArgs args = RopeOf(step, plans_[layer], qkv);
  DeviceMemory shown;
  if (step.tap != nullptr) {
    const int64_t floats = int64_t{tokens} * rows;
    ORCD_ASSIGN_OR_RETURN(shown, DeviceMemory::Allocate(3 * floats * sizeof(float), "a tap"));
    args.biased = reinterpret_cast<float*>(shown.data());
    args.normed = args.biased + floats;
    args.rotated = args.normed + floats;
  }
  ORCD_RETURN_IF_CUDA_ERROR(LaunchRope(args, step.stream), "RoPE");
  if (step.tap == nullptr) return absl::OkStatus();
  const bool halves = weights_.layers()[layer].halves;
  const auto show = [&](TapPoint point, const float* values, int first, int cols) {
    const bool reordered = halves && point != kV;
    return step.tap->Part(point, layer, values, rows, cols, [&](int i) {
      return first + (reordered ? PlaceInHalves(i, layer_.head_dim) : i);
    });
  };
  ORCD_RETURN_IF_ERROR(show(kQ, args.biased, 0, q_size));
  ORCD_RETURN_IF_ERROR(show(kK, args.biased, q_size, kv_size));
  ORCD_RETURN_IF_ERROR(show(kV, args.biased, q_size + kv_size, kv_size));
  if (layer_.qk_norm != QkNorm::kNone) {
    ORCD_RETURN_IF_ERROR(show(kQNorm, args.normed, 0, q_size));
    ORCD_RETURN_IF_ERROR(show(kKNorm, args.normed, q_size, kv_size));
  }
  ORCD_RETURN_IF_ERROR(show(kQRope, args.rotated, 0, q_size));
  return show(kKRope, args.rotated, q_size, kv_size);
}

absl::Status Forward::RunFfn(const Step& step, int layer) {
  const DeviceLayer& w = weights_.layers()[layer];
  const bool experts = spec_.layers[layer].experts.count > 0;
  MatmulArgs args;
  NormArgs norm = NormOf(branch_, w.ffn_norm);
  if (RoutesWithNorm(step, layer, norm)) {
    branch_ = {};
    norm.tokens = 1;
    norm.out = View(buffers_.normed, 1);
    args.prologue = LeaveToLaunch(norm);
  } else if (layer_.form == LayerForm::kParallel) {
    // The product of `down` takes the place of that of attention.
    ORCD_RETURN_IF_ERROR(AddBranch(step));
    args.prologue = View(buffers_.normed, step.shape.tokens);
  } else {
    ORCD_RETURN_IF_ERROR(Norm(step, w.ffn_norm, args, /*in_product=*/!experts, /*head=*/false,
                              experts ? buffers_.experts.x : nullptr));
  }
  if (step.tap != nullptr) {
    ORCD_RETURN_IF_ERROR(step.tap->Rows(kAttnResidual, layer, residual_, spec_.hidden));
    if (layer_.form == LayerForm::kPreNorm) {
      ORCD_RETURN_IF_ERROR(step.tap->Normed(kFfnNorm, layer, args, spec_.hidden));
    }
  }
  if (experts) {
    ORCD_RETURN_IF_ERROR(RunExperts(step, layer, args.prologue));
  } else {
    ORCD_RETURN_IF_ERROR(RunGate(step, layer, args));
    ORCD_RETURN_IF_ERROR(
        MultiplyForResidual(step, plans_[layer].ffn_adds,
                            {.scale = 1 / kSwiGluScale,
                             .bias = w.down_bias,
                             .post_norm = w.ffn_post_norm,
                             .post_norm_point = kFfnPostNorm,
                             .layer = layer},
                            {.prologue = View(buffers_.gated, step.shape.tokens),
                             .product = {.matrices = {w.down}, .num_matrices = 1}}));
  }
  if (step.tap == nullptr) return absl::OkStatus();
  return step.tap->Product(kFfnDown, layer, branch_, spec_.hidden);
}

absl::Status Forward::RunGate(const Step& step, int layer, MatmulArgs args) {
  const DeviceLayer& w = weights_.layers()[layer];
  const Activations gated = View(buffers_.gated, step.shape.tokens);
  if (args.product.num_matrices == 0) {
    args.product = {.matrices = {w.gate_up, w.up}, .num_matrices = w.gate_apart() ? 2 : 1};
  }
  ORCD_RETURN_IF_ERROR(ClearPadding(step, gated, FfnWidth(spec_.layers[layer])));
  if (step.tap != nullptr || w.gate_apart()) return RunGateApart(step, layer, args, gated);
  args.epilogue = SwiGlu{gated, layer_.activation};
  return Multiply(step, args);
}

absl::Status Forward::RunGateApart(const Step& step, int layer, MatmulArgs args,
                                   const Activations& gated) {
  const DeviceLayer& w = weights_.layers()[layer];
  const int tokens = step.shape.tokens;
  const int ffn = FfnWidth(spec_.layers[layer]);
  const int rows = Rows(args.product);
  DeviceMemory shown;
  float* y = buffers_.gate_and_up;
  if (step.tap != nullptr) {
    ORCD_ASSIGN_OR_RETURN(shown,
                          DeviceMemory::Allocate(int64_t{tokens} * rows * sizeof(float), "a tap"));
    y = reinterpret_cast<float*>(shown.data());
  }
  args.epilogue = StoreF32{y, rows};
  ORCD_RETURN_IF_ERROR(Multiply(step, args));
  if (step.tap != nullptr) {
    // In one matrix, 8 rows of gate and 8 of up alternate.
    const int up = w.gate_apart() ? ffn : 8;
    const int apart = w.gate_apart() ? 8 : kTileRows;
    const auto place = [&](int first) {
      return [first, apart](int i) { return first + i / 8 * apart + i % 8; };
    };
    const float* const bias = w.gate_up_bias;
    ORCD_RETURN_IF_ERROR(step.tap->Part(kFfnGate, layer, y, rows, ffn, place(0), bias));
    ORCD_RETURN_IF_ERROR(step.tap->Part(kFfnUp, layer, y, rows, ffn, place(up),
                                        bias == nullptr ? nullptr : bias + ffn));
  }
  ORCD_RETURN_IF_CUDA_ERROR(LaunchSwiGlu({.products = y,
                                          .apart = w.gate_apart(),
                                          .bias = w.gate_up_bias,
                                          .activation = layer_.activation,
                                          .ffn = ffn,
                                          .tokens = tokens,
                                          .out = gated},
                                         step.stream),
                            "the gate");
  if (step.tap == nullptr) return absl::OkStatus();
  return step.tap->F16(kFfnAct, layer, gated, ffn, 1 / kSwiGluScale);
}

absl::Status Forward::ScaleLogits(const Step& step, float* logits, int rows) const {
  if (spec_.logit_scale == 1 && spec_.logit_softcap == 0) return absl::OkStatus();
  ORCD_RETURN_IF_CUDA_ERROR(LaunchScaleLogits({.logits = logits,
                                               .vocab = spec_.vocab,
                                               .rows = rows,
                                               .scale = spec_.logit_scale,
                                               .softcap = spec_.logit_softcap},
                                              step.stream),
                            "scaling logits");
  return absl::OkStatus();
}

absl::Status Forward::RunHead(const Step& step) {
  const int rows = step.shape.logit_rows;
  if (rows == 0) return absl::OkStatus();
  MatmulArgs args = {
      .product = {.matrices = {weights_.output()}, .num_matrices = 1, .tokens = rows},
      .epilogue = StoreF32{buffers_.logits, spec_.vocab}};
  ORCD_RETURN_IF_ERROR(
      Norm(step, weights_.output_norm(), args, /*in_product=*/true, /*head=*/true));
  ORCD_RETURN_IF_ERROR(Multiply(step, args));
  return ScaleLogits(step, buffers_.logits, rows);
}

absl::Status Forward::TapHead(const Step& step) {
  const int tokens = step.shape.tokens;
  MatmulArgs args = {.product = {.matrices = {weights_.output()}, .num_matrices = 1}};
  ORCD_RETURN_IF_ERROR(Norm(step, weights_.output_norm(), args));
  ORCD_RETURN_IF_ERROR(step.tap->Rows(kLayer, num_layers_ - 1, residual_, spec_.hidden));
  ORCD_RETURN_IF_ERROR(step.tap->Normed(kOutputNorm, -1, args, spec_.hidden));
  ORCD_ASSIGN_OR_RETURN(
      const DeviceMemory logits,
      DeviceMemory::Allocate(int64_t{tokens} * spec_.vocab * sizeof(float), "a tap"));
  float* const y = reinterpret_cast<float*>(logits.data());
  args.epilogue = StoreF32{y, spec_.vocab};
  ORCD_RETURN_IF_ERROR(Multiply(step, args));
  ORCD_RETURN_IF_ERROR(ScaleLogits(step, y, tokens));
  return step.tap->Rows(kLogits, -1, y, spec_.vocab);
}

}  // namespace orcd::cuda
