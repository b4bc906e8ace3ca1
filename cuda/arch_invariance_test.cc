// Every architecture without experts on the GPU: a request draws the same tokens alone, in a crowd,
// with its prompt in pieces or cached, and after it gave way to others.
#include "testing/arch_invariance.h"

#include <string>
#include <vector>

#include "cuda/cuda_backend.h"
#include "gtest/gtest.h"
#include "testing/random_model/model_shapes.h"
#include "testing/test_name.h"

namespace orcd::cuda {
namespace {

class GpuArchInvarianceTest : public ::testing::TestWithParam<std::string> {};

// The backend refuses experts (memory_plan.h).
std::vector<std::string> NamesWithoutExperts() {
  std::vector<std::string> names = ArchitectureNames();
  std::erase_if(names, [](const std::string& name) {
    const RandomModelShape* const shape = FindModelShape(name, "nano");
    return shape == nullptr || shape->experts.count > 0;
  });
  return names;
}

INSTANTIATE_TEST_SUITE_P(Architectures, GpuArchInvarianceTest,
                         ::testing::ValuesIn(NamesWithoutExperts()),
                         [](const auto& info) { return TestNameOf(info.param); });

TEST_P(GpuArchInvarianceTest, ARequestDrawsTheSameWhateverIsAroundIt) {
  ArchInvariance(GetParam(), CreateCudaBackend).Check();
}

}  // namespace
}  // namespace orcd::cuda
