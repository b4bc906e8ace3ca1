// Every architecture on the GPU: a request draws the same tokens alone, in a crowd,
// with its prompt in pieces or cached, and after it gave way to others.
#include "testing/arch_invariance.h"

#include <string>

#include "cuda/gpu_for_test.h"
#include "gtest/gtest.h"
#include "testing/test_name.h"

namespace orcd::cuda {
namespace {

class GpuArchInvarianceTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Architectures, GpuArchInvarianceTest,
                         ::testing::ValuesIn(ArchitectureNames()),
                         [](const auto& info) { return TestNameOf(info.param); });

TEST_P(GpuArchInvarianceTest, ARequestDrawsTheSameWhateverIsAroundIt) {
  ArchInvariance(GetParam(), CreateBackendForTest).Check();
}

}  // namespace
}  // namespace orcd::cuda
