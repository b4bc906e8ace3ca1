#include "runtime/constraint/canonical_tokens.h"

#include <memory>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/utf8.h"
#include "runtime/text/random_text_for_test.h"
#include "runtime/text/small_vocabulary_for_test.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<const Tokenizer> Make(const Vocabulary& vocabulary) {
  auto tokenizer = Tokenizer::Create(vocabulary);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::string BytesOf(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string bytes;
  for (const int32_t id : ids) bytes += tokenizer.TokenBytes(id);
  return bytes;
}

TEST(CanonicalTokensTest, AreThoseOfTheTokenizer) {
  SmallVocabulary vocabulary;
  const int32_t ab = vocabulary.AddMerge("a", "b");
  const int32_t end = vocabulary.Add("<|im_end|>", TokenType::kControl);
  const int32_t call = vocabulary.Add("<call>", TokenType::kUserDefined);
  Vocabulary view = vocabulary.View();
  view.eos_id = end;
  const auto tokenizer = Make(view);
  const CanonicalTokens tokens(*tokenizer);
  EXPECT_THAT(tokens.Encode("abc"), ElementsAre(ab, 'c'));
  EXPECT_THAT(tokens.Encode("a<call>b"), ElementsAre('a', call, 'b'));
  const std::vector<int32_t> spelled = tokens.Encode("<|im_end|>");
  EXPECT_EQ(spelled.size(), 10u) << "a control token is text";
  EXPECT_EQ(BytesOf(*tokenizer, spelled), "<|im_end|>");
  EXPECT_THAT(tokens.Encode(""), ElementsAre());
}

TEST(CanonicalTokensTest, PutNoSpaceBeforeAText) {
  SmallSpmVocabulary vocabulary;
  const int32_t space_hi = vocabulary.Add("▁hi", -1);
  const int32_t hi = vocabulary.Add("hi", -2);
  vocabulary.Add("h", -3);
  vocabulary.Add("i", -4);
  vocabulary.Add("▁", -5);
  const auto tokenizer = Make(vocabulary.View("llama", /*adds_space_prefix=*/true));
  ASSERT_THAT(tokenizer->Encode("hi", {}), ElementsAre(space_hi));
  const CanonicalTokens tokens(*tokenizer);
  EXPECT_THAT(tokens.Encode("hi"), ElementsAre(hi));
  EXPECT_THAT(tokens.Encode(" hi"), ElementsAre(space_hi));
  EXPECT_EQ(BytesOf(*tokenizer, tokens.Encode("\nhi ")), "\nhi ");
}

TEST(CanonicalTokensTest, SpellEveryText) {
  SmallVocabulary byte_level;
  byte_level.AddMerge("a", "b");
  byte_level.Add("<|im_start|>", TokenType::kUserDefined);
  SmallSpmVocabulary spm;
  for (const char* spelling : {"▁", "a", "t", "▁a", "▁t", "at"}) spm.Add(spelling, -1);
  spm.Add("<tool_call>", 0, TokenType::kUserDefined);
  const std::unique_ptr<const Tokenizer> tokenizers[] = {
      Make(byte_level.View()), Make(spm.View("llama", true)), Make(spm.View("llama", false)),
      Make(spm.View("gemma4"))};
  std::mt19937_64 random(1);
  for (const auto& tokenizer : tokenizers) {
    ASSERT_NE(tokenizer, nullptr);
    const CanonicalTokens tokens(*tokenizer);
    for (int i = 0; i < 500; ++i) {
      std::string text = RandomText(random, 30);
      if (i % 3 == 0) text += "a▁t<tool_call> a";
      EXPECT_EQ(BytesOf(*tokenizer, tokens.Encode(text)), text);
    }
  }
}

TEST(CanonicalTokensTest, TakeLittleTimeForHostileTexts) {
  SmallSpmVocabulary vocabulary;
  vocabulary.Add("▁", -1);
  const auto tokenizer = Make(vocabulary.View("llama", true));
  const CanonicalTokens tokens(*tokenizer);
  // Each character is one that Encode spells as a space.
  const std::string text = RepeatedTo(kLong, "▁");
  EXPECT_EQ(BytesOf(*tokenizer, tokens.Encode(text)), text);
}

}  // namespace
}  // namespace orcd
