// Guesses on the GPU change no output. ORCD_DIGEST_REQUESTS sets the number of random requests.
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "cuda/gpu_for_test.h"
#include "gtest/gtest.h"
#include "testing/speculation_digest.h"

namespace orcd::cuda {
namespace {

class GpuSpeculationTest : public GpuTest {};

TEST_F(GpuSpeculationTest, EveryDrafterGivesTheSameOutputs) {
  int requests = 400;
  if (const char* const given = std::getenv("ORCD_DIGEST_REQUESTS")) {
    ASSERT_TRUE(absl::SimpleAtoi(given, &requests)) << given;
  }
  SpeculationDigest(CreateBackendForTest, requests, 24).Check();
}

}  // namespace
}  // namespace orcd::cuda
