// Tests the plan of a GPU's memory for models with recurrent layers, without a GPU.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cuda/device.h"
#include "cuda/device_weights.h"
#include "cuda/forward.h"
#include "cuda/kernels/sm90/kernel_set.h"
#include "cuda/memory_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/model/predict_block.h"
#include "runtime/model/spec.h"
#include "runtime/model/weights.h"

namespace orcd::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

DeviceInfo Gpu(uint64_t gib, int cc) {
  DeviceInfo device;
  device.traits.cc = cc;
  device.kernels = *FindKernelSet("a GPU", device.traits);
  device.total_bytes = gib * kGiB;
  // The driver, CUDA's context and a desktop take the rest.
  device.free_bytes = device.total_bytes - (410 << 20);
  return device;
}
DeviceInfo Gpu80() { return Gpu(80, 90); }
DeviceInfo Gpu24() { return Gpu(24, 89); }

// Three of four layers are recurrent.
ModelSpec Hybrid(int hidden, int layers, const LayerSpec& attention, const DeltaNetSpec& delta) {
  ModelSpec spec;
  spec.hidden = hidden;
  spec.layers.assign(layers, attention);
  for (int i = 0; i < layers; ++i) {
    if ((i + 1) % 4 != 0) spec.layers[i].delta = delta;
  }
  spec.vocab = 248'320;
  spec.context_length = 262'144;
  return spec;
}
// The shapes of Qwen3.6-35B-A3B and of Qwen3.6-27B.
ModelSpec Qwen35B() {
  return Hybrid(2048, 40,
                {.heads = 16,
                 .kv_heads = 2,
                 .head_dim = 256,
                 .experts = {.count = 256,
                             .used = 8,
                             .ffn = 512,
                             .shared_ffn = 512,
                             .shared_gated = true,
                             .normalise = true},
                 .gated_attention = true,
                 .rope = {.dims = 64, .base = 1e7f},
                 .qk_norm = QkNorm::kHead},
                {.key_heads = 16, .value_heads = 32, .head_dim = 128, .conv = 4});
}
ModelSpec Qwen27B() {
  return Hybrid(5120, 64,
                {.heads = 24,
                 .kv_heads = 4,
                 .head_dim = 256,
                 .ffn = 17'408,
                 .gated_attention = true,
                 .rope = {.dims = 64, .base = 1e7f},
                 .qk_norm = QkNorm::kHead},
                {.key_heads = 16, .value_heads = 48, .head_dim = 128, .conv = 4});
}
// The same with attention in every layer.
ModelSpec PureAttention(ModelSpec spec) {
  for (LayerSpec& layer : spec.layers) layer.delta = {};
  return spec;
}

Matrix ShapeOf(int rows, int cols, TensorType type) {
  return {.type = type, .rows = rows, .cols = cols};
}

// Weights of about the size that Q4_K_M has.
ModelWeights ModelWeightsFor(const ModelSpec& spec) {
  constexpr TensorType kType = TensorType::kQ4_K;
  ModelWeights weights;
  weights.token_embd = ShapeOf(spec.vocab, spec.hidden, kType);
  weights.output = ShapeOf(spec.vocab, spec.hidden, TensorType::kQ6_K);
  for (const LayerSpec& layer : spec.layers) {
    LayerWeights& w = weights.layers.emplace_back();
    if (layer.recurrent()) {
      const DeltaNetSpec& delta = layer.delta;
      w.delta.qkv = ShapeOf(delta.channels(), spec.hidden, TensorType::kQ5_K);
      w.delta.gate = ShapeOf(delta.value_size(), spec.hidden, TensorType::kQ5_K);
      w.delta.beta = w.delta.alpha = ShapeOf(delta.value_heads, spec.hidden, TensorType::kBF16);
      w.delta.conv = ShapeOf(delta.channels(), delta.conv, TensorType::kF32);
      w.delta.output = ShapeOf(spec.hidden, delta.value_size(), TensorType::kQ6_K);
    } else {
      w.attn_q = ShapeOf(layer.q_rows(), spec.hidden, kType);
      w.attn_k = w.attn_v = ShapeOf(layer.kv_size(), spec.hidden, kType);
      w.attn_output = ShapeOf(spec.hidden, layer.q_size(), kType);
    }
    if (layer.experts.count == 0) {
      w.ffn_gate = w.ffn_up = ShapeOf(layer.ffn, spec.hidden, kType);
      w.ffn_down = ShapeOf(spec.hidden, layer.ffn, kType);
      continue;
    }
    const ExpertsSpec& experts = layer.experts;
    w.experts.router = ShapeOf(experts.count, spec.hidden, TensorType::kF32);
    w.experts.gate.assign(experts.count, ShapeOf(experts.ffn, spec.hidden, kType));
    w.experts.up = w.experts.gate;
    w.experts.down.assign(experts.count, ShapeOf(spec.hidden, experts.ffn, kType));
    w.experts.shared_gate = w.experts.shared_up =
        ShapeOf(experts.shared_ffn, spec.hidden, TensorType::kQ8_0);
    w.experts.shared_down = ShapeOf(spec.hidden, experts.shared_ffn, TensorType::kQ8_0);
  }
  return weights;
}
DeviceWeights WeightsFor(const ModelSpec& spec, const PredictBlock* block = nullptr) {
  auto planned =
      DeviceWeights::Plan(spec, ModelWeightsFor(spec), /*readers=*/8, /*slab=*/nullptr, block);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned.ok() ? *std::move(planned) : DeviceWeights();
}

