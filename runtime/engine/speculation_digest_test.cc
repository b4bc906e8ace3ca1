#include "testing/speculation_digest.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/null/null_backend.h"
#include "testing/sanitized.h"

namespace orcd {
namespace {

std::shared_ptr<const Model> NanoHybrid() {
  return NanoModel({.architecture = "qwen3next", .context_length = 512});
}

TEST(SpeculationDigestTest, EveryDrafterGivesTheSameOutputs) {
  SpeculationDigest(CreateCpuBackend, DigestRange::OfEnvironment(testing::kSanitized ? 20 : 120), 5)
      .Check();
}

TEST(SpeculationDigestTest, EveryDrafterGivesTheSameOutputsOfARecurrentModel) {
  SpeculationDigest(CreateCpuBackend, DigestRange::OfEnvironment(24), 5, NanoHybrid()).Check();
}

// The models' own blocks predict, too.
TEST(SpeculationDigestTest, EveryDrafterGivesTheSameOutputsOfModelsThatPredict) {
  for (const std::string architecture : {"qwen35", "glm4moe"}) {
    SCOPED_TRACE(architecture);
    SpeculationDigest digest(CreateCpuBackend, {.requests = 24}, 5,
                             NanoModel({.architecture = architecture, .context_length = 512}));
    digest.Check();
    EXPECT_TRUE(digest.predicts());
  }
}

TEST(SpeculationDigestTest, InterruptionsChangeNoToken) {
  for (const std::string architecture : {"qwen2", "qwen35"}) {
    SCOPED_TRACE(architecture);
    SpeculationDigest(CreateCpuBackend, DigestRange::OfEnvironment(testing::kSanitized ? 24 : 40),
                      5, NanoModel({.architecture = architecture, .context_length = 512}))
        .CheckInterruptions();
  }
}

TEST(SpeculationDigestTest, CheckpointsGiveTheSameOutputs) {
  SpeculationDigest(NullBackendFactory(), {.requests = testing::kSanitized ? 100 : 200}, 8,
                    NanoHybrid())
      .CheckCheckpoints();
  SpeculationDigest(CreateCpuBackend, {.requests = testing::kSanitized ? 8 : 20}, 5, NanoHybrid())
      .CheckCheckpoints();
}

}  // namespace
}  // namespace orcd
