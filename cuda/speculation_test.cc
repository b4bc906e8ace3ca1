// Guesses on the GPU change no output. ORCD_DIGEST_REQUESTS sets the number of random requests, and
// ORCD_DIGEST_FIRST the first of them.
#include <cstdlib>
#include <memory>
#include <utility>

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
    Read("ORCD_DIGEST_REQUESTS", requests_);
    Read("ORCD_DIGEST_FIRST", first_);
  }
  SpeculationDigest Digest(int requests, int crowd,
                           std::shared_ptr<const Model> model = orcd::NanoModel()) const {
    SpeculationDigest digest(CreateBackendForTest, requests, crowd, std::move(model));
    digest.BeginAt(first_);
    return digest;
  }

  int requests_ = 400;

 private:
  static void Read(const char* name, int& number) {
    const char* const given = std::getenv(name);
    if (given == nullptr) return;
    ASSERT_TRUE(absl::SimpleAtoi(given, &number)) << given;
  }

  int first_ = 0;
};

TEST_F(GpuSpeculationTest, EveryDrafterGivesTheSameOutputs) { Digest(requests_, 24).Check(); }

// Drafts of recurrent models, whose states move on by those that were right alone.
TEST_F(GpuSpeculationTest, EveryDrafterGivesTheSameOutputsOfAHybrid) {
  Digest(requests_, 24, orcd::NanoModel({.architecture = "qwen35"})).Check();
}

TEST_F(GpuSpeculationTest, CheckpointsOfAHybridGiveTheSameOutputs) {
  Digest(requests_ / 4, 12, orcd::NanoModel({.architecture = "qwen35"})).CheckCheckpoints();
}

}  // namespace
}  // namespace orcd::cuda