absl::StatusOr<MemoryPlan> TryPlan(const ModelSpec& spec, const BackendOptions& options,
                                   const DeviceInfo& device) {
  return PlanMemory(spec, WeightsFor(spec), options, device);
}
MemoryPlan Plan(const ModelSpec& spec, const BackendOptions& options, const DeviceInfo& device) {
  const auto plan = TryPlan(spec, options, device);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : MemoryPlan();
}

BackendOptions ForSequences(int max_seqs) {
  BackendOptions options;
  options.max_seqs = max_seqs;
  return options;
}

int64_t CellBytes(const MemoryPlan& plan) { return plan.states.cells * plan.states.bytes_each(); }

// Bytes beside weights, workspace and the states of slots.
int64_t Rest(const MemoryPlan& plan, const DeviceInfo& device) {
  return static_cast<int64_t>(device.free_bytes - plan.weights_bytes - plan.workspace_bytes) -
         plan.states.slots * plan.states.bytes_each();
}

TEST(HybridPlanTest, AStateIsTheSumOfTheRecurrentLayers) {
  const MemoryPlan large = Plan(Qwen35B(), ForSequences(64), Gpu80());
  // 30 layers of the last 4 tokens' 8192 channels, and of 32 matrices.
  EXPECT_EQ(large.states.floats, 30 * (4 * 8192 + 32 * 128 * 128));
  EXPECT_EQ(large.states.slots, 64);
  EXPECT_EQ(large.states.floats, Qwen35B().state_floats() + 30 * 8192)
      << "draft_memory.cc counts one more position than the spec";
  const MemoryPlan dense = Plan(Qwen27B(), ForSequences(8), Gpu80());
  EXPECT_EQ(dense.states.floats, 48 * (4 * 10'240 + 48 * 128 * 128));
  EXPECT_EQ(dense.states.slots, 8);
  EXPECT_EQ(dense.state_bytes(),
            static_cast<uint64_t>(8 + dense.states.cells) * dense.states.floats * 4);
  EXPECT_EQ(dense.bytes(),
            dense.weights_bytes + dense.workspace_bytes + dense.kv_bytes() + dense.state_bytes());

  const MemoryPlan pure = Plan(PureAttention(Qwen27B()), ForSequences(8), Gpu80());
  EXPECT_EQ(pure.states.floats, 0);
  EXPECT_EQ(pure.state_bytes(), 0u);
}

TEST(HybridPlanTest, ASequenceTakesAQuarterOfPureAttention) {
  for (const ModelSpec& spec : {Qwen35B(), Qwen27B()}) {
    const auto bytes = [](const MemoryPlan& plan) {
      constexpr int64_t kBlocks = 262'144 / 16;
      return static_cast<double>(plan.kv.block_bytes.whole * kBlocks + plan.states.bytes_each());
    };
    const BackendOptions options = ForSequences(4);
    const double hybrid = bytes(Plan(spec, options, Gpu80()));
    const double pure = bytes(Plan(PureAttention(spec), options, Gpu80()));
    EXPECT_LE(hybrid, 0.3 * pure);
    EXPECT_GE(hybrid, 0.25 * pure) << "one of four layers has keys and values";
    RecordProperty(absl::StrCat("share_", spec.num_layers()), std::to_string(hybrid / pure));
  }
}

TEST(HybridPlanTest, CellsAndKeysAndValuesShareTheRest) {
  struct Case {
    ModelSpec spec;
    int max_seqs;
    DeviceInfo device;
  };
  for (const Case& c : {Case{Qwen35B(), 64, Gpu80()}, Case{Qwen35B(), 16, Gpu80()},
                        Case{Qwen27B(), 64, Gpu80()}, Case{Qwen27B(), 8, Gpu24()}}) {
    const MemoryPlan plan = Plan(c.spec, ForSequences(c.max_seqs), c.device);
    SCOPED_TRACE(absl::StrCat("weights ", plan.weights_bytes, ", workspace ", plan.workspace_bytes,
                              ", KV ", plan.kv_bytes(), ", states ", plan.states.slots, " and ",
                              plan.states.cells, " of ", plan.states.bytes_each()));
    EXPECT_LE(plan.bytes(), c.device.free_bytes);
    EXPECT_GE(plan.forward.context_length, 16'384);
    // The workspace grew when the blocks were known.
    const auto rest = static_cast<double>(Rest(plan, c.device));
    const double caches = static_cast<double>(plan.kv_bytes()) + CellBytes(plan);
    EXPECT_GT(caches, 0.85 * rest);
    EXPECT_LE(caches, 0.9 * rest);
    const double next_cell = static_cast<double>(CellBytes(plan) + plan.states.bytes_each());
    EXPECT_LE(CellBytes(plan), 0.26 * caches);
    EXPECT_GT(next_cell, caches / 16);
    if (plan.states.cells < 2 * c.max_seqs) {
      EXPECT_GT(next_cell, caches / 4);
    }
  }
  EXPECT_EQ(Plan(Qwen35B(), ForSequences(64), Gpu80()).states.cells, 128) << "two for each slot";
  EXPECT_GT(Plan(Qwen35B(), ForSequences(2), Gpu80()).states.cells, 40) << "there is room for more";
}

TEST(HybridPlanTest, CellsAreAsTheFlagSays) {
  BackendOptions options = ForSequences(16);
  const MemoryPlan chosen = Plan(Qwen35B(), options, Gpu80());
  options.state_cache_bytes = int64_t{5} << 30;
  const MemoryPlan asked = Plan(Qwen35B(), options, Gpu80());
  EXPECT_EQ(asked.states.cells, (int64_t{5} << 30) / asked.states.bytes_each());
  options.state_cache_bytes = -1;
  const MemoryPlan off = Plan(Qwen35B(), options, Gpu80());
  EXPECT_EQ(off.states.cells, 0);
  EXPECT_EQ(off.states.slots, 16);
  EXPECT_GT(off.kv.blocks, chosen.kv.blocks);
  EXPECT_GT(off.kv.blocks, asked.kv.blocks);
  options.state_cache_bytes = 1;
  EXPECT_EQ(Plan(Qwen35B(), options, Gpu80()).states.cells, 0) << "not one fits";

  options.state_cache_bytes = int64_t{70} << 30;
  const absl::Status status = TryPlan(Qwen35B(), options, Gpu80()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("recurrent states of 16 sequences and 1124 cells 76"),
                    HasSubstr("state_cache_bytes")));
}

TEST(HybridPlanTest, CellsLeaveWhatIsReservedAndAskedFor) {
  BackendOptions options = ForSequences(16);
  options.kv_cache_bytes = int64_t{20} << 30;
  const DeviceInfo device = Gpu80();
  const MemoryPlan plan = Plan(Qwen35B(), options, device);
  EXPECT_GE(plan.states.cells, 32);
  options.reserved_bytes =
      static_cast<int64_t>(device.free_bytes - plan.bytes()) + CellBytes(plan) - kGiB;
  const MemoryPlan reserved = Plan(Qwen35B(), options, device);
  EXPECT_EQ(reserved.kv.blocks, plan.kv.blocks);
  EXPECT_GT(reserved.states.cells, 0);
  EXPECT_LE(static_cast<uint64_t>(CellBytes(reserved)), kGiB / 4);
}

TEST(HybridPlanTest, TooManySequencesAreRefusedWithNumbers) {
  // 64 states of 159 MB are more than what 24 GB leave beside the weights.
  const ModelSpec spec = Qwen27B();
  const DeviceInfo device = Gpu24();
  const absl::Status status = TryPlan(spec, ForSequences(64), device).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  const int64_t states = int64_t{64} * 48 * (4 * 10'240 + 48 * 128 * 128) * 4;
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr(absl::StrCat("recurrent states of 64 sequences and 0 cells ", states, ")")),
            HasSubstr(absl::StrCat("and ", device.free_bytes, " of 25769803776 are free")),
            HasSubstr("lower kv_cache_bytes, state_cache_bytes, max_seqs or max_step_tokens")));
  // The advice is worth following.
  const std::string message(status.message());
  const std::string advice = "; with max_seqs of ";
  const size_t at = message.find(advice);
  ASSERT_NE(at, std::string::npos) << message;
  const int advised = std::stoi(message.substr(at + advice.size()));
  EXPECT_GE(advised, 16);
  const MemoryPlan plan = Plan(spec, ForSequences(advised), device);
  EXPECT_GE(plan.forward.context_length, 16'384);

  BackendOptions options = ForSequences(64);
  options.kv_cache_bytes = int64_t{4} << 30;
  const std::string with_kv(TryPlan(spec, options, device).status().message());
  const size_t there = with_kv.find(advice);
  ASSERT_NE(there, std::string::npos) << with_kv;
  options.max_seqs = std::stoi(with_kv.substr(there + advice.size()));
  EXPECT_LT(options.max_seqs, advised);
  EXPECT_TRUE(TryPlan(spec, options, device).ok());
}

TEST(HybridPlanTest, FewerSequencesRunWhereTheirStatesWouldTakeMuch) {
  const auto chosen = [](const ModelSpec& spec, int max_seqs, const DeviceInfo& device) {
    BackendOptions options = ForSequences(max_seqs);
    options.fewer_seqs = true;
    const MemoryPlan plan = Plan(spec, options, device);
    const int seqs = plan.options.max_seqs;
    EXPECT_EQ(plan.states.slots, seqs);
    EXPECT_EQ(plan.step.max_seqs, seqs + plan.max_step_drafts);
    EXPECT_EQ(plan.forward.max_seqs, plan.step.max_seqs);
    EXPECT_GE(plan.forward.context_length, 16'384);
    // As many as the quarter has room for, by halves.
    const double quarter = static_cast<double>(device.free_bytes - plan.weights_bytes) / 4;
    const auto state_bytes = static_cast<double>(plan.states.bytes_each());
    if (seqs > 16) {
      EXPECT_LE(seqs * state_bytes, quarter);
    }
    if (seqs < max_seqs) {
      EXPECT_GT(2 * seqs * state_bytes, quarter);
    }
    return seqs;
  };
  const DeviceInfo gpu48 = Gpu(48, 89);
  EXPECT_FALSE(TryPlan(Qwen27B(), ForSequences(256), gpu48).ok()) << "40.7 GB of states";
  EXPECT_EQ(chosen(Qwen27B(), 256, gpu48), 32);
  EXPECT_EQ(chosen(Qwen27B(), 256, Gpu80()), 64);
  EXPECT_EQ(chosen(Qwen27B(), 64, Gpu24()), 16) << "more than a quarter, but not fewer";
  EXPECT_EQ(chosen(Qwen27B(), 40, Gpu24()), 16);
  EXPECT_EQ(chosen(Qwen27B(), 5, Gpu24()), 5);
  EXPECT_EQ(chosen(Qwen35B(), 256, Gpu80()), 128);
  EXPECT_EQ(chosen(PureAttention(Qwen35B()), 256, Gpu80()), 256);

  // Memory that others need is not there for states.
  BackendOptions options = ForSequences(256);
  options.fewer_seqs = true;
  options.reserved_bytes = int64_t{40} << 30;
  EXPECT_EQ(Plan(Qwen27B(), options, Gpu80()).options.max_seqs, 32);
  // The plan leaves what others need for each of the sequences that it chose.
  options.reserved_bytes_a_seq = int64_t{100} << 20;
  options.reserved_bytes = 0;
  const MemoryPlan by_sequence = Plan(Qwen27B(), options, Gpu80());
  EXPECT_EQ(by_sequence.options.max_seqs, 64);
  options.reserved_bytes = 64 * options.reserved_bytes_a_seq;
  options.reserved_bytes_a_seq = 0;
  EXPECT_EQ(by_sequence.kv.blocks, Plan(Qwen27B(), options, Gpu80()).kv.blocks);
}

// Steps become shorter where states leave little memory.
TEST(HybridPlanTest, StepsLeaveRoomForStates) {
  const auto tokens = [](int max_seqs) {
    return Plan(Qwen27B(), ForSequences(max_seqs), Gpu(28, 90)).options.max_step_tokens;
  };
  EXPECT_GT(tokens(2), tokens(64));
  EXPECT_GE(tokens(64), 512);
}

TEST(HybridPlanTest, OnlyAttentionHasKeysAndValues) {
  const MemoryPlan plan = Plan(Qwen35B(), ForSequences(4), Gpu80());
  EXPECT_EQ(plan.kv.block_bytes.whole, int64_t{10} * 16 * 2 * (256 + 256) * 2);
  EXPECT_EQ(plan.kv.block_bytes.window, 0);
}

TEST(HybridPlanTest, NamesWhatTheKernelsLack) {
  const auto refusal = [](const std::function<void(ModelSpec&)>& change) {
    ModelSpec spec = Qwen27B();
    change(spec);
    const absl::Status status = TryPlan(spec, ForSequences(4), Gpu80()).status();
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kUnimplemented) << status;
    return std::string(status.message());
  };
  const auto nets = [&](const std::function<void(DeltaNetSpec&)>& change) {
    return refusal([&](ModelSpec& spec) {
      for (LayerSpec& layer : spec.layers) {
        if (layer.recurrent()) change(layer.delta);
      }
    });
  };
  EXPECT_EQ(refusal([](ModelSpec&) {}), "");
  EXPECT_THAT(nets([](DeltaNetSpec& delta) { delta.head_dim = 256; }),
              AllOf(HasSubstr("delta nets of heads of 256 values"), HasSubstr("--backend cpu")));
  EXPECT_THAT(nets([](DeltaNetSpec& delta) { delta.conv = 9; }),
              HasSubstr("a convolution of 9 tokens"));
  EXPECT_THAT(refusal([](ModelSpec& spec) { spec.layers[60].delta.value_heads = 32; }),
              HasSubstr("delta nets of different shapes"));
}

// Its layer has keys and values in every block, and its rows have hidden states of their own.
TEST(HybridPlanTest, ABlockThatPredictsIsALayerMore) {
  for (const ModelSpec& spec : {Qwen35B(), Qwen27B()}) {
    PredictBlock block;
    block.spec = spec.layers[3];
    block.projection = ShapeOf(spec.hidden, 2 * spec.hidden, TensorType::kQ8_0);
    const ModelSpec with_block = WithBlock(spec, block);
    const BackendOptions options = ForSequences(64);
    const MemoryPlan without = Plan(spec, options, Gpu80());
    const auto planned = PlanMemory(with_block, WeightsFor(with_block, &block), options, Gpu80());
    ASSERT_TRUE(planned.ok()) << planned.status();
    const MemoryPlan& plan = *planned;
    const int64_t attention_layers = spec.num_layers() / 4;
    EXPECT_EQ(plan.kv.block_bytes.whole * attention_layers,
              without.kv.block_bytes.whole * (attention_layers + 1));
    EXPECT_EQ(plan.states.floats, without.states.floats);
    EXPECT_EQ(plan.step.max_predicting, 64);
    EXPECT_EQ(without.step.max_predicting, 0);
    EXPECT_EQ(plan.step.context, plan.forward.context_length);
    EXPECT_GT(plan.weights_bytes,
              without.weights_bytes + block.projection.rows * block.projection.cols);
    // The states of all slots, and of all rows once in F32 and twice in F16.
    EXPECT_GE(plan.workspace_bytes,
              without.workspace_bytes + uint64_t{8} * plan.forward.max_tokens * spec.hidden);
    EXPECT_LE(plan.bytes(), Gpu80().free_bytes);
  }
}

// A shared expert of the others' types is kept, and multiplied, with them.
TEST(HybridPlanTest, ASharedExpertJoinsOthersOfItsTypes) {
  const ModelSpec spec = Qwen35B();
  ModelWeights weights = ModelWeightsFor(spec);
  const auto plan = [&] {
    auto planned = DeviceWeights::Plan(spec, weights, 1);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned.ok() ? *std::move(planned) : DeviceWeights();
  };
  const auto expect_rows = [](const DeviceLayer& layer, int experts, int shared_ffn) {
    EXPECT_EQ(layer.experts.gate_up.rows, experts * 2 * 512);
    EXPECT_EQ(layer.experts.down.rows, experts * 2048);
    EXPECT_EQ(layer.gate_up.rows, 2 * shared_ffn);
    EXPECT_EQ(layer.down.cols, shared_ffn);
  };
  const DeviceWeights apart = plan();
  for (const DeviceLayer& layer : apart.layers()) {
    EXPECT_FALSE(layer.experts.shared_joins);
    expect_rows(layer, 256, 512);
  }
  ExpertWeights& first = weights.layers[0].experts;
  ExpertWeights& last = weights.layers.back().experts;
  for (ExpertWeights* const experts : {&first, &last}) {
    experts->shared_gate.type = experts->shared_up.type = experts->gate[0].type;
    experts->shared_down.type = experts->down[0].type;
  }
  // One type that differs keeps all three apart.
  last.shared_down.type = TensorType::kQ6_K;
  const DeviceWeights joined = plan();
  EXPECT_TRUE(joined.layers()[0].experts.shared_joins);
  expect_rows(joined.layers()[0], 257, 0);
  EXPECT_FALSE(joined.layers().back().experts.shared_joins);
  expect_rows(joined.layers().back(), 256, 512);
}

// Taps multiply a shared expert that joins the others as a matrix alone, which may have to be
// dequantised though nothing else has.
TEST(HybridPlanTest, ASharedExpertThatJoinsHasRoomToBeDequantised) {
  const ModelSpec spec = Qwen35B();
  ModelWeights weights = ModelWeightsFor(spec);
  for (LayerWeights& layer : weights.layers) {
    for (std::vector<Matrix>* const matrices :
         {&layer.experts.gate, &layer.experts.up, &layer.experts.down}) {
      for (Matrix& matrix : *matrices) matrix.type = TensorType::kMXFP4;
    }
    layer.experts.shared_gate.type = layer.experts.shared_up.type = layer.experts.shared_down.type =
        TensorType::kMXFP4;
  }
  const auto planned = DeviceWeights::Plan(spec, weights, 1);
  ASSERT_TRUE(planned.ok()) << planned.status();
  ASSERT_TRUE(planned->layers()[0].experts.shared_joins);
  // Steps so short that the kernels take all other matrices as they are.
  const ForwardLimits limits = {.max_tokens = 512,
                                .max_seqs = 8,
                                .max_key_tiles = 64,
                                .context_length = 4096,
                                .kv_tokens = 4096,
                                .kernels = &sm90::kKernels};
  EXPECT_GE(ForwardBuffers(spec, *planned, limits, nullptr).dequantised_bytes,
            int64_t{2} * 512 * 2048 * 2);
}

// Gated attention has no biases in any file; one of its queries would stand in another order.
TEST(HybridPlanTest, ABiasOfGatedQueriesIsRefused) {
  ModelSpec spec = Qwen27B();
  spec.layers = {spec.layers[3]};
  const std::vector<float> bias(spec.layers[0].q_rows());
  ModelWeights weights;
  weights.layers.resize(1);
  weights.layers[0].attn_q_bias = bias;
  const absl::Status status = DeviceWeights::Plan(spec, weights, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 0 has a bias of the queries"));
}

}  // namespace
}  // namespace orcd::cuda
