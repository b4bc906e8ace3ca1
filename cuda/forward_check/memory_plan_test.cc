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
#include "runtime/model/weights.h"

namespace orcd::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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
  EXPECT_EQ(refusal(layers([](LayerSpec& layer) {
              layer.ffn = 0;
              layer.experts = {.count = 128, .used = 4, .ffn = 2880};
              layer.sinks = true;
              layer.activation = Activation::kClampedSwiglu;
            })),
            "");
  // In one layer alone, as of models with leading layers without experts.
  const auto experts = [&](const ExpertsSpec& of) {
    return refusal([&](ModelSpec& spec) { spec.layers.back().experts = of; });
  };
  EXPECT_THAT(experts({.count = 2048, .used = 8, .ffn = 768}),
              AllOf(HasSubstr("a mixture of 2048 experts, 8 of them for each token (up to 1024"),
                    HasSubstr("use --backend cpu")));
  EXPECT_THAT(experts({.count = 128, .used = 33, .ffn = 768}),
              HasSubstr("a mixture of 128 experts, 33 of them"));
  EXPECT_THAT(experts({.count = 128, .used = 8, .ffn = 772}), HasSubstr("an FFN of 772"));
  EXPECT_THAT(experts({.count = 128, .used = 8, .ffn = 768, .shared_ffn = 20}),
              HasSubstr("an FFN of 20"));
  EXPECT_THAT(refusal([](ModelSpec& spec) {
                spec.layers[3].form = LayerForm::kParallel;
                spec.layers[3].experts = {.count = 8, .used = 2, .ffn = 768};
              }),
              HasSubstr("experts beside attention"));
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

