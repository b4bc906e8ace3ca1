#include "cuda/forward.h"

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/activation_reader.h"
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
  const int splits = Splits(RowTiles(product), product.matrices[0].cols);
  return std::max(int64_t{splits} * split_tokens, int64_t{tokens}) * Rows(product);
}

int64_t F16Bytes(const TiledMatrix& matrix) {
  return int64_t{matrix.row_tiles()} * kTileRows * RoundUp(matrix.cols, kActivationCols) * 2;
}

// Returns the epilogue of a product's rows from `row` on.
Epilogue FromRow(Epilogue epilogue, int row) {
  if (auto* const store = std::get_if<StoreF32>(&epilogue)) store->y += row;
  if (auto* const qkv = std::get_if<StoreQkv>(&epilogue)) qkv->first_row += row;
  return epilogue;
}

}  // namespace

ForwardBuffers::ForwardBuffers(const ModelSpec& spec, const DeviceWeights& weights,
                               const ForwardLimits& limits, uint8_t* slab) {
  Carver carver(slab);
  const LayerSpec& shape = spec.layers[0];
  const int tokens = RoundUp(limits.max_tokens, 8);
  const int rows = RoundUp(limits.max_seqs, 8);
  const auto activations = [&](int count, int cols) {
    return carver.Take<__half>(ActivationBytes(count, cols) / 2);
  };
  residual[0] = carver.Take<float>(int64_t{tokens} * spec.hidden);
  residual[1] = carver.Take<float>(spec.hidden);
  normed = activations(tokens, spec.hidden);
  int64_t floats = 0;
  int64_t gate_and_up_floats = 0;
  dequantised_bytes = kMinDequantisedBytes;
  for (const DeviceLayer& layer : weights.layers()) {
    for (const Product& product :
         {Product{.matrices = {layer.qkv[0], layer.qkv[1], layer.qkv[2]}, .num_matrices = 3},
          Product{.matrices = {layer.attn_output}, .num_matrices = 1},
          Product{.matrices = {layer.down}, .num_matrices = 1}}) {
      floats = std::max(floats, ProductFloats(product, tokens));
    }
    for (const TiledMatrix* matrix : {&layer.gate_up, &layer.down, &layer.attn_output}) {
      if (matrix->format != TileFormat::kF16)
        dequantised_bytes = std::max(dequantised_bytes, F16Bytes(*matrix));
    }
    dequantised_bytes =
        std::max(dequantised_bytes,
                 F16Bytes(layer.qkv[0]) + F16Bytes(layer.qkv[1]) + F16Bytes(layer.qkv[2]));
    if (layer.gate_apart()) {
      if (layer.gate_up.format != TileFormat::kF16 || layer.up.format != TileFormat::kF16) {
        dequantised_bytes =
            std::max(dequantised_bytes, F16Bytes(layer.gate_up) + F16Bytes(layer.up));
      }
      gate_and_up_floats = int64_t{tokens} * 2 * shape.ffn;
    }
  }
  products = carver.Take<float>(floats);
  qkv = carver.Take<float>(floats);
  q = carver.Take<__half>(int64_t{tokens} * shape.q_size());
  q_lo = carver.Take<__half>(int64_t{tokens} * shape.q_size());
  attended = activations(tokens, shape.q_size());
  gathered_residual = carver.Take<float>(int64_t{rows} * spec.hidden);
  gathered_attended = activations(rows, shape.q_size());
  head_in = activations(rows, spec.hidden);
  angles = carver.Take<float>(int64_t{limits.context_length} * shape.head_dim);
  query_split = carver.Take<int32_t>(int64_t{spec.num_layers()} * shape.kv_heads);
  gate_and_up = gate_and_up_floats == 0 ? nullptr : carver.Take<float>(gate_and_up_floats);
  dequantised = carver.Take<uint8_t>(dequantised_bytes);
  stream_k.sums = carver.Take<uint8_t>(StreamKWorkspace::kSumsBytes);
  stream_k.ready = carver.Take<int32_t>(StreamKWorkspace::kReady);
  constexpr int64_t kFloat = sizeof(float);
  uint8_t* const aliased = carver.Take<uint8_t>(
      std::max({ActivationBytes(tokens, shape.ffn), kFloat * rows * spec.vocab,
                kFloat * limits.max_key_tiles * shape.heads * (shape.head_dim + 2)}));
  gated = reinterpret_cast<__half*>(aliased);
  logits = reinterpret_cast<float*>(aliased);
  attention_partials = reinterpret_cast<float*>(aliased);
  attention_counters = carver.Take<int32_t>(int64_t{limits.max_seqs} * shape.kv_heads);
  last_sample = carver.Take<int32_t>(limits.max_seqs);
  block_token_ids = carver.Take<int32_t>(limits.kv_tokens);
  not_finite = carver.Take<int32_t>(limits.max_seqs);
  bytes = carver.taken();
}

