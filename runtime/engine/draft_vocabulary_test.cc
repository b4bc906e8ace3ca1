#include "runtime/engine/draft_vocabulary.h"

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/text/small_vocabulary_for_test.h"
#include "runtime/text/tokenizer.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<const Tokenizer> Make(const SmallVocabulary& vocabulary) {
  auto tokenizer = Tokenizer::Create(vocabulary.View());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// The bytes, two words and a control token: ids 256 to 258.
SmallVocabulary Words() {
  SmallVocabulary vocabulary;
  vocabulary.AddMerge("t", "h");
  vocabulary.AddMerge("th", "e");
  vocabulary.Add("<|im_end|>", TokenType::kControl);
  return vocabulary;
}

absl::Status Check(const SmallVocabulary& model, const SmallVocabulary& draft) {
  return CheckDraftVocabulary(*Make(model), *Make(draft));
}

void ExpectMismatch(const absl::Status& status, const std::string& message) {
  const std::pair<absl::StatusCode, std::string> mismatch = {absl::StatusCode::kFailedPrecondition,
                                                             "DRAFT_VOCABULARY_MISMATCH"};
  EXPECT_EQ(std::pair(status.code(), GetErrorDetails(status).reason), mismatch) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(DraftVocabularyTest, TheSameVocabularyIsAccepted) {
  EXPECT_TRUE(Check(Words(), Words()).ok()) << Check(Words(), Words());
}

TEST(DraftVocabularyTest, PaddingMayDiffer) {
  SmallVocabulary padded = Words();
  padded.Add("[PAD259]", TokenType::kUnused);
  padded.Add("", TokenType::kUnused);
  EXPECT_TRUE(Check(Words(), padded).ok()) << Check(Words(), padded);
  EXPECT_TRUE(Check(padded, Words()).ok()) << Check(padded, Words());
  SmallVocabulary other = Words();
  other.Add("[PAD0]", TokenType::kUnused);
  EXPECT_TRUE(Check(padded, other).ok()) << Check(padded, other);
  // A token that only one model of the family has, where the other has padding.
  SmallVocabulary newer = Words();
  newer.Add("<think>", TokenType::kUserDefined);
  EXPECT_TRUE(Check(newer, padded).ok()) << Check(newer, padded);
  EXPECT_TRUE(Check(padded, newer).ok()) << Check(padded, newer);
}

TEST(DraftVocabularyTest, AnotherTokenIsNamed) {
  SmallVocabulary other;
  other.AddMerge("t", "h");
  other.AddMerge("th", "a");
  other.Add("<|im_end|>", TokenType::kControl);
  ExpectMismatch(Check(Words(), other),
                 "token 257 of the draft model's vocabulary (259 tokens) is 'tha', and of the "
                 "model's (259 tokens) 'the'");
}

TEST(DraftVocabularyTest, AnotherOrderIsNamed) {
  SmallVocabulary other;
  other.Add("<|im_end|>", TokenType::kControl);
  other.AddMerge("t", "h");
  other.AddMerge("th", "e");
  ExpectMismatch(Check(Words(), other), "token 256");
}

TEST(DraftVocabularyTest, ATokenThatIsNoPaddingMustBeInBoth) {
  SmallVocabulary longer = Words();
  longer.AddMerge("a", "n");
  ExpectMismatch(Check(longer, Words()), "is missing, and of the model's (260 tokens) 'an'");
  ExpectMismatch(Check(Words(), longer), "is 'an', and of the model's (259 tokens) missing");
  SmallVocabulary control = Words();
  control.Add("<|sep|>", TokenType::kControl);
  ExpectMismatch(Check(Words(), control), "token 259");
}

TEST(DraftVocabularyTest, OtherKindsOfTokenizersDiffer) {
  const auto spm = Tokenizer::Create(SmallSpmVocabulary().View());
  ASSERT_TRUE(spm.ok()) << spm.status();
  ExpectMismatch(CheckDraftVocabulary(*Make(Words()), **spm), "token 0");
}

}  // namespace
}  // namespace orcd
