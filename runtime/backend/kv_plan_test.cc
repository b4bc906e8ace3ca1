#include "runtime/backend/kv_plan.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

ModelSpec Spec(std::vector<int> windows, int context) {
  ModelSpec spec;
  spec.context_length = context;
  for (const int window : windows) {
    spec.layers.push_back({.heads = 1, .kv_heads = 1, .head_dim = 16, .window = window});
  }
  return spec;
}

BackendOptions Options() {
  BackendOptions options;
  options.max_seqs = 4;
  options.max_step_tokens = 100;
  options.block_tokens = 16;
  return options;
}

TEST(KvPlanTest, WithoutWindowsAllBytesAreWholeBlocks) {
  const KvPlan plan = PlanKv(Spec({0, 0}, 1000), Options(), {.whole = 100}, 1'099);
  EXPECT_EQ(plan.blocks, 10);
  EXPECT_EQ(plan.window_blocks, 0);
  EXPECT_EQ(plan.bytes(), 1000);
}

TEST(KvPlanTest, WindowBlocksSufficeForEverySequenceTwice) {
  // 64 positions before a window's last touch 4 blocks and the one that they began in.
  const ModelSpec spec = Spec({0, 65, 33}, 1 << 20);
  const KvPlan plan = PlanKv(spec, Options(), {.whole = 100, .window = 50}, 1'000'000);
  constexpr int kOfASequence = 5 + 1;
  constexpr int kOfTwoSteps = 13;  // 200 tokens
  EXPECT_EQ(plan.window_blocks, 2 * 4 * kOfASequence + kOfTwoSteps);
  EXPECT_EQ(plan.blocks, (1'000'000 - 50 * plan.window_blocks) / 100);
  EXPECT_LE(plan.bytes(), 1'000'000);
  EXPECT_GT(plan.bytes(), 1'000'000 - 100);
}

TEST(KvPlanTest, NoMoreWindowBlocksThanTheContextsTake) {
  const ModelSpec spec = Spec({0, 4096}, 8192);
  BackendOptions options = Options();
  EXPECT_EQ(BlocksOfAllSequences(spec, options), 4 * 512);
  KvPlan plan = PlanKv(spec, options, {.whole = 1, .window = 1}, 1'000'000);
  EXPECT_EQ(plan.window_blocks, 4 * 512);
  options.max_context = 100;
  plan = PlanKv(spec, options, {.whole = 1, .window = 1}, 1'000'000);
  EXPECT_EQ(BlocksOfAllSequences(spec, options), 4 * 7);
  EXPECT_EQ(plan.window_blocks, 4 * 7);
}

TEST(KvPlanTest, FewBytesGiveAsManyBlocksOfOneKindAsOfTheOther) {
  const ModelSpec spec = Spec({0, 1024}, 1 << 20);
  const KvPlan plan = PlanKv(spec, Options(), {.whole = 100, .window = 500}, 6'100);
  EXPECT_EQ(plan.window_blocks, 10);
  EXPECT_EQ(plan.blocks, 11) << "what is left is enough for one more";
  // Whatever the bytes, no sequence lacks window blocks alone.
  for (int64_t bytes = 0; bytes < 1'000'000; bytes += 777) {
    const KvPlan any = PlanKv(spec, Options(), {.whole = 100, .window = 500}, bytes);
    ASSERT_GE(any.blocks, any.window_blocks);
    ASSERT_LE(any.bytes(), bytes);
  }
}

TEST(KvPlanTest, SaysWhatABlockTakes) {
  const ModelSpec spec = Spec({0, 1024}, 1 << 20);
  const BackendOptions options = Options();
  const KvBlockBytes block_bytes = {.whole = 100, .window = 500};
  for (const int64_t bytes : {0, 100, 599}) {
    const absl::Status status =
        CheckHoldsABlock(PlanKv(spec, options, block_bytes, bytes), options, bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << bytes;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("16 tokens takes 600 bytes"));
    EXPECT_EQ(GetErrorDetails(status).reason, "INSUFFICIENT_MEMORY");
  }
  EXPECT_TRUE(CheckHoldsABlock(PlanKv(spec, options, block_bytes, 600), options, 600).ok());
  const KvBlockBytes whole = {.whole = 100};
  EXPECT_TRUE(CheckHoldsABlock(PlanKv(spec, options, whole, 100), options, 100).ok());
  EXPECT_FALSE(CheckHoldsABlock(PlanKv(spec, options, whole, 99), options, 99).ok());
}

}  // namespace
}  // namespace orcd
