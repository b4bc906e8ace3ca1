// Every architecture on the GPU: a request draws the same tokens alone, in a crowd,
// with its prompt in pieces or cached, and after it gave way to others.
#include "testing/arch_invariance.h"

#include <string>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "gtest/gtest.h"
#include "testing/random_model/model_shapes.h"
#include "testing/test_name.h"

namespace orcd::cuda {
namespace {

// The GPU refuses recurrent layers.
std::vector<std::string> GpuArchitectureNames() {
  std::vector<std::string> names;
  for (const std::string& name : ArchitectureNames()) {
    if (FindModelShape(name, "nano")->delta.key_heads == 0) names.push_back(name);
  }
  return names;
}

class GpuArchInvarianceTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Architectures, GpuArchInvarianceTest,
                         ::testing::ValuesIn(GpuArchitectureNames()),
                         [](const auto& info) { return TestNameOf(info.param); });

TEST_P(GpuArchInvarianceTest, ARequestDrawsTheSameWhateverIsAroundIt) {
  ArchInvariance(GetParam(), CreateBackendForTest).Check();
}

}  // namespace
}  // namespace orcd::cuda