// A model of which the file says no more than shapes, with weights of one type.
ModelSpec WithExperts(int hidden, int layers, const LayerSpec& layer, int context) {
  ModelSpec spec;
  spec.hidden = hidden;
  spec.layers.assign(layers, layer);
  spec.vocab = 151'936;
  spec.context_length = context;
  return spec;
}
ModelSpec Qwen3Moe30B() {
  return WithExperts(2048, 48,
                     {.heads = 32,
                      .kv_heads = 4,
                      .head_dim = 128,
                      .experts = {.count = 128, .used = 8, .ffn = 768},
                      .rope = {.dims = 128, .base = 1e6f}},
                     262'144);
}
ModelSpec GptOss120B() {
  ModelSpec spec = WithExperts(2880, 36,
                               {.heads = 64,
                                .kv_heads = 8,
                                .head_dim = 64,
                                .experts = {.count = 128, .used = 4, .ffn = 2880},
                                .sinks = true,
                                .rope = {.dims = 64, .base = 1.5e5f}},
                               131'072);
  spec.vocab = 201'088;
  for (int i = 0; i < spec.num_layers(); i += 2) spec.layers[i].window = 128;
  return spec;
}

ModelWeights WeightsOf(const ModelSpec& spec, TensorType type, TensorType expert_type) {
  const auto matrix = [](int rows, int cols, TensorType of) {
    return Matrix{.type = of, .rows = rows, .cols = cols};
  };
  ModelWeights weights;
  weights.token_embd = weights.output = matrix(spec.vocab, spec.hidden, type);
  for (const LayerSpec& layer : spec.layers) {
    LayerWeights& w = weights.layers.emplace_back();
    w.attn_q = matrix(layer.q_size(), spec.hidden, type);
    w.attn_k = w.attn_v = matrix(layer.kv_size(), spec.hidden, type);
    w.attn_output = matrix(spec.hidden, layer.q_size(), type);
    const ExpertsSpec& experts = layer.experts;
    w.experts.router = matrix(experts.count, spec.hidden, TensorType::kF32);
    w.experts.gate.assign(experts.count, matrix(experts.ffn, spec.hidden, expert_type));
    w.experts.up = w.experts.gate;
    w.experts.down.assign(experts.count, matrix(spec.hidden, experts.ffn, expert_type));
  }
  return weights;
}

TEST(MemoryPlanTest, ExpertsNeedLittleWorkspace) {
  BackendOptions options;
  options.max_seqs = 256;
  options.max_step_tokens = 4096;
  for (const ModelSpec& spec : {Qwen3Moe30B(), GptOss120B()}) {
    const auto weights = DeviceWeights::Plan(
        spec, WeightsOf(spec, TensorType::kQ8_0, TensorType::kMXFP4), /*readers=*/8);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const auto plan = PlanMemory(spec, *weights, options, Device());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_LE(plan->workspace_bytes, 2'000'000'000u);
    // All the experts are there.
    const ExpertsSpec& experts = spec.layers[0].experts;
    EXPECT_GT(static_cast<double>(plan->weights_bytes),
              0.53 * 3 * experts.ffn * spec.hidden * experts.count * spec.num_layers());
  }
}

TEST(MemoryPlanTest, NamesWhatWouldFit) {
  const ModelSpec spec = Qwen3Moe30B();
  BackendOptions options;
  options.max_seqs = 8;
  const auto refusal = [&](TensorType type, uint64_t free) {
    DeviceInfo device = Device();
    device.free_bytes = free;
    const auto weights = DeviceWeights::Plan(spec, WeightsOf(spec, type, type), 1);
    EXPECT_TRUE(weights.ok()) << weights.status();
    return std::string(PlanMemory(spec, *weights, options, device).status().message());
  };
  EXPECT_EQ(refusal(TensorType::kF16, 70 * kGiB), "");
  EXPECT_THAT(refusal(TensorType::kF16, 50 * kGiB), HasSubstr("; with weights of Q8_0 it would"));
  EXPECT_THAT(refusal(TensorType::kF16, 18 * kGiB), HasSubstr("; with weights of Q4_K it would"));
  EXPECT_THAT(refusal(TensorType::kQ4_K, 15 * kGiB), HasSubstr("; with weights of IQ3_S it would"));
  EXPECT_THAT(refusal(TensorType::kQ4_K, 5 * kGiB), Not(HasSubstr("would fit")));
}

TEST(MemoryPlanTest, ExpertsOfAnotherTypeAreNamed) {
  const ModelSpec spec = Qwen3Moe30B();
  const auto refusal = [&](const std::function<void(ExpertWeights&)>& change) {
    ModelWeights weights = WeightsOf(spec, TensorType::kQ8_0, TensorType::kQ4_K);
    change(weights.layers[7].experts);
    const auto planned = DeviceWeights::Plan(spec, weights, 1);
    const absl::Status status =
        planned.ok() ? PlanMemory(spec, *planned, {}, Device()).status() : planned.status();
    EXPECT_EQ(status.ok() || status.code() == absl::StatusCode::kUnimplemented, true) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal([](ExpertWeights&) {}), "");
  EXPECT_EQ(refusal([](ExpertWeights& experts) {
              for (Matrix& matrix : experts.down) matrix.type = TensorType::kQ6_K;
            }),
            "")
      << "down may differ from gate and up";
  EXPECT_THAT(refusal([](ExpertWeights& experts) { experts.down[3].type = TensorType::kQ6_K; }),
              AllOf(HasSubstr("layer 7 has matrices of experts of Q4_K and Q6_K"),
                    HasSubstr("use --backend cpu")));
  EXPECT_THAT(refusal([](ExpertWeights& experts) {
                for (Matrix& matrix : experts.up) matrix.type = TensorType::kQ5_K;
              }),
              HasSubstr("of Q4_K and Q5_K"));
  EXPECT_EQ(refusal([](ExpertWeights& experts) {
              for (Matrix& matrix : experts.down) matrix.type = TensorType::kIQ2_XXS;
            }),
            "");
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
  EXPECT_EQ(TableBytes(plan.step) - TableBytes(without), (64u + kMaxStepDrafts) * 152'064 / 8);
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
