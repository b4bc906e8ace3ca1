// Tests that steps allocate no memory after creation. The linker sends the CUDA runtime's
// allocating calls here to be counted (--wrap in CMakeLists.txt).
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "runtime/backend/backend.h"
#include "runtime/cpu/model_for_test.h"

namespace {

// The symbols that --wrap replaces belong to the whole program, and so does the count.
std::atomic<int64_t>& TakingCalls() {
  static std::atomic<int64_t> calls = 0;
  return calls;
}

}  // namespace

extern "C" {

// Defines the symbols that --wrap expects, under C++ names that are not reserved.
#define ORCD_COUNT(function, parameters, arguments)                       \
  cudaError_t Real_##function parameters __asm__("__real_" #function);    \
  cudaError_t Counted_##function parameters __asm__("__wrap_" #function); \
  cudaError_t Counted_##function parameters {                             \
    ++TakingCalls();                                                      \
    return Real_##function arguments;                                     \
  }

ORCD_COUNT(cudaMalloc, (void** memory, size_t bytes), (memory, bytes))
ORCD_COUNT(cudaMallocAsync, (void** memory, size_t bytes, cudaStream_t stream),
           (memory, bytes, stream))
ORCD_COUNT(cudaMallocFromPoolAsync,
           (void** memory, size_t bytes, cudaMemPool_t pool, cudaStream_t stream),
           (memory, bytes, pool, stream))
ORCD_COUNT(cudaMallocManaged, (void** memory, size_t bytes, unsigned int flags),
           (memory, bytes, flags))
ORCD_COUNT(cudaMallocPitch, (void** memory, size_t* pitch, size_t width, size_t height),
           (memory, pitch, width, height))
ORCD_COUNT(cudaMallocHost, (void** memory, size_t bytes), (memory, bytes))
ORCD_COUNT(cudaHostAlloc, (void** memory, size_t bytes, unsigned int flags), (memory, bytes, flags))
ORCD_COUNT(cudaHostRegister, (void* memory, size_t bytes, unsigned int flags),
           (memory, bytes, flags))
ORCD_COUNT(cudaGraphInstantiate,
           (cudaGraphExec_t * executable, cudaGraph_t graph, unsigned long long flags),
           (executable, graph, flags))
ORCD_COUNT(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned int flags), (stream, flags))
ORCD_COUNT(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned int flags), (event, flags))

#undef ORCD_COUNT

}  // extern "C"

