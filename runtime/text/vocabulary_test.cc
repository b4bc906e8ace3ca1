#include "runtime/text/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/gguf_writer.h"
#include "runtime/text/small_vocabulary_for_test.h"
#include "runtime/text/tokenizer.h"
#include "testing/files.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kModelKey = "tokenizer.ggml.model";

// A file of the kind `llama` or `gemma4`.
class SpmFileTest : public ::testing::Test {
 protected:
  GgufWriter Writer(std::string_view kind, bool has_scores = true) {
    GgufWriter writer;
    writer.SetString(kModelKey, kind);
    writer.SetStrings(kTokensKey, vocabulary_.tokens());
    writer.SetI32s(kTokenTypesKey, vocabulary_.types());
    if (kind == "gemma4") writer.SetStrings(kMergesKey, vocabulary_.merges());
    if (kind == "llama" && has_scores) writer.SetF32s(kScoresKey, vocabulary_.scores());
    writer.SetU32(kBosKey, SmallSpmVocabulary::kBos);
    writer.SetU32(kEosKey, SmallSpmVocabulary::kEos);
    return writer;
  }
  // The mapping stays valid after the file is removed.
  absl::StatusOr<std::unique_ptr<GgufReader>> Open(const GgufWriter& writer) {
    const TempDir dir;
    const std::string path = dir.File("tokenizer.gguf");
    std::ofstream(path, std::ios::binary) << writer.Header();
    return GgufReader::Open(path);
  }
  absl::StatusOr<std::unique_ptr<const Tokenizer>> Load(const GgufWriter& writer) {
    const auto gguf = Open(writer);
    if (!gguf.ok()) return gguf.status();
    return Tokenizer::FromGguf(**gguf);
  }
  std::vector<int32_t> Encode(const GgufWriter& writer, std::string_view text,
                              bool parse_special = false) {
    const auto tokenizer = Load(writer);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->Encode(text, parse_special) : std::vector<int32_t>();
  }

  SmallSpmVocabulary vocabulary_;
  const int32_t space_ = vocabulary_.Add("▁");
  const int32_t a_ = vocabulary_.Add("a");
  static constexpr int32_t kBos = SmallSpmVocabulary::kBos;
  static constexpr int32_t kEos = SmallSpmVocabulary::kEos;
};

TEST_F(SpmFileTest, DefaultsOfSentencePiece) {
  EXPECT_THAT(Encode(Writer("llama"), "a"), ElementsAre(kBos, space_, a_));
  EXPECT_THAT(Encode(Writer("llama"), ""), ElementsAre(kBos));
}

TEST_F(SpmFileTest, TheFileOverridesThem) {
  GgufWriter writer = Writer("llama");
  writer.SetBool(kAddBosKey, false);
  EXPECT_THAT(Encode(writer, "a"), ElementsAre(space_, a_));
  writer.SetBool("tokenizer.ggml.add_space_prefix", false);
  EXPECT_THAT(Encode(writer, "a"), ElementsAre(a_));
  writer.SetBool(kAddEosKey, true);
  EXPECT_THAT(Encode(writer, "a"), ElementsAre(a_, kEos));
}

// As in llama.cpp: files of this kind say no by mistake.
TEST_F(SpmFileTest, TextsOfGemma4AlwaysBeginWithBos) {
  GgufWriter writer = Writer("gemma4");
  EXPECT_THAT(Encode(writer, "a"), ElementsAre(kBos, a_));
  writer.SetBool(kAddBosKey, false);
  writer.SetBool("tokenizer.ggml.add_space_prefix", true);
  EXPECT_THAT(Encode(writer, "a"), ElementsAre(kBos, a_));
}

TEST_F(SpmFileTest, NamesWhatIsMissing) {
  for (const std::string_view kind : {"llama", "gemma4"}) {
    GgufWriter writer;
    writer.SetString(kModelKey, kind);
    writer.SetStrings(kTokensKey, vocabulary_.tokens());
    writer.SetI32s(kTokenTypesKey, vocabulary_.types());
    EXPECT_THAT(std::string(Load(writer).status().message()),
                HasSubstr(std::string(kind == "llama" ? kScoresKey : kMergesKey) +
                          ": the file has no such key"));
    writer.SetF32s(kScoresKey, vocabulary_.scores());
    writer.SetStrings(kMergesKey, vocabulary_.merges());
    EXPECT_THAT(std::string(Load(writer).status().message()),
                HasSubstr("tokenizer.ggml.add_bos_token: is true, by the file or by default, and "
                          "the file has no tokenizer.ggml.bos_token_id"));
  }
}

