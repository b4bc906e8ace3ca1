// Every architecture on the CPU: a request draws the same tokens alone, in a crowd, with its prompt
// in pieces or cached, and after it gave way to others.
#include "testing/arch_invariance.h"

#include <string>

#include "gtest/gtest.h"
#include "runtime/cpu/cpu_backend.h"
#include "testing/random_model/model_shapes.h"
#include "testing/test_name.h"

namespace orcd {
namespace {

class ArchInvarianceTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Architectures, ArchInvarianceTest,
                         ::testing::ValuesIn(ArchitectureNames()),
                         [](const auto& info) { return TestNameOf(info.param); });

TEST_P(ArchInvarianceTest, ARequestDrawsTheSameWhateverIsAroundIt) {
  ASSERT_NE(FindModelShape(GetParam(), "nano"), nullptr) << "no random model of it is made";
  ArchInvariance(GetParam(), CreateCpuBackend).Check();
}

}  // namespace
}  // namespace orcd
