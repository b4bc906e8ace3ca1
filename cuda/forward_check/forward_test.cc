// Runs every kind of step, for models of every size and file type, on memory of expressions.
#include "cuda/forward.h"

#include <variant>
#include <vector>

#include "cuda/forward_check/checked_model_for_test.h"
#include "gtest/gtest.h"
#include "testing/random_model/model_shapes.h"

namespace orcd::cuda {
namespace {

std::vector<ModelCase> Cases() {
  std::vector<ModelCase> cases;
  for (const RandomModelShape& shape : AllModelShapes()) {
    if (shape.architecture != "qwen2") continue;
    for (const FileType& type : AllFileTypes()) cases.push_back({shape, type, 3});
  }
  cases.push_back({*FindModelShape("qwen2", "7b"), *FindFileType("Q4_K_M"), 1});
  // Enough layers for each matrix to have each type, and for gate and up to have each pair of
  // neighbouring types.
  for (const char* const size : {"0.5b", "7b"}) {
    cases.push_back({*FindModelShape("qwen2", size), *FindFileType("F16"), 14, /*mixed=*/true});
  }
  for (const ModelForm& form : AllForms()) {
    if (form.name == "qwen2") continue;
    for (const char* const type : {"F16", "Q4_K_M"}) {
      cases.push_back({*FindModelShape("qwen2", "7b"), *FindFileType(type), 5, false, form});
      cases.push_back({OddShape(), *FindFileType(type), 4, false, form});
    }
    cases.push_back({*FindModelShape("qwen2", "1.5b"), *FindFileType("F16"), 5, true, form});
  }
  // Experts whose weights are found in code books of groups.
  for (const char* const form : {"qwen3moe", "qwen3next"}) {
    cases.push_back(
        {*FindModelShape("qwen2", "7b"), *FindFileType("IQ3_S"), 3, false, FormOf(form)});
  }
  // Heads of 256 values, which have no hi/lo split.
  for (const char* const form : {"qwen2", "gemma3", "qwen35"}) {
    cases.push_back(
        {*FindModelShape("gemma3", "4b"), *FindFileType("Q4_K_M"), 3, false, FormOf(form)});
  }
  // Kernels that fuse nothing: every form, and every mixture of types.
  const size_t fused = cases.size();
  for (size_t i = 0; i < fused; ++i) {
    const bool form_alone = cases[i].form.name != "qwen2" && cases[i].shape.size == "odd";
    if (!form_alone && !cases[i].mixed) continue;
    cases.push_back(cases[i]);
    cases.back().fuses = false;
  }
  return cases;
}

std::vector<StepShape> Steps() {
  std::vector<StepShape> steps;
  for (const int sequences : {1, 8, 9, 64, 256, 512, 513}) steps.push_back(DecodeStep(sequences));
  for (const int sequences : {2, 8, 9, 64}) steps.push_back(DraftedStep(sequences));
  for (const int tokens : {1, 8, 100, 256, 512, 513, 4096}) {
    for (const int rows : {0, 1, 8, 512, 513, 1000}) {
      if (rows <= tokens) steps.push_back(PromptStep(tokens, rows));
    }
  }
  return steps;
}

class SymbolicForwardTest : public ::testing::TestWithParam<ModelCase> {};

INSTANTIATE_TEST_SUITE_P(Models, SymbolicForwardTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name(); });

TEST_P(SymbolicForwardTest, ComputesWhatTheDefinitionSays) {
  CheckedModel model(GetParam());
  for (const StepShape& step : Steps()) {
    ASSERT_EQ(model.Check(step), "") << step.tokens
                                     << (step.drafts   ? " sequences and drafts"
                                         : step.decode ? " sequences of one token"
                                                       : " tokens of prompts")
                                     << ", logits of " << step.logit_rows << " rows";
  }
}

// Queries, keys and values; above 512 tokens all that is not F16 is dequantised.
TEST(SymbolicForwardFormatsTest, ShareALaunchUpTo512Tokens) {
  CheckedModel model({*FindModelShape("qwen2", "1.5b"), *FindFileType("F16"), 14, /*mixed=*/true});
  for (const int tokens : {9, 64, 100, 512, 513}) {
    int mixes = 0;
    const auto count = [&](const CheckedModel::Recorded& step) {
      for (const KernelLaunch& launch : step.launches) {
        const auto* const gemm = std::get_if<GemmArgs>(&launch.args);
        if (gemm == nullptr) continue;
        const Product& product = gemm->product;
        for (int i = 1; i < product.num_matrices; ++i) {
          if (product.matrices[i].format == product.matrices[i - 1].format) continue;
          ++mixes;
          break;
        }
      }
    };
    ASSERT_EQ(model.Check(PromptStep(tokens, 1), count), "") << tokens;
    EXPECT_EQ(mixes > 0, tokens <= kMaxPartialsTokens) << tokens;
  }
}

}  // namespace
}  // namespace orcd::cuda