// Shows a step's activations to an ActivationTap.
class Forward::Tap {
 public:
  Tap(ActivationTap& tap, cudaStream_t stream, int tokens)
      : tap_(tap), reader_(stream), tokens_(tokens) {}

  absl::Status Rows(TapPoint point, int layer, const float* values, int cols) {
    return Part(point, layer, values, cols, 0, cols);
  }
  // Columns of rows that are `stride` floats apart: the first is `first`, and each 8 columns begin
  // `apart` after the 8 before.
  absl::Status Part(TapPoint point, int layer, const float* values, int stride, int first, int cols,
                    int apart = 8) {
    ORCD_ASSIGN_OR_RETURN(const std::vector<float> rows,
                          reader_.Floats(values, int64_t{tokens_} * stride));
    std::vector<float> part;
    part.reserve(int64_t{tokens_} * cols);
    for (int t = 0; t < tokens_; ++t) {
      const float* const row = rows.data() + int64_t{t} * stride + first;
      for (int i = 0; i < cols; ++i) part.push_back(row[i / 8 * apart + i % 8]);
    }
    tap_.OnActivation(point, layer, part, tokens_, cols);
    return absl::OkStatus();
  }
  absl::Status F16(TapPoint point, int layer, const Activations& values, int cols, float scale) {
    ORCD_ASSIGN_OR_RETURN(const std::vector<float> rows,
                          reader_.FromActivations(values, tokens_, cols, scale));
    tap_.OnActivation(point, layer, rows, tokens_, cols);
    return absl::OkStatus();
  }
  // The output of Norm, which is the input of a product.
  absl::Status Normed(TapPoint point, int layer, const MatmulArgs& product, int cols) {
    return F16(point, layer, std::get<Activations>(product.prologue), cols, 1);
  }
  // A product that is left as split-K partials.
  absl::Status Product(TapPoint point, int layer, const float* values, int splits, int stride,
                       int cols, float scale) {
    ORCD_ASSIGN_OR_RETURN(const std::vector<float> partials,
                          reader_.Floats(values, int64_t{splits} * stride * cols));
    std::vector<float> rows(int64_t{tokens_} * cols);
    for (int s = 0; s < splits; ++s) {
      for (size_t i = 0; i < rows.size(); ++i) rows[i] += partials[int64_t{s} * stride * cols + i];
    }
    for (float& value : rows) value *= scale;
    tap_.OnActivation(point, layer, rows, tokens_, cols);
    return absl::OkStatus();
  }

 private:
  ActivationTap& tap_;
  ActivationReader reader_;
  const int tokens_;
};

Forward::Forward(const ModelSpec& spec, const DeviceWeights& weights, const ForwardBuffers& buffers,
                 const KvCacheView& kv, const DeviceInfo& device)
    : spec_(spec),
      layer_(spec.layers[0]),
      weights_(weights),
      buffers_(buffers),
      kv_(kv),
      device_(device.traits),
      kernels_(*device.kernels) {}

Activations Forward::View(__half* data, int tokens) const {
  return {.data = data, .tokens = RoundUp(tokens, 8)};
}

