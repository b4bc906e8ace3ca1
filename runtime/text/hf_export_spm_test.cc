#include "runtime/text/hf_export_spm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/gguf/gguf_writer.h"
#include "runtime/text/hf_export.h"
#include "runtime/text/small_vocabulary_for_test.h"
#include "testing/files.h"

namespace orcd {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SpmExportTest, MergesByDescendingScore) {
  SmallSpmVocabulary vocabulary;
  for (const char* character : {"▁", "a", "b", "c"}) vocabulary.Add(character, -9);
  vocabulary.Add("ab", -3);
  vocabulary.Add("bc", -2);
  vocabulary.Add("abc", -1);
  vocabulary.Add("▁a", -2);
  vocabulary.Add("xy", -1);
  vocabulary.Add("ca", 0, TokenType::kControl);
  vocabulary.Add("  ", 0, TokenType::kUserDefined);
  EXPECT_THAT(ExportSpm(vocabulary.View()).merges,
              ElementsAre("a bc", "ab c", "b c", "▁ a", "a b"));
}

TEST(SpmExportTest, ASpaceIsPutBeforeTextAndTakenAwayAgain) {
  const SmallSpmVocabulary vocabulary;
  const SpmExport without = ExportSpm(vocabulary.View("llama", /*adds_space_prefix=*/false));
  EXPECT_EQ(without.normalizer["type"], "Replace");
  EXPECT_EQ(without.normalizer["content"], "▁");
  EXPECT_EQ(without.decoder["decoders"].size(), 3u);
  const SpmExport with = ExportSpm(vocabulary.View("llama", /*adds_space_prefix=*/true));
  EXPECT_EQ(with.normalizer["normalizers"][0], Json({{"type", "Prepend"}, {"prepend", "▁"}}));
  EXPECT_EQ(with.normalizer["normalizers"][1], without.normalizer);
  EXPECT_EQ(with.decoder["decoders"][3]["type"], "Strip");
  EXPECT_TRUE(with.pre_tokenizer.is_null());
  EXPECT_THAT(with.merges, IsEmpty());
}

TEST(SpmExportTest, Gemma4HasItsOwnMerges) {
  SmallSpmVocabulary vocabulary;
  vocabulary.Add("a");
  vocabulary.Add("b");
  vocabulary.AddMerge("b", "a");
  const SpmExport parts = ExportSpm(vocabulary.View("gemma4"));
  EXPECT_THAT(parts.merges, ElementsAre("b a"));
  EXPECT_EQ(parts.pre_tokenizer["behavior"], "Isolated");
}

TEST(SpmExportTest, AFile) {
  SmallSpmVocabulary vocabulary;
  vocabulary.Add("▁", -2);
  vocabulary.Add("a", -2);
  const int32_t space_a = vocabulary.Add("▁a", -1);
  const int32_t user = vocabulary.Add("<|user|>", 0, TokenType::kControl);
  vocabulary.Add("<|endoftext|>", 0, TokenType::kControl);
  GgufWriter writer;
  writer.SetString("general.name", "phi3");
  writer.SetString("tokenizer.ggml.model", "llama");
  writer.SetStrings(kTokensKey, vocabulary.tokens());
  writer.SetI32s(kTokenTypesKey, vocabulary.types());
  writer.SetF32s(kScoresKey, vocabulary.scores());
  writer.SetU32(kBosKey, SmallSpmVocabulary::kBos);
  writer.SetU32(kEosKey, SmallSpmVocabulary::kEos);
  writer.SetU32("tokenizer.ggml.unknown_token_id", SmallSpmVocabulary::kUnk);
  writer.SetBool(kAddEosKey, true);
  const TempDir dir;
  const std::string path = dir.File("tokenizer.gguf");
  auto file = writer.CreateFile(path);
  ASSERT_TRUE(file.ok() && file->Finish().ok());
  const auto gguf = GgufReader::Open(path);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const auto files = ExportTokenizer(**gguf, 4096);
  ASSERT_TRUE(files.ok()) << files.status();

  const Json tokenizer = Json::parse(files->tokenizer);
  const Json& model = tokenizer["model"];
  EXPECT_EQ(model["byte_fallback"], true);
  EXPECT_EQ(model["vocab"]["▁a"], space_a);
  EXPECT_EQ(model["vocab"]["<0x0A>"], '\n');
  EXPECT_EQ(model["vocab"]["<unk>"], SmallSpmVocabulary::kUnk);
  EXPECT_EQ(model["merges"], Json({"▁ a"}));
  const Json& added = tokenizer["added_tokens"];
  ASSERT_EQ(added.size(), 5u);
  EXPECT_EQ(added[0]["content"], "<unk>");
  EXPECT_EQ(added[0]["special"], true);
  EXPECT_EQ(added[0]["rstrip"], false);
  EXPECT_EQ(added[3]["id"], user);
  EXPECT_EQ(added[3]["rstrip"], true) << "Phi-3's rule";
  const Json& single = tokenizer["post_processor"]["single"];
  ASSERT_EQ(single.size(), 3u);
  EXPECT_EQ(single[0]["SpecialToken"]["id"], "<s>");
  EXPECT_EQ(single[2]["SpecialToken"]["id"], "</s>");

  const Json config = Json::parse(files->tokenizer_config);
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(config["unk_token"], "<unk>");
  EXPECT_EQ(config["add_bos_token"], true);
  EXPECT_EQ(config["add_eos_token"], true);
}

}  // namespace
}  // namespace orcd
