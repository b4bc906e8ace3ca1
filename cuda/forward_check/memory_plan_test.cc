// Tests the plan of a GPU's memory, without a GPU.
#include "cuda/memory_plan.h"

#include <cstdint>
#include <string>

#include "cuda/device_weights.h"
#include "cuda/kernels/common/step.h"
#include "cuda/kernels/sm90/kernel_set.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/model/spec.h"

namespace orcd::cuda {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

DeviceInfo Device() {
  DeviceInfo device;
  device.kernels = &sm90::kKernels;
  device.total_bytes = 80 * kGiB;
  device.free_bytes = 70 * kGiB;
  return device;
}

// The shape of Qwen2.5-7B, with the context of its 1M variant.
ModelSpec LongContext() {
  ModelSpec spec;
  spec.hidden = 3584;
  spec.layers.assign(28, {.heads = 28, .kv_heads = 4, .head_dim = 128, .ffn = 18944});
  spec.vocab = 152064;
  spec.context_length = 1'010'000;
  return spec;
}

MemoryPlan Plan(const BackendOptions& options) {
  const auto plan = PlanMemory(LongContext(), DeviceWeights(), options, Device());
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : MemoryPlan();
}

TEST(MemoryPlanTest, IsForTheContextThatIsServed) {
  BackendOptions options;
  options.max_seqs = 64;
  const MemoryPlan all = Plan(options);
  EXPECT_EQ(all.forward.context_length, 1'010'000);
  options.max_context = 4096;
  const MemoryPlan some = Plan(options);
  EXPECT_EQ(some.forward.context_length, 4096);
  // RoPE's angles alone are 128 floats a position.
  EXPECT_GT(all.workspace_bytes, some.workspace_bytes + 500'000'000);
  EXPECT_EQ(some.kv_blocks, 64 * 256) << "as many as its sequences can use";

  ModelSpec spec = LongContext();
  spec.context_length = 4096;
  options.max_context = 0;
  const auto own = PlanMemory(spec, DeviceWeights(), options, Device());
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(own->workspace_bytes, some.workspace_bytes) << "as if the model had no more";
  options.max_context = 1 << 30;
  EXPECT_EQ(Plan(options).forward.context_length, 1'010'000);
}

TEST(MemoryPlanTest, NamesWhatTheKernelsLack) {
  constexpr float kOne[] = {1};
  ModelSpec spec = LongContext();
  ModelWeights weights;
  weights.layers.resize(28);
  for (LayerWeights& w : weights.layers) w.attn_q_bias = w.attn_k_bias = w.attn_v_bias = kOne;
  const auto refusal = [&] { return std::string(CheckFeatures(spec, weights).message()); };
  EXPECT_EQ(refusal(), "");
  weights.layers[27].attn_k_bias = {};
  EXPECT_THAT(refusal(), HasSubstr("a layer without biases on q, k and v"));
  for (LayerSpec& layer : spec.layers) layer.rope.factors = true;
  EXPECT_THAT(refusal(), HasSubstr("RoPE with factors"));
  for (LayerSpec& layer : spec.layers) layer.rope.kind = RopeKind::kNorm;
  EXPECT_THAT(refusal(), HasSubstr("RoPE over neighbouring dimensions"));
  for (LayerSpec& layer : spec.layers) layer.window = 4096;
  EXPECT_THAT(refusal(), HasSubstr("a sliding window of attention"));
  spec.layers[27].ffn /= 2;
  EXPECT_THAT(refusal(), HasSubstr("layers that differ in shape"));
}

// Kernels find a layer by KvCacheView, which takes all layers to be alike.
TEST(MemoryPlanTest, LayersLieWhereKernelsFindThem) {
  const ModelSpec spec = LongContext();
  const KvLayout layout(spec.layers);
  const KvCacheView view = {.blocks = 100, .block_tokens = 16, .kv_heads = 4, .head_dim = 128};
  for (int i = 0; i < spec.num_layers(); ++i) {
    EXPECT_EQ(layout.layers[i].offset * view.blocks * view.block_tokens, view.Offset(i, 0, 0));
  }
  EXPECT_EQ(Plan({}).kv_block_bytes, spec.num_layers() * view.block_size() * sizeof(uint16_t));
}

TEST(MemoryPlanTest, IsForNoMoreThanTheCacheHolds) {
  BackendOptions options;
  options.max_seqs = 4;
  options.kv_cache_bytes = int64_t{1} << 28;
  const MemoryPlan plan = Plan(options);
  EXPECT_EQ(plan.forward.context_length, plan.kv_blocks * 16);
  EXPECT_EQ(plan.step.max_blocks, plan.kv_blocks);
  EXPECT_LE(plan.weights_bytes + plan.workspace_bytes + plan.kv_bytes(), 70 * kGiB);
}

}  // namespace
}  // namespace orcd::cuda
