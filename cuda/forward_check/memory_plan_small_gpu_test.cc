// Tests the plan of small GPUs' memory, without a GPU.
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cuda/device_weights.h"
#include "cuda/forward.h"
#include "cuda/kernels/portable/kernel_set.h"
#include "cuda/kernels/sm90/kernel_set.h"
#include "cuda/memory_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/model/spec.h"
#include "runtime/model/weights.h"

namespace orcd::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;
// Taken by the driver, by CUDA's context and by a desktop.
constexpr uint64_t kTaken = 410 << 20;

DeviceInfo Card(uint64_t gib, int cc) {
  DeviceInfo device;
  device.traits.cc = cc;
  device.kernels = *FindKernelSet("a card", device.traits);
  device.total_bytes = gib * kGiB;
  device.free_bytes = device.total_bytes - kTaken;
  return device;
}

ModelSpec Dense(int hidden, int layers, const LayerSpec& layer, int vocab, int context) {
  ModelSpec spec;
  spec.hidden = hidden;
  spec.layers.assign(layers, layer);
  spec.vocab = vocab;
  spec.context_length = context;
  return spec;
}
ModelSpec Mistral7B() {
  return Dense(4096, 32,
               {.heads = 32,
                .kv_heads = 8,
                .head_dim = 128,
                .ffn = 14336,
                .rope = {.dims = 128, .base = 1e6f}},
               32'768, 32'768);
}
ModelSpec Qwen7B() {
  return Dense(3584, 28,
               {.heads = 28,
                .kv_heads = 4,
                .head_dim = 128,
                .ffn = 18944,
                .rope = {.dims = 128, .base = 1e6f}},
               152'064, 32'768);
}
ModelSpec Qwen14B() {
  return Dense(5120, 48,
               {.heads = 40,
                .kv_heads = 8,
                .head_dim = 128,
                .ffn = 13824,
                .rope = {.dims = 128, .base = 1e6f}},
               152'064, 32'768);
}

// Weights of `type`; `more`: those of the head, and of half the values and downs, as in Q4_K_M.
DeviceWeights WeightsAs(const ModelSpec& spec, TensorType type, TensorType more) {
  const auto matrix = [](int rows, int cols, TensorType of) {
    return Matrix{.type = of, .rows = rows, .cols = cols};
  };
  ModelWeights weights;
  weights.token_embd = matrix(spec.vocab, spec.hidden, type);
  weights.output = matrix(spec.vocab, spec.hidden, more);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const TensorType better = i % 2 == 0 ? more : type;
    LayerWeights& w = weights.layers.emplace_back();
    w.attn_q = matrix(layer.q_size(), spec.hidden, type);
    w.attn_k = matrix(layer.kv_size(), spec.hidden, type);
    w.attn_v = matrix(layer.kv_size(), spec.hidden, better);
    w.attn_output = matrix(spec.hidden, layer.q_size(), type);
    w.ffn_gate = w.ffn_up = matrix(layer.ffn, spec.hidden, type);
    w.ffn_down = matrix(spec.hidden, layer.ffn, better);
  }
  absl::StatusOr<DeviceWeights> planned = DeviceWeights::Plan(spec, weights, /*readers=*/8);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned.ok() ? *std::move(planned) : DeviceWeights();
}
DeviceWeights Q4KM(const ModelSpec& spec) {
  return WeightsAs(spec, TensorType::kQ4_K, TensorType::kQ6_K);
}

// As the worker asks for by itself on a small card.
BackendOptions Options() {
  BackendOptions options;
  options.max_seqs = 64;
  return options;
}

class SmallGpuPlanTest : public ::testing::TestWithParam<int> {};

TEST_P(SmallGpuPlanTest, A7BOfQ4KMHasMoreThan8kContextIn8GB) {
  for (const ModelSpec& spec : {Mistral7B(), Qwen7B()}) {
    const DeviceInfo card = Card(8, GetParam());
    const auto plan = PlanMemory(spec, Q4KM(spec), Options(), card);
    ASSERT_TRUE(plan.ok()) << plan.status();
    RecordProperty("weights", std::to_string(plan->weights_bytes));
    RecordProperty("workspace", std::to_string(plan->workspace_bytes));
    EXPECT_GE(plan->forward.context_length, 8192);
    EXPECT_GE(plan->kv.blocks * 16, 8192);
    EXPECT_LE(plan->weights_bytes + plan->workspace_bytes + plan->kv_bytes(), card.free_bytes);
    EXPECT_LE(plan->workspace_bytes, 800u << 20);
  }
}

