// Every schema of the corpus accepts its valid documents, however they are split into tokens, and
// does not accept its invalid ones to their end.
#include "testing/schemas/schema_corpus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/constraint/token_splits_for_test.h"
#include "runtime/gguf/gguf_reader.h"
#include "testing/event.h"
#include "testing/files.h"
#include "testing/test_model.h"

namespace orcd {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

class SchemaCorpusTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!ConstraintCompiler::IsBuilt()) GTEST_SKIP() << "constraints are not built";
    const auto cases = ReadSchemaCorpus(kSchemaCorpus);
    ASSERT_TRUE(cases.ok()) << cases.status();
    ASSERT_EQ(cases->size(), 200u);
    cases_ = *cases;

    std::string vocabulary = folder_.File("tiny.gguf");
    if (GetParam()) {
      const char* oracle = std::getenv("ORCD_ORACLE_DIR");
      if (oracle == nullptr) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
      vocabulary = std::string(oracle) + "/tokenizer/qwen2.5-vocab.gguf";
    } else {
      TestModel::Valid().Write(vocabulary);
    }
    const auto gguf = GgufReader::Open(vocabulary);
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    auto tokenizer = Tokenizer::FromGguf(**gguf);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    splits_ = std::make_unique<TokenSplits>(*tokenizer_);
    auto compiler = ConstraintCompiler::Create(*tokenizer_, {}, nullptr);
    ASSERT_TRUE(compiler.ok()) << compiler.status();
    compiler_ = *std::move(compiler);
  }

  // A constraint in its initial state; null, with a failure, if the schema is refused.
  std::unique_ptr<Constraint> Make(const SchemaCase& schema) {
    const auto pending =
        compiler_->Compile({.rule = JsonSchemaRule{schema.schema}, .start = {}}, 1);
    EXPECT_TRUE(pending.ok()) << schema.name << ": " << pending.status();
    if (!pending.ok()) return nullptr;
    const auto ready = std::make_shared<Event>();
    (*pending)->OnReady([ready] { ready->Notify(); });
    EXPECT_TRUE(ready->WaitFor(kPatience)) << schema.name;
    EXPECT_TRUE((*pending)->ready());
    EXPECT_TRUE((*pending)->status().ok()) << schema.name << ": " << (*pending)->status();
    return (*pending)->status().ok() ? (*pending)->Make() : nullptr;
  }

  bool MayEnd(Constraint& constraint) const {
    if (constraint.Ended()) return true;
    if (!constraint.Forced().empty()) return false;
    const TokenMask mask = constraint.Mask(0);
    return std::any_of(tokenizer_->eog_ids().begin(), tokenizer_->eog_ids().end(),
                       [&](int32_t id) { return mask.Allows(id); });
  }

  std::string Spell(std::span<const int32_t> ids) const {
    std::string text;
    for (const int32_t id : ids) text += tokenizer_->TokenBytes(id);
    return text;
  }

  // True if the constraint takes all of `ids` and then allows the end. Where tokens are forced the
  // mask may be of the forced one alone, though other tokens spell the same text.
  bool Takes(Constraint& constraint, std::span<const int32_t> ids) const {
    for (const int32_t id : ids) {
      if (constraint.Ended()) return false;
      if (constraint.Forced().empty() && !constraint.Mask(0).Allows(id)) return false;
      constraint.Accept(id);
      if (!constraint.status().ok()) return false;
    }
    return MayEnd(constraint);
  }

  // Takes `text` as the engine does: forced tokens where there are, else the longest one allowed.
  void ExpectReachedWithForcedTokens(const SchemaCase& schema, std::string_view text) {
    const std::unique_ptr<Constraint> constraint = Make(schema);
    ASSERT_NE(constraint, nullptr);
    const std::string what = schema.name + ": " + std::string(text);
    for (std::string_view rest = text; !rest.empty();) {
      const std::span<const int32_t> now = constraint->Forced();
      std::vector<int32_t> ids(now.begin(), now.end());
      if (ids.empty()) {
        const std::vector<int32_t> beginning = splits_->Beginning(rest);
        const TokenMask mask = constraint->Mask(0);
        const auto longest = std::find_if(beginning.rbegin(), beginning.rend(),
                                          [&](int32_t id) { return mask.Allows(id); });
        ASSERT_NE(longest, beginning.rend()) << what << ", before " << rest;
        ids.push_back(*longest);
      }
      const std::string spelled = Spell(ids);
      ASSERT_TRUE(rest.starts_with(spelled)) << what << ": forces " << spelled;
      for (const int32_t id : ids) constraint->Accept(id);
      ASSERT_TRUE(constraint->status().ok()) << what << ": " << constraint->status();
      rest.remove_prefix(spelled.size());
    }
    EXPECT_TRUE(MayEnd(*constraint)) << what;
  }

  std::vector<std::vector<int32_t>> SplitsOf(std::string_view text) {
    return {splits_->Canonical(text), splits_->Bytewise(text), splits_->Random(text, random_)};
  }

  TempDir folder_;
  std::vector<SchemaCase> cases_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<TokenSplits> splits_;
  std::unique_ptr<ConstraintCompiler> compiler_;
  std::mt19937_64 random_{1};
};

