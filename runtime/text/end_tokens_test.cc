#include "runtime/text/end_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class EndTokensTest : public ::testing::Test {
 protected:
  int32_t Add(std::string_view text, TokenType type = TokenType::kControl) {
    vocabulary_.tokens.push_back(text);
    vocabulary_.types.push_back(static_cast<int32_t>(type));
    return static_cast<int32_t>(vocabulary_.tokens.size()) - 1;
  }
  absl::StatusOr<std::vector<int32_t>> Find() {
    RetypeTokens(vocabulary_);
    TokenIds ids;
    for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      ids.emplace(vocabulary_.tokens[id], static_cast<int32_t>(id));
    }
    return FindEndTokens(vocabulary_, ids);
  }
  // The texts of the ids that Find() gives.
  std::vector<std::string_view> Texts() {
    const std::vector<int32_t> ids = Find().value();
    std::vector<std::string_view> texts;
    for (const int32_t id : ids) texts.push_back(vocabulary_.tokens[id]);
    return texts;
  }
  TokenType TypeOf(int32_t id) const { return TokenType{vocabulary_.types[id]}; }

  Vocabulary vocabulary_;
};

TEST_F(EndTokensTest, TheFilesKeys) {
  for (const std::string_view text : {"a", "b", "c", "d", "e", "f", "g"}) Add(text);
  EXPECT_THAT(Texts(), IsEmpty());
  vocabulary_.eos_id = 6;
  vocabulary_.eot_id = 5;
  EXPECT_THAT(Texts(), ElementsAre("f", "g"));
  vocabulary_.eom_id = 4;
  vocabulary_.fim_pad_id = 3;
  vocabulary_.fim_rep_id = 2;
  vocabulary_.fim_sep_id = 1;
  EXPECT_THAT(Texts(), ElementsAre("b", "c", "d", "e", "f", "g"));
  vocabulary_.bos_id = 0;
  vocabulary_.eot_id = 6;
  EXPECT_THAT(*Find(), ElementsAre(1, 2, 3, 4, 6)) << "each once, BOS never";
}

TEST_F(EndTokensTest, AKeyOutsideTheVocabulary) {
  Add("a");
  for (const auto& [key, id] : kEndTokenKeys) {
    vocabulary_.*id = 1;
    const absl::Status status = Find().status();
    EXPECT_EQ(GetErrorDetails(status).reason, "TOKENIZER_INVALID");
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string(key) + ": id 1 is outside the vocabulary of 1"));
    vocabulary_.*id = std::nullopt;
  }
}

TEST_F(EndTokensTest, KnownTexts) {
  const std::vector<std::string_view> texts = {
      "<|eot_id|>",    "<|im_end|>",    "<|end|>", "<|return|>",           "<|flush|>",
      "<end_of_turn>", "<|endoftext|>", "</s>",    "<|eom_id|>",           "<EOT>",
      "_<EOT>",        "[EOT]",         "[EOS]",   "<|end_of_text|>",      "<end_of_utterance>",
      "<eos>",         "<turn|>",       "[e~[",    "<｜end▁of▁sentence｜>"};
  for (const std::string_view text : texts) {
    Add(text);
    Add(std::string_view(text).substr(1));
  }
  EXPECT_EQ(Texts(), texts);
}

TEST_F(EndTokensTest, ATextCountsWhateverItsType) {
  const int32_t normal = Add("<|im_end|>", TokenType::kNormal);
  const int32_t user_defined = Add("</s>", TokenType::kUserDefined);
  const int32_t control = Add("<eos>");
  EXPECT_THAT(*Find(), ElementsAre(normal, user_defined, control));
  for (const int32_t id : {normal, user_defined, control}) {
    EXPECT_EQ(TypeOf(id), TokenType::kControl) << "a client must not be able to write it";
  }
}

// Qwen2.5 has `</s>` as a word of code.
TEST_F(EndTokensTest, ExceptWhatMergesProduce) {
  const int32_t html = Add("</s>", TokenType::kNormal);
  const int32_t unreachable = Add("<EOT>", TokenType::kNormal);
  vocabulary_.merges = {"</ s>", "<E OTT>", "<EO T"};
  EXPECT_THAT(*Find(), ElementsAre(unreachable));
  EXPECT_EQ(TypeOf(html), TokenType::kNormal);
  vocabulary_.eos_id = html;
  EXPECT_THAT(*Find(), ElementsAre(html, unreachable)) << "the file says so";
}

TEST_F(EndTokensTest, FillInTheMiddle) {
  Add("<|fim_prefix|>");
  Add("[PAD]");
  const int32_t pad = Add("<|fim_pad|>", TokenType::kUserDefined);
  const int32_t repo = Add("<|repo_name|>");
  Add("<reponame>");
  const int32_t separator = Add("<|file_sep|>");
  EXPECT_THAT(*Find(), ElementsAre(pad, repo, separator)) << "the first text of each that is there";
  EXPECT_EQ(TypeOf(pad), TokenType::kUserDefined) << "users write it too";
  vocabulary_.fim_rep_id = 0;
  EXPECT_THAT(*Find(), ElementsAre(0, pad, separator)) << "a key takes the place of the texts";
}

TEST_F(EndTokensTest, EndOfAMessageOfGptOss) {
  Add("<|end|>");
  Add("<|return|>");
  EXPECT_THAT(Texts(), ElementsAre("<|end|>", "<|return|>"));
  const int32_t channel = Add("<|channel|>", TokenType::kUserDefined);
  const int32_t start = Add("<|start|>", TokenType::kNormal);
  const int32_t tool = Add("<tool>", TokenType::kUserDefined);
  Find().value();
  EXPECT_EQ(TypeOf(channel), TokenType::kUserDefined);
  Add("<|call|>");
  EXPECT_THAT(Texts(), ElementsAre("<|return|>", "<|call|>"));
  vocabulary_.eos_id = 0;
  EXPECT_THAT(Texts(), ElementsAre("<|return|>", "<|call|>")) << "even if the file names it";
  EXPECT_EQ(TypeOf(0), TokenType::kControl);
  EXPECT_EQ(TypeOf(channel), TokenType::kControl);
  EXPECT_EQ(TypeOf(start), TokenType::kControl);
  EXPECT_EQ(TypeOf(tool), TokenType::kUserDefined);
}

TEST_F(EndTokensTest, EndOfAMessageOfSolarOpen) {
  Add("<|end|>");
  Add("<|calls|>");
  EXPECT_THAT(Texts(), ElementsAre("<|end|>", "<|calls|>"));
  Add("<|flush|>");
  EXPECT_THAT(Texts(), ElementsAre("<|calls|>", "<|flush|>"));
}

TEST_F(EndTokensTest, HtmlOfGemma4) {
  const int32_t html = Add("</s>", TokenType::kUserDefined);
  Add("<|tool_response>");
  EXPECT_THAT(Texts(), ElementsAre("<|tool_response>"));
  EXPECT_EQ(TypeOf(html), TokenType::kUserDefined);
}

TEST_F(EndTokensTest, EmptyTokensAreUnused) {
  const int32_t empty = Add("", TokenType::kNormal);
  EXPECT_THAT(*Find(), IsEmpty());
  EXPECT_EQ(TypeOf(empty), TokenType::kUnused);
}

}  // namespace
}  // namespace orcd
