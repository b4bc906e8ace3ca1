// Guesses on the GPU change no output. ORCD_DIGEST_REQUESTS sets the number of random requests.
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "cuda/gpu_for_test.h"
#include "gtest/gtest.h"
#include "runtime/engine/nano_model_for_test.h"
#include "testing/speculation_digest.h"

namespace orcd::cuda {
namespace {

class GpuSpeculationTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (const char* const given = std::getenv("ORCD_DIGEST_REQUESTS")) {
      ASSERT_TRUE(absl::SimpleAtoi(given, &requests_)) << given;
    }
  }
  int requests_ = 400;
};

TEST_F(GpuSpeculationTest, EveryDrafterGivesTheSameOutputs) {
  SpeculationDigest(CreateBackendForTest, requests_, 24).Check();
}

// Drafts of recurrent models, whose states move on by those that were right alone.
TEST_F(GpuSpeculationTest, EveryDrafterGivesTheSameOutputsOfAHybrid) {
  SpeculationDigest(CreateBackendForTest, requests_, 24,
                    orcd::NanoModel({.architecture = "qwen35"}))
      .Check();
}

TEST_F(GpuSpeculationTest, CheckpointsOfAHybridGiveTheSameOutputs) {
  SpeculationDigest(CreateBackendForTest, requests_ / 4, 12,
                    orcd::NanoModel({.architecture = "qwen35"}))
      .CheckCheckpoints();
}

}  // namespace
}  // namespace orcd::cuda