namespace orcd::cuda {
namespace {

using cpu::NanoModel;

class AllocationTest : public GpuTest {
 protected:
  // Runs steps of every kind.
  static void ExpectStepsTakeNothing(const std::shared_ptr<const Model>& model,
                                     int64_t before_create);
};

void AllocationTest::ExpectStepsTakeNothing(const std::shared_ptr<const Model>& model,
                                            int64_t before_create) {
  constexpr int kSequences = 3;
  constexpr int kSteps = 10'000;
  BackendOptions options;
  options.max_seqs = 4;
  options.max_step_tokens = 256;
  options.kv_cache_bytes = 256 << 20;
  // If the file has a block for that.
  options.predict = true;
  NullLoadObserver observer;
  auto created = CreateBackendForTest(model, options, observer);
  ASSERT_TRUE(created.ok()) << created.status();
  Backend& backend = **created;
  const int64_t after_create = TakingCalls();
  // Fails if calls are not counted at all.
  ASSERT_GT(after_create, before_create + 5);

  const std::vector<std::vector<int32_t>> prompts = {TestTokens(5, 1), TestTokens(100, 2),
                                                     TestTokens(140, 3)};
  const int blocks_each = (140 + kSteps) / options.block_tokens + 2;
  ASSERT_GE(backend.info().kv_blocks, (kSequences + 1) * blocks_each);
  SamplingParams params[kSequences];
  params[1].top_p = 0.9f;
  params[1].logprobs = 20;
  params[1].repetition_penalty = 1.1f;
  params[2].temperature = 0;
  std::vector<std::vector<int32_t>> blocks;
  std::vector<StepSequence> seqs;
  for (int s = 0; s < kSequences; ++s) {
    blocks.push_back(BlockRange(s * blocks_each, blocks_each));
    seqs.push_back(StartSequence(s, prompts[s], blocks[s], params[s]));
    seqs.back().sample = true;
  }
  ASSERT_EQ(SamplesOf(RunStep(backend, seqs)).size(), 3u);
  // One sequence has a mask, which comes with the batch in two of three steps and late in the
  // third.
  const std::vector<uint32_t> words = AllBut(std::vector<int32_t>{5, 6, 7}, model->spec().vocab);
  const TokenMask mask = {words};
  const auto launch = [&](int step) {
    StepBatch batch;
    for (int s = 0; s < kSequences; ++s) {
      batch.seqs.push_back(ContinueSequence(s, static_cast<int>(prompts[s].size()) + step,
                                            {&kPreviousSample, 1}, blocks[s]));
      batch.seqs.back().sample = true;
    }
    batch.seqs[2].predictions = std::min(step % 3, backend.info().max_predictions);
    StepSequence& masked = batch.seqs[1];
    masked.mask_follows = step % 3 == 2;
    if (!masked.mask_follows) masked.mask = mask;
    const absl::Status launched = backend.Launch(batch);
    return launched.ok() && masked.mask_follows ? backend.GiveMasks({&mask, 1}) : launched;
  };
  // A fourth sequence comes and goes, so that the steps are of every kind.
  const auto other_blocks = BlockRange(kSequences * blocks_each, 8);
  const int32_t some_tokens[] = {1, 2, 3};
  const TokenMask no_masks[2];
  const auto start_another = [&] {
    StepSequence seq = StartSequence(3, prompts[1], other_blocks);
    const StateSave saves[] = {{.tokens = 99, .cell = 1}, {.tokens = 100, .cell = 0}};
    if (backend.info().recurrent) seq.save_states = saves;
    RunStep(backend, {seq});
    seq = ContinueSequence(3, 100, std::span(some_tokens).first(1), other_blocks);
    if (backend.info().recurrent) seq.restore_state = 0;
    seq.sample = true;
    seq.drafts = std::span(some_tokens).subspan(1);
    seq.draft_masks = no_masks;
    seq.predictions = std::min(3, backend.info().max_predictions);
    const PartResult part = RunStep(backend, {seq}).parts.at(0);
    EXPECT_EQ(part.predictions.size(), static_cast<size_t>(seq.predictions));
  };
  start_another();
  int step = 0;
  for (; step < 6; ++step) {
    ASSERT_TRUE(launch(step).ok());
    ASSERT_TRUE(backend.Wait().ok());
  }

  const size_t free_before = FreeBytes();
  int in_flight = 0;
  for (; step < kSteps; ++step) {
    const absl::Status launched = launch(step);
    ASSERT_TRUE(launched.ok()) << launched;
    if (++in_flight < 2) continue;
    const auto result = backend.Wait();
    --in_flight;
    ASSERT_TRUE(result.ok()) << result.status();
    const auto samples = SamplesOf(*result);
    ASSERT_EQ(samples.size(), 3u);
    for (const SampledToken& sample : samples) ASSERT_TRUE(sample.finite) << step;
    if (step % 1000 != 0) continue;
    ASSERT_TRUE(backend.Wait().ok());
    in_flight = 0;
    start_another();
  }
  while (in_flight-- > 0) ASSERT_TRUE(backend.Wait().ok());
  EXPECT_EQ(TakingCalls(), after_create);
  EXPECT_EQ(FreeBytes(), free_before);
}

TEST_F(AllocationTest, TenThousandStepsTakeNothing) {
  const int64_t before = TakingCalls();
  ExpectStepsTakeNothing(NanoModel("Q4_K_M"), before);
}

TEST_F(AllocationTest, StepsOfAHybridTakeNothing) {
  const int64_t before = TakingCalls();
  ExpectStepsTakeNothing(NanoModel("Q4_K_M", "qwen35"), before);
}

// Destroying a backend frees all memory that it took.
TEST_F(AllocationTest, ABackendsEndGivesAllBack) {
  BackendOptions options;
  options.kv_cache_bytes = 256 << 20;
  NullLoadObserver observer;
  const auto model = NanoModel("F16");
  // The first backend loads code, which stays.
  ASSERT_TRUE(CreateBackendForTest(model, options, observer).ok());
  const size_t before = FreeBytes();
  {
    const auto backend = CreateBackendForTest(model, options, observer);
    ASSERT_TRUE(backend.ok()) << backend.status();
    EXPECT_LE(FreeBytes() + (*backend)->info().kv_bytes, before);
  }
  EXPECT_EQ(FreeBytes(), before);
}

}  // namespace
}  // namespace orcd::cuda