TEST_P(SmallGpuPlanTest, A14BOfQ4KMFits16GBAnd24GB) {
  const ModelSpec spec = Qwen14B();
  for (const int gib : {16, 24}) {
    const auto plan = PlanMemory(spec, Q4KM(spec), Options(), Card(gib, GetParam()));
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_GE(plan->kv.blocks * 16, gib == 16 ? 16'384 : 32'768);
  }
}

TEST_P(SmallGpuPlanTest, A14BOfF16In8GBIsRefusedWithNumbers) {
  const ModelSpec spec = Qwen14B();
  const DeviceWeights weights = WeightsAs(spec, TensorType::kF16, TensorType::kF16);
  const DeviceInfo card = Card(8, GetParam());
  const absl::Status status = PlanMemory(spec, weights, Options(), card).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("(weights " + std::to_string(weights.planned_bytes())),
                    HasSubstr("and " + std::to_string(card.free_bytes) + " of 8589934592 are free"),
                    HasSubstr("; with weights of ")));
}

TEST_P(SmallGpuPlanTest, StepsAreAsLongAsTheMemoryAllows) {
  const ModelSpec spec = Qwen7B();
  int tokens = 0;
  for (const int gib : {6, 8, 12, 16, 24, 48}) {
    const auto plan = PlanMemory(spec, Q4KM(spec), Options(), Card(gib, GetParam()));
    ASSERT_TRUE(plan.ok()) << gib << ": " << plan.status();
    EXPECT_GE(plan->options.max_step_tokens, std::max(tokens, 512));
    tokens = plan->options.max_step_tokens;
    if (gib == 6) {
      EXPECT_EQ(tokens, 512);
    }
  }
  EXPECT_EQ(tokens, 4096);
  BackendOptions options = Options();
  options.max_step_tokens = 1024;
  const auto asked = PlanMemory(spec, Q4KM(spec), options, Card(24, GetParam()));
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->options.max_step_tokens, 1024);
}

TEST_P(SmallGpuPlanTest, StepsLeaveRoomForTheKvCacheThatIsAskedFor) {
  const ModelSpec spec = Qwen7B();
  const DeviceWeights weights = Q4KM(spec);
  const DeviceInfo card = Card(8, GetParam());
  BackendOptions options = Options();
  options.kv_cache_bytes =
      static_cast<int64_t>(card.free_bytes - weights.planned_bytes() - (700 << 20));
  const auto plan = PlanMemory(spec, weights, options, card);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LT(plan->options.max_step_tokens, 4096);
}

INSTANTIATE_TEST_SUITE_P(, SmallGpuPlanTest, ::testing::Values(86, 89, 90, 120),
                         [](const auto& cc) { return "cc" + std::to_string(cc.param); });

// Buffers that a set of kernels never uses take no room.
TEST(SmallGpuBuffersTest, AreThoseThatTheKernelsUse) {
  const ModelSpec spec = Mistral7B();
  const DeviceWeights q4 = Q4KM(spec);
  const DeviceWeights f16 = WeightsAs(spec, TensorType::kF16, TensorType::kF16);
  const KernelSet& portable = portable::KernelSets().front();
  const auto buffers = [&](const DeviceWeights& weights, const KernelSet* kernels, int tokens) {
    return ForwardBuffers(spec, weights,
                          {.max_tokens = tokens,
                           .max_seqs = 8,
                           .max_key_tiles = 64,
                           .context_length = 4096,
                           .kv_tokens = 4096,
                           .kernels = kernels},
                          nullptr);
  };
  const int64_t gate_up = int64_t{2} * 14336 * 4096 * 2;
  EXPECT_EQ(buffers(q4, nullptr, 512).dequantised_bytes, gate_up);
  EXPECT_EQ(buffers(q4, &portable, 4096).dequantised_bytes, gate_up);
  EXPECT_EQ(buffers(q4, &sm90::kKernels, 4096).dequantised_bytes, gate_up);
  EXPECT_EQ(buffers(q4, &portable, 512).dequantised_bytes, 0);
  EXPECT_EQ(buffers(q4, &sm90::kKernels, 512).dequantised_bytes, 0);
  EXPECT_EQ(buffers(f16, &portable, 4096).dequantised_bytes, 0);
  // Stream-K is of the set that fuses, and of long prompts.
  const size_t fused = buffers(f16, &sm90::kKernels, 4096).bytes;
  EXPECT_GE(fused - buffers(f16, &portable, 4096).bytes,
            static_cast<size_t>(StreamKWorkspace::kSumsBytes));
}

}  // namespace
}  // namespace orcd::cuda
