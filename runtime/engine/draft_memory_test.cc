#include "runtime/engine/draft_memory.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "gtest/gtest.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/engine/model_drafter.h"
#include "runtime/engine/nano_model_for_test.h"

namespace orcd {
namespace {

TEST(DraftMemoryTest, ADraftModelHasTheSlotsOfTheModelAndAKvCacheOfItsOwnSize) {
  const auto model = NanoModel();
  ASSERT_NE(model, nullptr);
  BackendOptions options = {.max_seqs = 7,
                            .fewer_seqs = true,
                            .max_step_tokens = 50,
                            .kv_cache_bytes = 1,
                            .kv_cache_fraction = 0.5,
                            .max_context = 300,
                            .reserved_bytes = 1000,
                            .reserved_bytes_a_seq = 10,
                            .block_tokens = 8,
                            .threads = 3};
  const BackendOptions own = DraftBackendOptions(model->spec(), options);
  EXPECT_EQ(own.max_seqs, 7);
  EXPECT_FALSE(own.fewer_seqs) << "a slot for each of the model's";
  EXPECT_EQ(own.max_step_tokens, 50);
  EXPECT_EQ(own.max_context, 300);
  EXPECT_EQ(own.block_tokens, 8);
  EXPECT_EQ(own.threads, 3);
  EXPECT_EQ(own.kv_cache_fraction, 0);
  EXPECT_EQ(own.reserved_bytes, 0);
  EXPECT_EQ(own.reserved_bytes_a_seq, 0);
  // It does not depend on the size of the model's cache.
  options.kv_cache_bytes = 0;
  EXPECT_EQ(DraftBackendOptions(model->spec(), options).kv_cache_bytes, own.kv_cache_bytes);
}

// The backend has room for all sequences, or for kDraftKvTokens, and takes no more memory than what
// was left free for it.
TEST(DraftMemoryTest, ABackendHoldsTheTokensInTheMemoryThatIsKeptForIt) {
  for (const char* architecture : {"qwen2", "gemma3", "qwen3next"}) {
    const auto model = NanoModel({.architecture = architecture});
    ASSERT_NE(model, nullptr);
    for (const int block_tokens : {4, 16, 24}) {
      for (const int max_context : {100, 20'000}) {
        for (const KvType kv_type : {KvType::kF16, KvType::kF32}) {
          const BackendOptions options = {.max_seqs = 3,
                                          .max_context = max_context,
                                          .block_tokens = block_tokens,
                                          .kv_type = kv_type,
                                          .threads = 1};
          const BackendOptions own = DraftBackendOptions(model->spec(), options);
          NullLoadObserver observer;
          const auto backend = CreateCpuBackend(model, own, observer);
          ASSERT_TRUE(backend.ok()) << backend.status();
          const BackendInfo& info = (*backend)->info();
          const auto blocks_for = [&](int64_t tokens) {
            return (tokens + block_tokens - 1) / block_tokens;
          };
          const int64_t blocks = std::min(3 * blocks_for(max_context), blocks_for(kDraftKvTokens));
          EXPECT_GE(info.kv_blocks, blocks) << architecture;
          // The other context is longer than a window, so that fewer window blocks are enough.
          if (max_context == 100 && info.window_blocks > 0) {
            EXPECT_GE(info.window_blocks, blocks);
          }
          if (info.recurrent) {
            EXPECT_GE(info.state_cells, ModelDrafter::kCellsOfSlot * options.max_seqs);
          }
          const auto taken = static_cast<int64_t>(info.weights_bytes + info.kv_bytes +
                                                  info.state_bytes + info.workspace_bytes);
          const int64_t kept = DraftMemoryBytes(*model, own) + 3 * DraftStateBytes(model->spec());
          EXPECT_LE(taken, kept) << architecture << " " << block_tokens;
          // The estimate is not far off: for tiny weights the activations count most.
          EXPECT_LE(kept, taken + (int64_t{64} << 20));
        }
      }
    }
  }
}

}  // namespace
}  // namespace orcd
