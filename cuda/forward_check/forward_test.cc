// Runs every kind of step, for models of every size and file type, on memory of expressions. The
// logits, keys and values must be those of the model's definition, wherever data lies and whenever
// weights are dequantised.
#include "cuda/forward.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_weights.h"
#include "cuda/forward_check/symbolic_gpu.h"
#include "gtest/gtest.h"
#include "runtime/model/spec.h"
#include "runtime/model/weights.h"
#include "testing/random_model/qwen2_shapes.h"

namespace orcd::cuda {
namespace {

constexpr int kMostTokens = 4096;
constexpr int kMostSeqs = 1024;

// Addresses at which nothing lies, far from each other.
template <typename T = uint8_t>
T* Nowhere(int which) {
  return reinterpret_cast<T*>(uintptr_t(which) << 44);
}

// A published model as its files are, with some of its layers.
struct Case {
  Qwen2Shape shape;
  FileType file_type;
  int layers;
  // Gives each matrix a type of its own, instead of the file type's.
  bool mixed = false;

  std::string name() const {
    std::string name = absl::StrCat(std::string(shape.size), "_",
                                    mixed ? "mixed" : std::string(file_type.name), "_", layers);
    std::erase(name, '.');
    return name;
  }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name(); }

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Qwen2Shape& shape : AllQwen2Shapes()) {
    for (const FileType& type : AllFileTypes()) cases.push_back({shape, type, 3});
  }
  cases.push_back({*FindQwen2Shape("7b"), *FindFileType("Q4_K_M"), 1});
  // Enough layers for each matrix to have each type, and for gate and up to have each pair of
  // neighbouring types.
  for (const char* const size : {"0.5b", "7b"}) {
    cases.push_back({*FindQwen2Shape(size), *FindFileType("F16"), 14, /*mixed=*/true});
  }
  return cases;
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

ModelSpec SpecOf(const Case& c) {
  ModelSpec spec;
  spec.hidden = c.shape.hidden;
  spec.layers.assign(c.layers, {.heads = c.shape.heads,
                                .kv_heads = c.shape.kv_heads,
                                .head_dim = c.shape.head_dim,
                                .ffn = c.shape.ffn});
  spec.vocab = c.shape.vocab;
  spec.context_length = 32768;
  return spec;
}

// Weights that are only shapes and types. The types are those of the model's first and last layers
// and of layers between.
ModelWeights WeightsOf(const Case& c, const ModelSpec& spec) {
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

// Decode steps of one token per sequence, and prompts of which some rows have logits.
std::vector<StepShape> Steps() {
  std::vector<StepShape> steps;
  for (const int sequences : {1, 8, 9, 64, 256, 512, 513}) {
    steps.push_back({.tokens = sequences,
                     .sequences = sequences,
                     .logit_rows = sequences,
                     .decode = true,
                     .key_splits = 4});
  }
  for (const int tokens : {1, 8, 100, 256, 512, 513, 3071, 3072, 4096}) {
    for (const int rows : {0, 1, 8, 512, 513, 1000}) {
      if (rows > tokens) continue;
      steps.push_back({.tokens = tokens, .sequences = rows + 1, .logit_rows = rows});
    }
  }
  return steps;
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
  Symbol residual = gpu.Embedded();
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

class SymbolicForwardTest : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Models, SymbolicForwardTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name(); });

TEST_P(SymbolicForwardTest, ComputesWhatTheDefinitionSays) {
  const ModelSpec spec = SpecOf(GetParam());
  const auto weights = DeviceWeights::Plan(WeightsOf(GetParam(), spec), 1, Nowhere(1));
  ASSERT_TRUE(weights.ok()) << weights.status();
  const ForwardBuffers buffers(spec, *weights,
                               {.max_tokens = kMostTokens,
                                .max_seqs = kMostSeqs,
                                .max_key_tiles = 1000,
                                .context_length = spec.context_length,
                                .kv_tokens = 100'000},
                               Nowhere(2));
  const KvCacheView kv = {.data = Nowhere<__half>(3),
                          .blocks = 1000,
                          .block_tokens = 16,
                          .kv_heads = spec.layers[0].kv_heads,
                          .head_dim = spec.layers[0].head_dim};
  const StepTables tables = {.tokens = Nowhere<TokenEntry>(4),
                             .sequences = Nowhere<SequenceEntry>(5),
                             .blocks = Nowhere<int32_t>(6),
                             .logit_tokens = Nowhere<int32_t>(7)};
  const KernelSet kernels = SymbolicKernels();
  DeviceInfo device;
  device.traits.sms = 132;
  device.kernels = &kernels;
  Forward forward(spec, *weights, buffers, kv, device);
  SymbolicGpu gpu(spec, *weights, buffers);
  // Each step finds in the buffers what the step before has left there.
  for (const StepShape& step : Steps()) {
    SCOPED_TRACE(absl::StrCat(step.tokens, step.decode ? " sequences of one token" : " tokens of ",
                              step.decode ? "" : "prompts, logits of ", step.logit_rows, " rows"));
    gpu.BeginStep();
    const absl::Status enqueued = forward.Enqueue(tables, step, nullptr, nullptr);
    ASSERT_EQ(gpu.problem(), "");
    ASSERT_TRUE(enqueued.ok()) << enqueued;
    const Expected expected = Define(gpu, *weights, step);
    for (int layer = 0; layer < spec.num_layers(); ++layer) {
      EXPECT_EQ(gpu.keys_and_values(layer), expected.keys_and_values[layer])
          << "layer " << layer << ": " << gpu.symbols().Describe(gpu.keys_and_values(layer), 8);
    }
    if (step.logit_rows == 0) continue;
    const Symbol logits = gpu.Logits(step.logit_rows);
    ASSERT_EQ(gpu.problem(), "");
    ASSERT_EQ(logits, expected.logits) << gpu.symbols().Describe(logits, 8) << ", and not "
                                       << gpu.symbols().Describe(expected.logits, 8);
  }
}

}  // namespace
}  // namespace orcd::cuda
