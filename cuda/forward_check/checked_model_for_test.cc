#include "cuda/forward_check/checked_model_for_test.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "runtime/model/weights.h"

namespace orcd::cuda {
namespace {

constexpr int kMostTokens = 4096;
constexpr int kMostSeqs = 1024;

// Addresses at which nothing lies, far from each other.
template <typename T = uint8_t>
T* Nowhere(int which) {
  return reinterpret_cast<T*>(uintptr_t(which) << 44);
}

// Types that differ between layers, and between the matrices of a layer. Some share a tile format.
TensorType MixedType(MatrixRole role, int layer, int cols) {
  constexpr TensorType kAny[] = {TensorType::kF32,   TensorType::kF16,  TensorType::kBF16,
                                 TensorType::kQ8_0,  TensorType::kQ4_0, TensorType::kQ5_1,
                                 TensorType::kIQ4_NL};
  constexpr TensorType kWhole[] = {TensorType::kF32,  TensorType::kF16,  TensorType::kBF16,
                                   TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ5_1,
                                   TensorType::kQ3_K, TensorType::kQ6_K, TensorType::kQ4_K,
                                   TensorType::kQ2_K, TensorType::kQ5_K, TensorType::kIQ4_NL};
  // In every third layer gate and up have one type.
  if (role == MatrixRole::kFfnUp && layer % 3 == 2) role = MatrixRole::kFfnGate;
  const int which = layer + static_cast<int>(role);
  return cols % 256 == 0 ? kWhole[which % std::size(kWhole)] : kAny[which % std::size(kAny)];
}

ModelSpec SpecOf(const ModelCase& c) {
  ModelSpec spec;
  spec.hidden = c.shape.hidden;
  spec.layers.assign(c.layers, {.heads = c.shape.heads,
                                .kv_heads = c.shape.kv_heads,
                                .head_dim = c.shape.head_dim,
                                .ffn = c.shape.ffn});
  spec.vocab = c.shape.vocab;
  spec.rms_eps = 1e-6f;
  spec.context_length = 32768;
  return spec;
}

// Weights that are only shapes and types. The types are those of the model's first and last layers
// and of layers between.
ModelWeights WeightsOf(const ModelCase& c, const ModelSpec& spec) {
  const auto vector = [](int size) { return Vector(Nowhere<float>(9), size); };
  const auto matrix = [&](MatrixRole role, int rows, int cols, int layer = 0) {
    const int of_all = layer * (c.shape.layers - 1) / std::max(spec.num_layers() - 1, 1);
    return Matrix{.type = c.mixed ? MixedType(role, layer, cols)
                                  : ChooseTensorType(c.file_type, c.shape, role, of_all, cols),
                  .rows = rows,
                  .cols = cols};
  };
  ModelWeights weights;
  weights.tied = c.shape.tied;
  weights.token_embd = matrix(MatrixRole::kTokenEmbd, spec.vocab, spec.hidden);
  weights.output = matrix(MatrixRole::kOutput, spec.vocab, spec.hidden);
  weights.output_norm = vector(spec.hidden);
  for (int i = 0; i < spec.num_layers(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    weights.layers.push_back(
        {.attn_norm = vector(spec.hidden),
         .attn_q = matrix(MatrixRole::kAttnQ, layer.q_size(), spec.hidden, i),
         .attn_k = matrix(MatrixRole::kAttnK, layer.kv_size(), spec.hidden, i),
         .attn_v = matrix(MatrixRole::kAttnV, layer.kv_size(), spec.hidden, i),
         .attn_q_bias = vector(layer.q_size()),
         .attn_k_bias = vector(layer.kv_size()),
         .attn_v_bias = vector(layer.kv_size()),
         .attn_output = matrix(MatrixRole::kAttnOutput, spec.hidden, layer.q_size(), i),
         .ffn_norm = vector(spec.hidden),
         .ffn_gate = matrix(MatrixRole::kFfnGate, layer.ffn, spec.hidden, i),
         .ffn_up = matrix(MatrixRole::kFfnUp, layer.ffn, spec.hidden, i),
         .ffn_down = matrix(MatrixRole::kFfnDown, spec.hidden, layer.ffn, i)});
  }
  return weights;
}

// Plans the weights, with exponents that no planned model has, so that a launch that loses one
// shows.
DeviceWeights Placed(const ModelWeights& model) {
  DeviceWeights weights = *DeviceWeights::Plan(model, 1, Nowhere(1));
  int exponent = kLeastExponent;
  const auto number = [&](const TiledMatrix& matrix) {
    const_cast<TiledMatrix&>(matrix).exponent = exponent++;
  };
  number(weights.output());
  for (const DeviceLayer& layer : weights.layers()) {
    for (const TiledMatrix& matrix : layer.qkv) number(matrix);
    for (const TiledMatrix* matrix : {&layer.attn_output, &layer.gate_up, &layer.up, &layer.down}) {
      number(*matrix);
    }
  }
  return weights;
}

// Qwen2, as the model's definition has it. Tokens without logits contribute only keys and values to
// the last layer.
struct Expected {
  std::vector<Symbol> keys_and_values;
  Symbol logits;
};
Expected Define(SymbolicGpu& gpu, const DeviceWeights& weights, const StepShape& step) {
  const auto at = [&](const void* data) { return gpu.WeightAt(data); };
  Expected expected;
  Symbol residual = gpu.Embedded(at(weights.embedding().data));
  for (const DeviceLayer& w : weights.layers()) {
    Symbol x = gpu.Normed(residual, at(w.attn_norm));
    const Symbol qkv = gpu.Qkv(gpu.Product(at(w.qkv[0].data), x), gpu.Product(at(w.qkv[1].data), x),
                               gpu.Product(at(w.qkv[2].data), x), at(w.qkv_bias));
    expected.keys_and_values.push_back(qkv);
    Symbol attended = gpu.Attention(qkv);
    if (&w == &weights.layers().back() && step.logit_rows < step.tokens) {
      residual = gpu.Rows(residual);
      attended = gpu.Rows(attended);
    }
    residual = gpu.Add(residual, gpu.Product(at(w.attn_output.data), attended), 1);
    x = gpu.Normed(residual, at(w.ffn_norm));
    x = w.gate_apart() ? gpu.Gate(gpu.Product(at(w.gate_up.data), x), gpu.Product(at(w.up.data), x))
                       : gpu.Gate(gpu.Product(at(w.gate_up.data), x));
    residual = gpu.Add(residual, gpu.Product(at(w.down.data), x), 1 / kSwiGluScale);
  }
  // The output norm gathers the rows that the tables name. With one token there is none to choose.
  if (step.logit_rows == step.tokens && step.tokens > 1) residual = gpu.Rows(residual);
  expected.logits =
      gpu.Product(at(weights.output().data), gpu.Normed(residual, at(weights.output_norm())));
  return expected;
}

DeviceInfo DeviceOf(const KernelSet& kernels) {
  DeviceInfo device;
  device.traits.sms = 132;
  device.kernels = &kernels;
  return device;
}

}  // namespace

std::string ModelCase::name() const {
  std::string name = absl::StrCat(std::string(shape.size), "_",
                                  mixed ? "mixed" : std::string(file_type.name), "_", layers);
  std::erase(name, '.');
  return name;
}

StepShape DecodeStep(int sequences) {
  return {.tokens = sequences,
          .sequences = sequences,
          .logit_rows = sequences,
          .decode = true,
          .key_splits = 4};
}

StepShape PromptStep(int tokens, int logit_rows) {
  return {.tokens = tokens,
          .sequences = logit_rows + 1,
          .logit_rows = logit_rows,
          .query_tiles = tokens};
}

CheckedModel::CheckedModel(const ModelCase& c)
    : spec_(SpecOf(c)),
      weights_(Placed(WeightsOf(c, spec_))),
      buffers_(spec_, weights_,
               {.max_tokens = kMostTokens,
                .max_seqs = kMostSeqs,
                .max_key_tiles = 1000,
                .context_length = spec_.context_length,
                .kv_tokens = 100'000},
               Nowhere(2)),
      kv_({.data = Nowhere<__half>(3),
           .blocks = 1000,
           .block_tokens = 16,
           .kv_heads = spec_.layers[0].kv_heads,
           .head_dim = spec_.layers[0].head_dim}),
      device_(DeviceOf(kernels_)),
      forward_(spec_, weights_, buffers_, kv_, device_),
      gpu_(spec_, weights_, buffers_, kv_) {}

std::string CheckedModel::Check(const StepShape& step,
                                const std::function<void(const Recorded&)>& fault) {
  // Two steps are in flight, each with its tables.
  const auto tables_of = [](int which) {
    return StepTables{.tokens = Nowhere<TokenEntry>(4) + which,
                      .sequences = Nowhere<SequenceEntry>(5) + which,
                      .blocks = Nowhere<int32_t>(6) + which,
                      .logit_tokens = Nowhere<int32_t>(7) + which};
  };
  const int which = steps_++ % 2;
  const StepTables tables = tables_of(which);
  const auto stream = Nowhere<CUstream_st>(8);
  gpu_.BeginStep(tables, step, stream);
  const absl::Status enqueued = forward_.Enqueue(tables, step, stream, nullptr);
  if (!enqueued.ok()) return enqueued.ToString();
  if (fault) fault({gpu_.recorded(), buffers_, weights_, tables_of(1 - which)});
  gpu_.Run();
  const Expected expected = Define(gpu_, weights_, step);
  for (int layer = 0; layer < spec_.num_layers() && gpu_.problem().empty(); ++layer) {
    const Symbol found = gpu_.keys_and_values(layer);
    if (found == expected.keys_and_values[layer]) continue;
    return absl::StrCat("layer ", layer, " has keys and values ",
                        gpu_.symbols().Describe(found, 8));
  }
  if (step.logit_rows == 0 || !gpu_.problem().empty()) return gpu_.problem();
  const Symbol logits = gpu_.Logits(step.logit_rows);
  if (logits == expected.logits || !gpu_.problem().empty()) return gpu_.problem();
  return absl::StrCat("the logits are ", gpu_.symbols().Describe(logits, 8), ", and not ",
                      gpu_.symbols().Describe(expected.logits, 8));
}

}  // namespace orcd::cuda
