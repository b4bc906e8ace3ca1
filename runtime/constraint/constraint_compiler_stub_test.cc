#include <utility>

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/text/small_vocabulary_for_test.h"

namespace orcd {
namespace {

TEST(ConstraintCompilerStubTest, RefusesByName) {
  EXPECT_FALSE(ConstraintCompiler::IsBuilt());
  const SmallVocabulary vocabulary;
  const auto tokenizer = Tokenizer::Create(vocabulary.View());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  auto compiler = ConstraintCompiler::Create(**tokenizer, {}, nullptr);
  ASSERT_TRUE(compiler.ok()) << compiler.status();
  const auto refused = (*compiler)->Compile({.rule = RegexRule{"a"}, .start = {}}, 1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(GetErrorDetails(refused.status()).reason, "CONSTRAINTS_NOT_BUILT");
  EXPECT_EQ(GetErrorDetails(refused.status()).field, "constraint");
}

}  // namespace
}  // namespace orcd
