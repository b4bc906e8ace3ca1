// A small card, simulated: the tests take all memory of the GPU but for a part. They need the GPU
// for themselves, as other tests of free memory do.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cuda/device_memory.h"
#include "cuda/gpu_for_test.h"
#include "cuda/shaped_model_for_test.h"
#include "gmock/gmock.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/steps_for_test.h"
#include "runtime/base/error.h"

namespace orcd::cuda {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;

class SmallGpuTest : public GpuTest {
 protected:
  // Takes memory until this much, at most, is free.
  void LeaveFree(size_t bytes) {
    const size_t free = FreeBytes();
    ASSERT_GT(free, bytes);
    auto taken = DeviceMemory::Allocate(free - bytes, "a test");
    ASSERT_TRUE(taken.ok()) << taken.status();
    taken_.push_back(*std::move(taken));
    ASSERT_LE(FreeBytes(), bytes);
  }
  // About 250 MiB of weights.
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model =
        MakeShapedModel(InType({.name = "small_gpu",
                                .layers = 4,
                                .hidden = 2048,
                                .heads = 16,
                                .kv_heads = 2,
                                .head_dim = 128,
                                .ffn = 5632,
                                .vocab = 20'000},
                               "small_gpu_q8_0", TensorType::kQ8_0));
    return model;
  }
  static absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions& options = {}) {
    NullLoadObserver observer;
    return CreateBackendForTest(model(), options, observer);
  }

 private:
  std::vector<DeviceMemory> taken_;
};

// Whatever is left, a load plans with it, and steps then take nothing more.
TEST_F(SmallGpuTest, ALoadKeepsToWhatIsLeft) {
  for (const size_t left : {1200 * kMiB, 700 * kMiB}) {
    ASSERT_NO_FATAL_FAILURE(LeaveFree(left));
    const size_t free = FreeBytes();
    auto created = Create();
    ASSERT_TRUE(created.ok()) << left << ": " << created.status();
    Backend& backend = **created;
    const BackendInfo& info = backend.info();
    EXPECT_EQ(info.gpu->memory_free_bytes, free);
    const uint64_t planned = info.weights_bytes + info.kv_bytes + info.workspace_bytes;
    EXPECT_LE(planned, free);
    // The KV cache takes what it may.
    EXPECT_GE(planned, free / 2) << left;
    const size_t after_load = FreeBytes();
    EXPECT_GT(after_load, 0u);
    const std::vector<int32_t> blocks = BlockRange(0, info.kv_blocks);
    const int prompt = std::min(info.max_step_tokens, (info.kv_blocks - 4) * info.block_tokens);
    const std::vector<int32_t> tokens = TestTokens(prompt, 1);
    StepSequence seq = StartSequence(0, tokens, blocks);
    seq.sample = true;
    ASSERT_EQ(SamplesOf(RunStep(backend, {seq})).size(), 1u);
    for (int step = 0; step < 32; ++step) {
      StepSequence next = ContinueSequence(0, prompt + step, {&kPreviousSample, 1}, blocks);
      next.sample = true;
      const auto samples = SamplesOf(RunStep(backend, {next}));
      ASSERT_EQ(samples.size(), 1u);
      ASSERT_TRUE(samples[0].finite);
    }
    EXPECT_EQ(FreeBytes(), after_load);
  }
}

TEST_F(SmallGpuTest, TooLittleIsRefusedWithTheNumbersAndTakesNothing) {
  // Loads the kernels, which stay.
  ASSERT_TRUE(Create().ok());
  ASSERT_NO_FATAL_FAILURE(LeaveFree(200 * kMiB));
  const size_t free = FreeBytes();
  const absl::Status status = Create().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(GetErrorDetails(status).reason, "INSUFFICIENT_MEMORY");
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(free, " of ")));
  EXPECT_EQ(FreeBytes(), free);
}

}  // namespace
}  // namespace orcd::cuda