absl::Status Forward::Enqueue(const StepTables& tables, const StepShape& shape, cudaStream_t stream,
                              ActivationTap* tap) {
  std::optional<Tap> shown;
  if (tap != nullptr) shown.emplace(*tap, stream, shape.tokens);
  const Step step = {tables, shape, stream, tap == nullptr ? nullptr : &*shown};
  residual_ = buffers_.residual[0];
  new_residual_ = buffers_.residual[1];

  ORCD_RETURN_IF_CUDA_ERROR(LaunchEmbed({.step = tables,
                                         .block_token_ids = buffers_.block_token_ids,
                                         .block_tokens = kv_.block_tokens,
                                         .not_finite = buffers_.not_finite,
                                         .last_sample = buffers_.last_sample,
                                         .embedding = weights_.embedding(),
                                         .residual = residual_,
                                         .tokens = shape.tokens},
                                        stream),
                            "embedding");
  if (tap != nullptr) ORCD_RETURN_IF_ERROR(shown->Rows(kEmbed, -1, residual_, spec_.hidden));
  const int last = spec_.num_layers() - 1;
  for (int layer = 0; layer < last; ++layer) {
    ORCD_RETURN_IF_ERROR(RunAttention(step, layer));
    ORCD_RETURN_IF_ERROR(RunAttentionOutput(step, layer));
    ORCD_RETURN_IF_ERROR(RunFfn(step, layer));
  }
  ORCD_RETURN_IF_ERROR(RunAttention(step, last));
  // In the last layer, tokens without logits only contribute keys and values; their rows are
  // dropped from here on.
  StepShape left = shape;
  StepTables left_tables = tables;
  if (tap == nullptr && shape.logit_rows < shape.tokens) {
    if (shape.logit_rows == 0) return absl::OkStatus();
    ORCD_RETURN_IF_ERROR(GatherLogitRows(step));
    left.tokens = shape.logit_rows;
    left_tables.logit_tokens = nullptr;
  }
  const Step rest = {left_tables, left, stream, step.tap};
  ORCD_RETURN_IF_ERROR(RunAttentionOutput(rest, last));
  ORCD_RETURN_IF_ERROR(RunFfn(rest, last));
  if (tap != nullptr) ORCD_RETURN_IF_ERROR(TapHead(rest));
  return RunHead(rest);
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

absl::Status Forward::MultiplyForResidual(const Step& step, float scale, MatmulArgs args) {
  if (!ProductsAdd(step)) return MultiplySplitK(step, buffers_.products, args);
  args.epilogue = AddToResidual{residual_, spec_.hidden, scale};
  return MultiplySplitK(step, nullptr, args);
}

absl::Status Forward::Multiply(const Step& step, MatmulArgs args) {
  Product& product = args.product;
  if (product.tokens == 0) product.tokens = step.shape.tokens;
  args.model_formats = weights_.formats();
  args.stream_k = buffers_.stream_k;
  if (product.tokens <= kMatvecTokens) {
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
          j == i || (dequantises(matrices[i])
                         ? dequantises(matrices[j])
                         : kernels_.gemm_takes_behind(matrices[j - 1].format, matrices[j].format));
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
  if (all.num_matrices > 1 || !std::holds_alternative<StoreF32>(args.epilogue)) {
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

bool Forward::NormsInProducts(const Step& step) const {
  return step.shape.tokens == 1 && step.tap == nullptr;
}

bool Forward::ProductsAdd(const Step& step) const {
  return step.shape.tokens > kMaxPartialsTokens && step.tap == nullptr;
}

bool Forward::RopeEpilogues(const Step& step) const {
  return ProductsAdd(step) && !step.shape.decode;
}

absl::Status Forward::Norm(const Step& step, const float* weight, float scale, bool add,
                           MatmulArgs& args, bool head) {
  const float* const partials = add && !ProductsAdd(step) ? buffers_.products : nullptr;
  const int tokens = head ? step.shape.logit_rows : step.shape.tokens;
  NormArgs norm = {.residual = residual_,
                   .partials = partials,
                   .splits = partials == nullptr ? 0 : splits_,
                   .partials_tokens = products_tokens_,
                   .scale = scale,
                   .weight = weight,
                   .eps = spec_.rms_eps,
                   .hidden = spec_.hidden,
                   .tokens = tokens};
  if (NormsInProducts(step)) {
    norm.new_residual = new_residual_;
    args.prologue = norm;
    std::swap(residual_, new_residual_);
    return absl::OkStatus();
  }
  if (head) norm.rows = step.tables.logit_tokens;
  norm.out = View(head ? buffers_.head_in : buffers_.normed, tokens);
  args.prologue = norm.out;
  ORCD_RETURN_IF_CUDA_ERROR(LaunchNorm(norm, step.stream), head ? "the output norm" : "a norm");
  return absl::OkStatus();
}

absl::Status Forward::RunAttention(const Step& step, int layer) {
  const DeviceLayer& w = weights_.layers()[layer];
  attended_ = View(buffers_.attended, step.shape.tokens);

  MatmulArgs qkv_args = {
      .product = {.matrices = {w.qkv[0], w.qkv[1], w.qkv[2]}, .num_matrices = 3}};
  ORCD_RETURN_IF_ERROR(Norm(step, w.attn_norm, 1 / kSwiGluScale, layer > 0, qkv_args));
  if (step.tap != nullptr) {
    if (layer > 0) ORCD_RETURN_IF_ERROR(step.tap->Rows(kLayer, layer - 1, residual_, spec_.hidden));
    ORCD_RETURN_IF_ERROR(step.tap->Normed(kAttnNorm, layer, qkv_args, spec_.hidden));
  }
  QkvProduct qkv = {.bias = w.qkv_bias,
                    .angles = buffers_.angles,
                    .query_split = buffers_.query_split + layer * layer_.kv_heads,
                    .heads = layer_.heads,
                    .kv_heads = layer_.kv_heads,
                    .head_dim = layer_.head_dim};
  if (RopeEpilogues(step)) {
    qkv_args.epilogue = StoreQkv{RopeOf(step, layer, qkv)};
    ORCD_RETURN_IF_ERROR(MultiplySplitK(step, nullptr, qkv_args));
  } else {
    ORCD_RETURN_IF_ERROR(MultiplySplitK(step, buffers_.qkv, qkv_args));
    qkv.partials = buffers_.qkv;
    qkv.splits = splits_;
    qkv.partials_tokens = products_tokens_;
  }
  if (step.shape.decode && step.tap == nullptr) {
    ORCD_RETURN_IF_CUDA_ERROR(kernels_.decode_attention({.step = step.tables,
                                                         .sequences = step.shape.sequences,
                                                         .qkv = qkv,
                                                         .kv = kv_,
                                                         .not_finite = buffers_.not_finite,
                                                         .layer = layer,
                                                         .key_splits = step.shape.key_splits,
                                                         .partials = buffers_.attention_partials,
                                                         .counters = buffers_.attention_counters,
                                                         .out = attended_},
                                                        device_, step.stream),
                              "attention");
  } else {
    if (!RopeEpilogues(step)) ORCD_RETURN_IF_ERROR(Rope(step, layer, qkv));
    ORCD_RETURN_IF_CUDA_ERROR(kernels_.prefill_attention({.step = step.tables,
                                                          .sequences = step.shape.sequences,
                                                          .query_tiles = step.shape.query_tiles,
                                                          .q = buffers_.q,
                                                          .q_lo = buffers_.q_lo,
                                                          .query_split = qkv.query_split,
                                                          .kv = kv_,
                                                          .layer = layer,
                                                          .heads = layer_.heads,
                                                          .out = attended_},
                                                         device_, step.stream),
                              "attention");
  }
  if (step.tap == nullptr) return absl::OkStatus();
  return step.tap->F16(kAttn, layer, attended_, layer_.q_size(), 1);
}

absl::Status Forward::GatherLogitRows(const Step& step) {
  const GatherRowsArgs args = {
      .residual = residual_,
      .attended = attended_,
      .rows = step.tables.logit_tokens,
      .count = step.shape.logit_rows,
      .hidden = spec_.hidden,
      .attended_cols = layer_.q_size(),
      .gathered_residual = buffers_.gathered_residual,
      .gathered_attended = View(buffers_.gathered_attended, step.shape.logit_rows)};
  ORCD_RETURN_IF_CUDA_ERROR(LaunchGatherRows(args, step.stream), "gathering rows");
  residual_ = args.gathered_residual;
  attended_ = args.gathered_attended;
  return absl::OkStatus();
}

absl::Status Forward::RunAttentionOutput(const Step& step, int layer) {
  const DeviceLayer& w = weights_.layers()[layer];
  ORCD_RETURN_IF_ERROR(MultiplyForResidual(
      step, 1,
      {.prologue = attended_, .product = {.matrices = {w.attn_output}, .num_matrices = 1}}));
  if (step.tap == nullptr) return absl::OkStatus();
  return step.tap->Product(kAttnOutput, layer, buffers_.products, splits_, products_tokens_,
                           spec_.hidden, 1);
}

RopeArgs Forward::RopeOf(const Step& step, int layer, const QkvProduct& qkv) const {
  return {.step = step.tables,
          .qkv = qkv,
          .q = buffers_.q,
          .q_lo = buffers_.q_lo,
          .kv = kv_,
          .not_finite = buffers_.not_finite,
          .layer = layer,
          .tokens = step.shape.tokens};
}

absl::Status Forward::Rope(const Step& step, int layer, const QkvProduct& qkv) {
  const int tokens = step.shape.tokens;
  const int q_size = layer_.q_size();
  const int kv_size = layer_.kv_size();
  const int rows = q_size + 2 * kv_size;
  DeviceMemory biased;
  DeviceMemory rotated;
  if (step.tap != nullptr) {
    const size_t bytes = int64_t{tokens} * rows * sizeof(float);
    ORCD_ASSIGN_OR_RETURN(biased, DeviceMemory::Allocate(bytes, "a tap"));
    ORCD_ASSIGN_OR_RETURN(rotated, DeviceMemory::Allocate(bytes, "a tap"));
  }
  float* const before = reinterpret_cast<float*>(biased.data());
  float* const after = reinterpret_cast<float*>(rotated.data());
  RopeArgs args = RopeOf(step, layer, qkv);
  args.biased = before;
  args.rotated = after;
  ORCD_RETURN_IF_CUDA_ERROR(LaunchRope(args, step.stream), "RoPE");
  if (step.tap == nullptr) return absl::OkStatus();
  ORCD_RETURN_IF_ERROR(step.tap->Part(kQ, layer, before, rows, 0, q_size));
  ORCD_RETURN_IF_ERROR(step.tap->Part(kK, layer, before, rows, q_size, kv_size));
  ORCD_RETURN_IF_ERROR(step.tap->Part(kV, layer, before, rows, q_size + kv_size, kv_size));
  ORCD_RETURN_IF_ERROR(step.tap->Part(kQRope, layer, after, rows, 0, q_size));
  return step.tap->Part(kKRope, layer, after, rows, q_size, kv_size);
}

absl::Status Forward::RunFfn(const Step& step, int layer) {
  const DeviceLayer& w = weights_.layers()[layer];
  const int tokens = step.shape.tokens;
  const Activations gated = View(buffers_.gated, tokens);

  MatmulArgs args = {
      .product = {.matrices = {w.gate_up, w.up}, .num_matrices = w.gate_apart() ? 2 : 1}};
  ORCD_RETURN_IF_ERROR(Norm(step, w.ffn_norm, 1, true, args));
  if (step.tap == nullptr && !w.gate_apart()) {
    args.epilogue = SwiGlu{gated};
    ORCD_RETURN_IF_ERROR(Multiply(step, args));
  } else {
    const int rows = w.gate_up.rows + w.up.rows;
    DeviceMemory shown;
    float* y = buffers_.gate_and_up;
    if (step.tap != nullptr) {
      ORCD_RETURN_IF_ERROR(step.tap->Rows(kAttnResidual, layer, residual_, spec_.hidden));
      ORCD_RETURN_IF_ERROR(step.tap->Normed(kFfnNorm, layer, args, spec_.hidden));
      ORCD_ASSIGN_OR_RETURN(
          shown, DeviceMemory::Allocate(int64_t{tokens} * rows * sizeof(float), "a tap"));
      y = reinterpret_cast<float*>(shown.data());
    }
    args.epilogue = StoreF32{y, rows};
    ORCD_RETURN_IF_ERROR(Multiply(step, args));
    if (step.tap != nullptr) {
      // In one matrix, 8 rows of gate and 8 of up alternate.
      const int up = w.gate_apart() ? layer_.ffn : 8;
      const int apart = w.gate_apart() ? 8 : kTileRows;
      ORCD_RETURN_IF_ERROR(step.tap->Part(kFfnGate, layer, y, rows, 0, layer_.ffn, apart));
      ORCD_RETURN_IF_ERROR(step.tap->Part(kFfnUp, layer, y, rows, up, layer_.ffn, apart));
    }
    ORCD_RETURN_IF_CUDA_ERROR(LaunchSwiGlu({.products = y,
                                            .apart = w.gate_apart(),
                                            .ffn = layer_.ffn,
                                            .tokens = tokens,
                                            .out = gated},
                                           step.stream),
                              "the gate");
    if (step.tap != nullptr) {
      ORCD_RETURN_IF_ERROR(step.tap->F16(kFfnAct, layer, gated, layer_.ffn, 1 / kSwiGluScale));
    }
  }
  ORCD_RETURN_IF_ERROR(MultiplyForResidual(
      step, 1 / kSwiGluScale,
      {.prologue = gated, .product = {.matrices = {w.down}, .num_matrices = 1}}));
  if (step.tap == nullptr) return absl::OkStatus();
  return step.tap->Product(kFfnDown, layer, buffers_.products, splits_, products_tokens_,
                           spec_.hidden, 1 / kSwiGluScale);
}

absl::Status Forward::RunHead(const Step& step) {
  const int rows = step.shape.logit_rows;
  if (rows == 0) return absl::OkStatus();
  MatmulArgs args = {
      .product = {.matrices = {weights_.output()}, .num_matrices = 1, .tokens = rows},
      .epilogue = StoreF32{buffers_.logits, spec_.vocab}};
  // With a tap, TapHead has already added the last product to the residual.
  ORCD_RETURN_IF_ERROR(Norm(step, weights_.output_norm(), 1 / kSwiGluScale, step.tap == nullptr,
                            args,
                            /*head=*/true));
  return Multiply(step, args);
}

absl::Status Forward::TapHead(const Step& step) {
  const int tokens = step.shape.tokens;
  MatmulArgs args = {.product = {.matrices = {weights_.output()}, .num_matrices = 1}};
  ORCD_RETURN_IF_ERROR(Norm(step, weights_.output_norm(), 1 / kSwiGluScale, true, args));
  ORCD_RETURN_IF_ERROR(step.tap->Rows(kLayer, spec_.num_layers() - 1, residual_, spec_.hidden));
  ORCD_RETURN_IF_ERROR(step.tap->Normed(kOutputNorm, -1, args, spec_.hidden));
  ORCD_ASSIGN_OR_RETURN(
      const DeviceMemory logits,
      DeviceMemory::Allocate(int64_t{tokens} * spec_.vocab * sizeof(float), "a tap"));
  float* const y = reinterpret_cast<float*>(logits.data());
  args.epilogue = StoreF32{y, spec_.vocab};
  ORCD_RETURN_IF_ERROR(Multiply(step, args));
  return step.tap->Rows(kLogits, -1, y, spec_.vocab);
}

}  // namespace orcd::cuda
