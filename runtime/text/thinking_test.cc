#include "runtime/text/thinking.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/text/small_vocabulary_for_test.h"

namespace orcd {
namespace {

class ThinkingTest : public ::testing::Test {
 protected:
  void Create(bool thinks) {
    SmallVocabulary words;
    end_of_turn_ = words.Add("<|im_end|>", TokenType::kControl);
    if (thinks) {
      begin_ = words.Add("<think>", TokenType::kUserDefined);
      end_ = words.Add("</think>", TokenType::kUserDefined);
    }
    Vocabulary vocabulary = words.View();
    vocabulary.eos_id = static_cast<uint32_t>(end_of_turn_);
    auto created = Tokenizer::Create(vocabulary);
    ASSERT_TRUE(created.ok()) << created.status();
    tokenizer_ = *std::move(created);
  }

  // Both forms of a prompt must give the same answer.
  bool EndsIn(const std::string& prompt) const {
    const bool of_text = EndsInThinking(*tokenizer_, prompt);
    const std::vector<int32_t> ids = tokenizer_->Encode(prompt, /*parse_special=*/true);
    EXPECT_EQ(EndsInThinking(*tokenizer_, ids), of_text) << prompt;
    return of_text;
  }

  int32_t end_of_turn_ = -1;
  int32_t begin_ = -1;
  int32_t end_ = -1;
  std::unique_ptr<const Tokenizer> tokenizer_;
};

TEST_F(ThinkingTest, APromptEndsInThinkingFromItsBeginToItsEnd) {
  ASSERT_NO_FATAL_FAILURE(Create(/*thinks=*/true));
  EXPECT_EQ(ThinkingEndId(*tokenizer_), end_);
  EXPECT_TRUE(EndsIn("hi<|im_end|>\n<think>"));
  EXPECT_TRUE(EndsIn("hi<|im_end|>\n<think>\nwell"));
  EXPECT_TRUE(EndsIn("<think></think><think>"));
  EXPECT_FALSE(EndsIn("<think>\n\n</think>\n\n"));
  EXPECT_FALSE(EndsIn("</think>"));
  EXPECT_FALSE(EndsIn("hi"));
  EXPECT_FALSE(EndsIn(""));
}

// A user may write the token.
TEST_F(ThinkingTest, AnEarlierTurnDoesNotCount) {
  ASSERT_NO_FATAL_FAILURE(Create(/*thinks=*/true));
  EXPECT_FALSE(EndsIn("what is <think>?<|im_end|>\nassistant"));
}

TEST_F(ThinkingTest, AVocabularyWithoutTheTokensHasNoThinking) {
  ASSERT_NO_FATAL_FAILURE(Create(/*thinks=*/false));
  EXPECT_EQ(ThinkingEndId(*tokenizer_), -1);
  EXPECT_FALSE(EndsIn("<think>"));
}

}  // namespace
}  // namespace orcd
