// Guesses on the GPU change no output.
#include <memory>
#include <utility>

#include "cuda/gpu_for_test.h"
#include "gtest/gtest.h"
#include "runtime/engine/nano_model_for_test.h"
#include "testing/speculation_digest.h"

namespace orcd::cuda {
namespace {

class GpuSpeculationTest : public GpuTest {
 protected:
  static SpeculationDigest Digest(DigestRange range, int crowd,
                                  std::shared_ptr<const Model> model = orcd::NanoModel()) {
    return {CreateBackendForTest, range, crowd, std::move(model)};
  }

  const DigestRange range_ = DigestRange::OfEnvironment(400);
};

TEST_F(GpuSpeculationTest, EveryDrafterGivesTheSameOutputs) { Digest(range_, 24).Check(); }

// Drafts of recurrent models, whose states move on by those that were right alone.
TEST_F(GpuSpeculationTest, EveryDrafterGivesTheSameOutputsOfAHybrid) {
  Digest(range_, 24, orcd::NanoModel({.architecture = "qwen35"})).Check();
}

TEST_F(GpuSpeculationTest, InterruptionsOfAHybridChangeNoToken) {
  Digest(range_, 24, orcd::NanoModel({.architecture = "qwen35"})).CheckInterruptions();
}

TEST_F(GpuSpeculationTest, CheckpointsOfAHybridGiveTheSameOutputs) {
  const DigestRange few = {.first = range_.first, .requests = range_.requests / 4};
  Digest(few, 12, orcd::NanoModel({.architecture = "qwen35"})).CheckCheckpoints();
}

}  // namespace
}  // namespace orcd::cuda
