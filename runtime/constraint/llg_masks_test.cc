// Masks are those of the library, which tries every token, along the documents of the corpus.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/constraint/llg_library.h"
#include "runtime/constraint/llg_rules_for_test.h"
#include "runtime/constraint/llg_state.h"
#include "runtime/constraint/llg_vocabulary.h"
#include "runtime/constraint/rule_text.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/text/tokenizer.h"
#include "testing/schemas/schema_corpus.h"

namespace orcd {
namespace {

struct FreeLibraryMatcher {
  void operator()(LlgMatcher* matcher) const { llg_free_matcher(matcher); }
};

// The library's own matcher; of a vocabulary without slices, it tries every token for a mask.
class LibraryMatcher {
 public:
  LibraryMatcher(const LlgVocabulary& vocabulary, const RuleText& text) {
    LlgConstraintInit init = {};
    llg_constraint_init_set_defaults(&init, vocabulary.get());
    init.log_stderr_level = 0;
    init.ff_tokens_ok = true;
    matcher_.reset(llg_new_matcher(&init, text.type.c_str(), text.text.c_str()));
  }

  std::vector<uint32_t> Mask(int vocab) {
    std::vector<uint32_t> words(TokenMask::WordsFor(vocab));
    EXPECT_EQ(llg_matcher_compute_mask_into(matcher_.get(), words.data(),
                                            words.size() * sizeof(uint32_t)),
              0);
    return words;
  }
  void Accept(int32_t token) {
    EXPECT_EQ(llg_matcher_consume_token(matcher_.get(), static_cast<uint32_t>(token)), 0);
  }

 private:
  std::unique_ptr<LlgMatcher, FreeLibraryMatcher> matcher_;
};

// Compares the masks before each of `tokens`, except where the end may come: which tokens end a
// generation is our matter.
void ExpectTheLibrarysMasks(const LlgVocabulary& vocabulary, const LlgVocabulary& without_slices,
                            const RuleText& text, const std::vector<int32_t>& tokens,
                            const std::string& name) {
  const Tokenizer& tokenizer = vocabulary.tokenizer();
  const auto state = LlgState::Compile(vocabulary, text, {});
  ASSERT_FALSE(state->HasFailed()) << name << ": " << state->error().text;
  LibraryMatcher library(without_slices, text);
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<uint32_t> words;
    ASSERT_TRUE(state->ComputeMask(words)) << name;
    std::vector<uint32_t> expected = library.Mask(tokenizer.vocab_size());
    for (const int32_t end : tokenizer.eog_ids()) {
      words[end / 32] &= ~(1u << end % 32);
      expected[end / 32] &= ~(1u << end % 32);
    }
    words.back() &= TokensOfLastWord(tokenizer.vocab_size());
    ASSERT_EQ(words, expected) << name << ", before token " << i;
    ASSERT_TRUE(state->Accept(tokens[i])) << name << ", token " << i;
    library.Accept(tokens[i]);
  }
}

TEST(LlgMasksTest, AlongVariedRulesByBytes) {
  const JsonVocabulary& vocabulary = JsonVocabulary::Get();
  const auto without_slices = LlgVocabulary::Create(*vocabulary.tokenizer, /*with_slices=*/false);
  ASSERT_TRUE(without_slices.ok()) << without_slices.status();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"type":"string","maxLength":6})", "\"abc \xe6\x97\xa5x\""},
      {R"({"type":"string","minLength":2,"maxLength":40})", "\"the name of the value\""},
      {R"({"type":"string","pattern":"[0-9]{3}"})", "\"a12 345 b\""},
      {R"x({"type":"string","pattern":"^\\S+( \\S+){0,3}$"})x", "\"the red name\""},
      {R"({"type":"string","pattern":"^[a-z]{2,12} [A-Z]+$"})", "\"the RED\""},
      // A pattern's `.` matches no U+2028. The library writes U+007F as an escape alone.
      {R"({"type":"string","pattern":"^.{0,40}$"})", "\"the a b\""},
      {R"({"type":"string","maxLength":40})", "\"the a\u2028\u2029 b\""},
      {R"({"type":"string","format":"uri"})", "\"http://a.b/the?c=d\""},
      {R"({"type":"object","additionalProperties":{"type":["integer","string"],"maxLength":3}})",
       "{\"the\" : 12, \"a b\":\"c\"}"},
  };
  for (const auto& [schema, document] : cases) {
    const ConstraintSpec spec = {.rule = JsonSchemaRule{schema}, .start = {}, .field = "f"};
    ASSERT_TRUE(CheckRule(spec, {}).ok()) << CheckRule(spec, {});
    const auto text = ToRuleText(spec, *vocabulary.tokenizer);
    ASSERT_TRUE(text.ok()) << text.status();
    std::vector<int32_t> bytes;
    for (const char byte : document) bytes.push_back(static_cast<uint8_t>(byte));
    ExpectTheLibrarysMasks(*vocabulary.llg, **without_slices, *text, bytes, schema);
  }
}

TEST(LlgMasksTest, AlongTheCorpus) {
  const char* const oracle = std::getenv("ORCD_ORACLE_DIR");
  if (oracle == nullptr) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  const auto gguf = GgufReader::Open(std::string(oracle) + "/tokenizer/qwen2.5-vocab.gguf");
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const auto tokenizer = Tokenizer::FromGguf(**gguf);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto vocabulary = LlgVocabulary::Create(**tokenizer);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  const auto without_slices = LlgVocabulary::Create(**tokenizer, /*with_slices=*/false);
  ASSERT_TRUE(without_slices.ok()) << without_slices.status();
  const auto cases = ReadSchemaCorpus(kSchemaCorpus);
  ASSERT_TRUE(cases.ok()) << cases.status();
  for (const SchemaCase& schema : *cases) {
    const ConstraintSpec spec = {.rule = JsonSchemaRule{schema.schema}, .start = {}, .field = "f"};
    const auto text = ToRuleText(spec, **tokenizer);
    ASSERT_TRUE(text.ok()) << schema.name << ": " << text.status();
    for (const std::string& document : schema.valid) {
      ExpectTheLibrarysMasks(**vocabulary, **without_slices, *text,
                             (*tokenizer)->Encode(document, std::span<const TextSpan>()),
                             schema.name);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace orcd
