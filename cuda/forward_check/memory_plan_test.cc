// Tests the plan of a GPU's memory, without a GPU.
#include "cuda/memory_plan.h"

#include <cstdint>
#include <functional>
#include <string>

#include "cuda/device_weights.h"
#include "cuda/forward.h"
#include "cuda/kernels/common/step.h"
#include "cuda/kernels/sm90/kernel_set.h"
#include "cuda/step_tables.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/kv_plan.h"
#include "runtime/model/spec.h"

namespace orcd::cuda {
namespace {

using ::testing::AllOf;
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
  spec.layers.assign(28, {.heads = 28,
                          .kv_heads = 4,
                          .head_dim = 128,
                          .ffn = 18944,
                          .rope = {.dims = 128, .base = 1e6f}});
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
  EXPECT_EQ(some.kv.blocks, 64 * 256) << "as many as its sequences can use";

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
  const auto refusal = [](const std::function<void(ModelSpec&)>& change) {
    ModelSpec spec = LongContext();
    change(spec);
    return std::string(PlanMemory(spec, DeviceWeights(), {}, Device()).status().message());
  };
  const auto layers = [](const std::function<void(LayerSpec&)>& change) {
    return [change](ModelSpec& spec) {
      for (LayerSpec& layer : spec.layers) change(layer);
    };
  };
  EXPECT_EQ(refusal([](ModelSpec&) {}), "");
  // In one layer alone, as of models with leading layers without experts.
  EXPECT_THAT(
      refusal([](ModelSpec& spec) {
        spec.layers.back().ffn = 0;
        spec.layers.back().experts = {.count = 128, .used = 8, .ffn = 768};
      }),
      AllOf(HasSubstr("a mixture of 128 experts, which the GPU"), HasSubstr("use --backend cpu")));
  EXPECT_THAT(refusal(layers([](LayerSpec& layer) {
                layer.experts = {.count = 32, .used = 4, .ffn = 2880};
                layer.sinks = true;
                layer.activation = Activation::kClampedSwiglu;
              })),
              HasSubstr("a mixture of 32 experts and attention sinks and a clamped SwiGLU, which"));
  EXPECT_THAT(refusal(layers([](LayerSpec& layer) { layer.head_dim = 48; })),
              HasSubstr("heads of 48 values"));
  EXPECT_THAT(refusal(layers([](LayerSpec& layer) { layer.kv_heads = 1; })),
              HasSubstr("28 heads on 1 key-value heads"));
  EXPECT_THAT(refusal(layers([](LayerSpec& layer) { layer.ffn = 18948; })),
              HasSubstr("an FFN of 18948"));
  EXPECT_THAT(refusal([](ModelSpec& spec) { spec.hidden = 3588; }),
              HasSubstr("a hidden size of 3588"));
  EXPECT_THAT(refusal([](ModelSpec& spec) { spec.hidden = 16384; }),
              HasSubstr("a hidden size of 16384"));
  EXPECT_THAT(refusal([](ModelSpec& spec) { spec.vocab = 300'000; }),
              HasSubstr("a vocabulary of 300000"));
  EXPECT_THAT(refusal([](ModelSpec& spec) { spec.layers[5].rope.dims = 20; }),
              HasSubstr("RoPE of 20 dimensions"));
}

// Gemma 3 12B, five of whose six layers have a window.
ModelSpec WithWindows() {
  ModelSpec spec;
  spec.hidden = 3840;
  spec.layers.assign(48, {.heads = 16, .kv_heads = 8, .head_dim = 256, .ffn = 15360});
  for (int i = 0; i < spec.num_layers(); ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.window = i % 6 == 5 ? 0 : 1024;
    layer.rope = {.dims = 256, .base = layer.window == 0 ? 1e6f : 1e4f};
  }
  spec.vocab = 262'144;
  spec.context_length = 131'072;
  return spec;
}

// Kernels find a layer by KvCacheView, which takes all layers of a cache to be alike.
TEST(MemoryPlanTest, LayersLieWhereKernelsFindThem) {
  for (const ModelSpec& spec : {LongContext(), WithWindows()}) {
    const KvLayout layout(spec.layers);
    const LayerSpec& first = spec.layers[0];
    const KvCacheView view = {
        .blocks = 100, .block_tokens = 16, .kv_heads = first.kv_heads, .head_dim = first.head_dim};
    int in_whole = 0;
    int in_windows = 0;
    for (const KvLayer& layer : layout.layers) {
      const int number = layer.window == 0 ? in_whole++ : in_windows++;
      EXPECT_EQ(layer.offset * view.blocks * view.block_tokens, view.Offset(number, 0, 0));
    }
    const auto plan = PlanMemory(spec, DeviceWeights(), {}, Device());
    ASSERT_TRUE(plan.ok()) << plan.status();
    const int64_t block_bytes = view.block_size() * sizeof(uint16_t);
    EXPECT_EQ(plan->kv.block_bytes.whole, in_whole * block_bytes);
    EXPECT_EQ(plan->kv.block_bytes.window, in_windows * block_bytes);
  }
}

TEST(MemoryPlanTest, DividesTheCacheAsPlanKvDoes) {
  BackendOptions options;
  options.max_seqs = 8;
  options.max_step_tokens = 512;
  options.kv_cache_bytes = int64_t{20} << 30;
  const auto plan = PlanMemory(WithWindows(), DeviceWeights(), options, Device());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const KvPlan expected =
      PlanKv(WithWindows(), plan->options, plan->kv.block_bytes, options.kv_cache_bytes);
  EXPECT_EQ(plan->kv.blocks, expected.blocks);
  EXPECT_EQ(plan->kv.window_blocks, expected.window_blocks);
  EXPECT_GT(plan->kv.window_blocks, 0);
  EXPECT_LT(plan->kv.window_blocks, plan->kv.blocks);
  EXPECT_EQ(plan->step.max_window_blocks, plan->step.max_blocks);
  EXPECT_LE(plan->kv_bytes(), static_cast<uint64_t>(options.kv_cache_bytes));
  // Two tables of angles of 256 floats a position.
  ModelSpec one_base = WithWindows();
  for (LayerSpec& layer : one_base.layers) layer.rope.base = 1e6f;
  const auto smaller = PlanMemory(one_base, DeviceWeights(), options, Device());
  ASSERT_TRUE(smaller.ok()) << smaller.status();
  EXPECT_EQ(plan->workspace_bytes,
            smaller->workspace_bytes + uint64_t{256} * 4 * plan->forward.context_length);
}

TEST(MemoryPlanTest, EverySequenceMayHaveAMaskInBothSteps) {
  BackendOptions options;
  options.max_seqs = 64;
  const MemoryPlan plan = Plan(options);
  EXPECT_EQ(plan.step.mask_words, 152'064 / 32);
  StepLimits without = plan.step;
  without.mask_words = 0;
  EXPECT_EQ(TableBytes(plan.step) - TableBytes(without), 64u * 152'064 / 8);
  const uint64_t buffers =
      ForwardBuffers(LongContext(), DeviceWeights(), plan.forward, nullptr).bytes;
  EXPECT_EQ(plan.workspace_bytes, buffers + 2 * TableBytes(plan.step));
}

TEST(MemoryPlanTest, IsForNoMoreThanTheCacheHolds) {
  BackendOptions options;
  options.max_seqs = 4;
  options.kv_cache_bytes = int64_t{1} << 28;
  const MemoryPlan plan = Plan(options);
  EXPECT_EQ(plan.forward.context_length, plan.kv.blocks * 16);
  EXPECT_EQ(plan.step.max_blocks, plan.kv.blocks);
  EXPECT_LE(plan.weights_bytes + plan.workspace_bytes + plan.kv_bytes(), 70 * kGiB);
}

}  // namespace
}  // namespace orcd::cuda
