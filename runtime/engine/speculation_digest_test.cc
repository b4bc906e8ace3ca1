#include "testing/speculation_digest.h"

#include "gtest/gtest.h"
#include "runtime/cpu/cpu_backend.h"
#include "testing/sanitized.h"

namespace orcd {
namespace {

TEST(SpeculationDigestTest, EveryDrafterGivesTheSameOutputs) {
  SpeculationDigest(CreateCpuBackend, testing::kSanitized ? 40 : 120, 5).Check();
}

}  // namespace
}  // namespace orcd
