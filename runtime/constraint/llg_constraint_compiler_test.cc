// Rules of every kind, from a request's spec to the masks.
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/constraint/llg_rules_for_test.h"
#include "testing/event.h"
#include "testing/sanitized.h"

namespace orcd {
namespace {

class ConstraintCompilerTest : public ::testing::Test {
 protected:
  void Start(const ConstraintLimits& limits = {}) {
    auto compiler = ConstraintCompiler::Create(*vocabulary_.tokenizer, limits, nullptr);
    ASSERT_TRUE(compiler.ok()) << compiler.status();
    compiler_ = *std::move(compiler);
  }
  absl::StatusOr<std::unique_ptr<Constraint>> Make(const ConstraintSpec& spec) {
    ORCD_ASSIGN_OR_RETURN(const std::shared_ptr<PendingConstraint> pending,
                          compiler_->Compile(spec, 1));
    Event ready;
    pending->OnReady([&] { ready.Notify(); });
    EXPECT_TRUE(ready.WaitFor(absl::Seconds(30)));
    ORCD_RETURN_IF_ERROR(pending->status());
    return pending->Make();
  }
  // True if the tokens of `text`, one for each byte, and then the end keep the rule.
  bool Accepts(const ConstraintSpec& spec, const std::string& text) {
    auto constraint = Make(spec);
    EXPECT_TRUE(constraint.ok()) << constraint.status();
    if (!constraint.ok()) return false;
    for (const char byte : text) (*constraint)->Accept(static_cast<uint8_t>(byte));
    if (!(*constraint)->status().ok()) return false;
    return (*constraint)->Mask(0).Allows(vocabulary_.end);
  }

  const JsonVocabulary& vocabulary_ = JsonVocabulary::Get();
  std::unique_ptr<ConstraintCompiler> compiler_;
};

TEST_F(ConstraintCompilerTest, CompilesEveryKindOfRule) {
  ASSERT_TRUE(ConstraintCompiler::IsBuilt());
  Start();
  const struct {
    ConstraintSpec spec;
    std::string accepted;
    std::string refused;
  } cases[] = {
      {{.rule = JsonSchemaRule{R"({"type":"integer"})"}, .start = {}}, "12", "1.5"},
      {{.rule = JsonObjectRule{}, .start = {}}, R"({"a":[1]})", "[1]"},
      {{.rule = RegexRule{"[a-c]{2}"}, .start = {}}, "ab", "abc"},
      {{.rule = GrammarRule{GrammarDialect::kLark, "start: \"a\" | \"b\" start"}, .start = {}},
       "bba",
       "bb"},
      {{.rule = GrammarRule{GrammarDialect::kEbnf, "root ::= \"a\" | \"b\" root"}, .start = {}},
       "bba",
       "bb"},
      {{.rule = ChoiceRule{{"red", "reddish"}}, .start = {}}, "reddish", "redd"},
      {{.rule = StructuralTagRule{{{"<f>", R"({"type":"integer"})", "</f>"}}, {"<f>"}},
        .start = {}},
       "so <f>12</f> it is",
       "so <f>a</f>"},
      {{.rule = RegexRule{"x+"}, .start = StartAfterString{"</think>"}},
       "abc</think>xx",
       "abc</think>y"},
      {{.rule = RegexRule{"x+"}, .start = StartAfterToken{'t'}}, "abctxx", "abcty"},
  };
  for (const auto& [spec, accepted, refused] : cases) {
    EXPECT_TRUE(Accepts(spec, accepted)) << spec.rule.index() << " " << accepted;
    EXPECT_FALSE(Accepts(spec, refused)) << spec.rule.index() << " " << refused;
  }
}

TEST_F(ConstraintCompilerTest, RefusesByReason) {
  Start();
  const struct {
    ConstraintSpec spec;
    std::string reason;
  } cases[] = {
      {{.rule = JsonSchemaRule{"{"}, .start = {}}, "CONSTRAINT_INVALID"},
      {{.rule = JsonSchemaRule{"false"}, .start = {}}, "CONSTRAINT_UNSATISFIABLE"},
      {{.rule = JsonSchemaRule{R"({"type":"array","uniqueItems":true})"}, .start = {}},
       "CONSTRAINT_UNSUPPORTED"},
      {{.rule = RegexRule{"("}, .start = {}}, "CONSTRAINT_INVALID"},
      // A start that could never come.
      {{.rule = RegexRule{"a[^\\s\\S]"}, .start = StartAfterString{"="}},
       "CONSTRAINT_UNSATISFIABLE"},
      {{.rule = GrammarRule{GrammarDialect::kLark, "start: X\nX: /q/ & /r/"},
        .start = StartAfterString{"="}},
       "CONSTRAINT_UNSATISFIABLE"},
      {{.rule = GrammarRule{GrammarDialect::kEbnf, "root ::= [a-c] root"},
        .start = StartAfterString{"="}},
       "CONSTRAINT_UNSATISFIABLE"},
      {{.rule = GrammarRule{GrammarDialect::kLark, "start: nothing"}, .start = {}},
       "CONSTRAINT_INVALID"},
      {{.rule = JsonSchemaRule{absl::StrCat("\"", std::string(200'000, 'x'), "\"")}, .start = {}},
       "CONSTRAINT_TOO_LARGE"},
  };
  for (const auto& [spec, reason] : cases) {
    const auto constraint = Make(spec);
    EXPECT_EQ(constraint.status().code(), absl::StatusCode::kInvalidArgument) << reason;
    EXPECT_EQ(GetErrorDetails(constraint.status()).reason, reason) << constraint.status();
    EXPECT_LT(constraint.status().message().size(), 600u);
  }
  EXPECT_EQ(compiler_->stats().live, 0);
}

// The resident memory of this process in bytes.
size_t Resident() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

TEST_F(ConstraintCompilerTest, KeepsItsMemoryFlatForManySchemas) {
  ConstraintLimits limits;
  limits.cache_bytes = 8 << 20;
  Start(limits);
  const int count = testing::kSanitized ? 200 : 2000;
  size_t filled = 0;
  for (int i = 0; i < count; ++i) {
    const auto constraint =
        Make({.rule = JsonSchemaRule{absl::StrCat(R"({"type":"object","properties":{"name)", i,
                                                  R"(":{"enum":["red","green"]}}})")},
              .start = {}});
    ASSERT_TRUE(constraint.ok()) << constraint.status();
    ASSERT_LE(compiler_->stats().cache_bytes, limits.cache_bytes);
    if (i == count / 4) filled = Resident();
  }
  EXPECT_EQ(compiler_->stats().compiled, count);
  if (!testing::kSanitized) {
    EXPECT_LT(Resident(), filled + (8 << 20));
  }
}

}  // namespace
}  // namespace orcd