TEST_F(SpmFileTest, NamesTheKeyOfAnotherType) {
  GgufWriter writer = Writer("llama", /*has_scores=*/false);
  writer.SetI32s(kScoresKey, vocabulary_.types());
  EXPECT_THAT(std::string(Load(writer).status().message()), HasSubstr("array of f32"));
  writer = Writer("llama");
  writer.SetU32("tokenizer.ggml.add_space_prefix", 1);
  EXPECT_THAT(std::string(Load(writer).status().message()), HasSubstr("add_space_prefix"));
  writer = Writer("llama");
  writer.SetString("tokenizer.ggml.eom_token_id", "x");
  EXPECT_THAT(std::string(Load(writer).status().message()), HasSubstr("eom_token_id"));
  writer = Writer("llama");
  writer.SetU32(kSuppressedKey, 1);
  EXPECT_THAT(std::string(Load(writer).status().message()), HasSubstr("suppress_tokens"));
}

TEST_F(SpmFileTest, KindsThatAreNotSupported) {
  for (const std::string_view kind : {"bert", "t5", "rwkv", "plamo2", "no_vocab", ""}) {
    const absl::Status status = Load(Writer(kind)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("tokenizer.ggml.model: the file has '" + std::string(kind) +
                          "'; only 'gpt2', 'llama', 'gemma4' can be used"));
  }
}

TEST_F(SpmFileTest, EveryNamedEndToken) {
  GgufWriter writer = Writer("llama");
  writer.SetU32("tokenizer.ggml.eot_token_id", 1);
  writer.SetU32("tokenizer.ggml.eom_token_id", 2);
  writer.SetU32("tokenizer.ggml.fim_pad_token_id", 3);
  writer.SetU32("tokenizer.ggml.fim_rep_token_id", 4);
  writer.SetU32("tokenizer.ggml.fim_sep_token_id", 5);
  const auto tokenizer = Load(writer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->eog_ids(), ElementsAre(1, 2, 3, 4, 5, kEos));
}

// Otherwise a client could write them.
TEST_F(SpmFileTest, EndTokensAreControlTokensWhateverTheFileSays) {
  const int32_t end = vocabulary_.Add("<|im_end|>", 0, TokenType::kUserDefined);
  const int32_t call = vocabulary_.Add("<tool_call>", 0, TokenType::kUserDefined);
  const auto tokenizer = Load(Writer("gemma4"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("<|im_end|>", false), Not(::testing::Contains(end)));
  EXPECT_THAT((*tokenizer)->Encode("<|im_end|>", true), ElementsAre(kBos, end));
  EXPECT_THAT((*tokenizer)->Encode("<tool_call>", false), ElementsAre(kBos, call));
}

// Phi-3's special tokens take the white space behind them.
TEST_F(SpmFileTest, Phi3) {
  const int32_t end_of_text = vocabulary_.Add("<|endoftext|>", 0, TokenType::kControl);
  const int32_t user = vocabulary_.Add("<|user|>", 0, TokenType::kControl);
  for (const std::string_view name : {"Phi3", "phi-3-mini", "Phi 3.5 Mini Instruct"}) {
    GgufWriter writer = Writer("llama");
    writer.SetString("general.name", name);
    EXPECT_THAT(Encode(writer, "<|user|>\n a", true), ElementsAre(kBos, user, space_, a_)) << name;
    EXPECT_THAT(Encode(writer, "<|user|> <s> a<|endoftext|> ", true),
                ElementsAre(kBos, user, kBos, space_, space_, a_, end_of_text, space_, space_));
    EXPECT_GT((*Load(writer))->longest_token_bytes(), 1'000'000) << "any number of spaces";
  }
  GgufWriter writer = Writer("llama");
  writer.SetString("general.name", "Phi 4");
  EXPECT_THAT(Encode(writer, "<|user|> a", true), ElementsAre(kBos, user, space_, space_, a_));
}

TEST_F(SpmFileTest, APhi3WithoutItsTokensIsAnotherModel) {
  const int32_t user = vocabulary_.Add("<|user|>", 0, TokenType::kControl);
  GgufWriter writer = Writer("llama");
  writer.SetString("general.name", "phi3");
  EXPECT_THAT(Encode(writer, "<|user|> a", true), ElementsAre(kBos, user, space_, space_, a_));
}

}  // namespace
}  // namespace orcd
