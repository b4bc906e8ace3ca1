// Compares whole files of the architectures without another program's results with a program in F64
// that reads them by itself.
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/cpu/model_for_test.h"
#include "runtime/cpu/plain_moe_file_for_test.h"

namespace orcd::cpu {
namespace {

// Architecture and type.
using MoeFileParam = std::tuple<const char*, const char*>;
class MoeFileTest : public ::testing::TestWithParam<MoeFileParam> {};

INSTANTIATE_TEST_SUITE_P(Files, MoeFileTest,
                         ::testing::Combine(::testing::Values("qwen2moe", "granitemoe"),
                                            ::testing::Values("F16", "Q8_0", "Q4_K_M")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param);
                         });

TEST_P(MoeFileTest, LogitsAgree) {
  const auto model = NanoModel(std::get<1>(GetParam()), std::get<0>(GetParam()));
  ASSERT_NE(model, nullptr);
  ASSERT_GT(model->spec().layers[0].experts.shared_ffn, 0) << "nothing to see of a shared expert";
  const std::vector<int32_t> tokens = TestTokens(40);
  const std::vector<double> expected = PlainMoeFile(model->gguf()).Logits(tokens);
  BackendOptions options = SmallOptions();
  options.kv_type = KvType::kF32;
  const auto backend = MakeTestBackend(model, options);
  ASSERT_NE(backend, nullptr);
  for (const int chunk : {40, 1}) {
    const std::vector<float> logits = TeacherForce(*backend, tokens, BlockRange(0, 3), chunk);
    ASSERT_EQ(logits.size(), expected.size());
    double error = 0;
    double reference = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      error += std::pow(double{logits[i]} - expected[i], 2);
      reference += std::pow(expected[i], 2);
    }
    EXPECT_LE(error / reference, 1e-9) << "in steps of " << chunk;
  }
}

}  // namespace
}  // namespace orcd::cpu