INSTANTIATE_TEST_SUITE_P(Vocabularies, SchemaCorpusTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Qwen" : "Bytes"; });

TEST_P(SchemaCorpusTest, ValidDocumentsAreAcceptedInEverySplit) {
  for (const SchemaCase& schema : cases_) {
    ASSERT_FALSE(schema.valid.empty()) << schema.name;
    for (const std::string& text : schema.valid) {
      for (const std::vector<int32_t>& ids : SplitsOf(text)) {
        ASSERT_EQ(Spell(ids), text);
        const std::unique_ptr<Constraint> constraint = Make(schema);
        ASSERT_NE(constraint, nullptr);
        EXPECT_TRUE(Takes(*constraint, ids))
            << schema.name << " refuses " << text << ": " << constraint->status();
      }
    }
  }
}

TEST_P(SchemaCorpusTest, ValidDocumentsAreReachedWithForcedTokens) {
  for (const SchemaCase& schema : cases_) {
    for (const std::string& text : schema.valid) ExpectReachedWithForcedTokens(schema, text);
  }
}

TEST_P(SchemaCorpusTest, InvalidDocumentsAreNotAccepted) {
  for (const SchemaCase& schema : cases_) {
    for (const std::string& text : schema.invalid) {
      for (const std::vector<int32_t>& ids : SplitsOf(text)) {
        const std::unique_ptr<Constraint> constraint = Make(schema);
        ASSERT_NE(constraint, nullptr);
        EXPECT_FALSE(Takes(*constraint, ids)) << schema.name << " accepts " << text;
      }
    }
  }
}

// The library lets a class with all control characters match an escaped `"` or `\\` that it leaves
// out (ecma_pattern.cc).
TEST_P(SchemaCorpusTest, ClassesMatchNoEscapedCharacterThatTheyLeaveOut) {
  const SchemaCase patterns[] = {
      {"quote", R"x({"type":"string","pattern":"^[^\"]+$"})x", {R"("a\\b")"}, {R"("a\"b")"}},
      {"backslash", R"x({"type":"string","pattern":"^[^\\\\]+$"})x", {R"("\"")"}, {R"("\\")"}},
      {"no_feed",
       R"x({"type":"string","pattern":"^[^\"\\n]+$"})x",
       {R"("\t")"},
       {R"("\"")", R"("\n")"}},
      {"range", R"x({"type":"string","pattern":"^[\\0-!]+$"})x", {R"("\n !")"}, {R"("\"")"}},
      {"property",
       R"x({"type":"string","pattern":"^\\P{P}+$"})x",
       {R"("\na")"},
       {R"("\"")", R"("\\")"}},
      {"in_class", R"x({"type":"string","pattern":"^[a\\P{P}]+$"})x", {R"("\na")"}, {R"("\"")"}},
      {"union", R"x({"type":"string","pattern":"^(\\0|[^\"])+$"})x", {R"("\na")"}, {R"("\"")"}},
      {"name",
       R"x({"type":"object","patternProperties":{"^[^\"]$":{"type":"integer"}}})x",
       {R"({"a":1})", R"({"\"":"b"})"},
       {R"({"a":"b"})"}},
  };
  for (const SchemaCase& schema : patterns) {
    for (const bool valid : {true, false}) {
      for (const std::string& text : valid ? schema.valid : schema.invalid) {
        for (const std::vector<int32_t>& ids : SplitsOf(text)) {
          const std::unique_ptr<Constraint> constraint = Make(schema);
          ASSERT_NE(constraint, nullptr);
          EXPECT_EQ(Takes(*constraint, ids), valid) << schema.name << ": " << text;
        }
      }
    }
  }
}

TEST_P(SchemaCorpusTest, AnUnfinishedDocumentMayNotEnd) {
  for (const SchemaCase& schema : cases_) {
    const std::string& text = schema.valid.back();
    // A prefix of a number is a number.
    if (!absl::StrContains("[{\"", text.substr(0, 1))) continue;
    const std::unique_ptr<Constraint> constraint = Make(schema);
    ASSERT_NE(constraint, nullptr);
    const std::vector<int32_t> ids = splits_->Canonical(text);
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      EXPECT_FALSE(MayEnd(*constraint)) << schema.name << " ends in " << text << " at token " << i;
      constraint->Accept(ids[i]);
    }
  }
}

}  // namespace
}  // namespace orcd
