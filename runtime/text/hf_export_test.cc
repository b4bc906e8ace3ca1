#include "runtime/text/hf_export.h"

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/gguf/gguf_writer.h"
#include "runtime/text/byte_map.h"
#include "runtime/text/pre_tokenizer.h"
#include "testing/files.h"

namespace orcd {
namespace {

using Json = nlohmann::json;

// A model file with a vocabulary and nothing else.
class TokenizerFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int byte = 0; byte < 256; ++byte) Add(SpellByte(static_cast<uint8_t>(byte)), 1);
    merges_ = {"a b", "ab \""};
    Add("ab", 1);
    Add("ab\"", 1);
    Add("[PAD0]", 5);
    Add("<|endoftext|>", 3);
    Add("<tool_call>", 4);
    Add("<|im_end|>", 3);
  }

  void Add(const std::string& token, int32_t type) {
    tokens_.push_back(token);
    types_.push_back(type);
  }
  absl::StatusOr<TokenizerFiles> Export() {
    GgufWriter writer;
    writer.SetString("general.architecture", "qwen2");
    writer.SetString("tokenizer.ggml.model", "gpt2");
    writer.SetString("tokenizer.ggml.pre", pre_tokenizer_);
    writer.SetStrings("tokenizer.ggml.tokens", tokens_);
    writer.SetI32s("tokenizer.ggml.token_type", types_);
    writer.SetStrings("tokenizer.ggml.merges", merges_);
    writer.SetU32("tokenizer.ggml.eos_token_id", 261);
    if (bos_) {
      writer.SetU32("tokenizer.ggml.bos_token_id", *bos_);
      writer.SetBool("tokenizer.ggml.add_bos_token", true);
    }
    if (padding_ > 0) writer.SetU32("tokenizer.ggml.padding_token_id", padding_);
    if (!template_.empty()) writer.SetString("tokenizer.chat_template", template_);
    auto file = writer.CreateFile(path_);
    EXPECT_TRUE(file.ok() && file->Finish().ok());
    const auto gguf = GgufReader::Open(path_);
    if (!gguf.ok()) return gguf.status();
    return ExportTokenizer(**gguf, 4096);
  }

  const TempDir dir_;
  const std::string path_ = dir_.File("tokenizer.gguf");
  std::optional<uint32_t> bos_;
  std::vector<std::string> tokens_;
  std::vector<int32_t> types_;
  std::vector<std::string> merges_;
  std::string pre_tokenizer_ = "qwen2";
  uint32_t padding_ = 0;
  std::string template_ = "{{ 'template \"é\"' }}\n";
};

TEST_F(TokenizerFilesTest, HasWhatTextCanGive) {
  const auto files = Export();
  ASSERT_TRUE(files.ok()) << files.status();
  const Json tokenizer = Json::parse(files->tokenizer);
  const Json& vocab = tokenizer["model"]["vocab"];
  EXPECT_EQ(vocab["ab"], 256);
  EXPECT_EQ(vocab["ab\""], 257);
  EXPECT_EQ(vocab["<|im_end|>"], 261) << "a gap in the ids moves no special token";
  EXPECT_FALSE(vocab.contains("[PAD0]"));
  EXPECT_EQ(vocab.size(), 261u);
  EXPECT_EQ(tokenizer["model"]["merges"], Json({"a b", "ab \""}));
  EXPECT_TRUE(tokenizer["normalizer"].is_null());
  const Json& added = tokenizer["added_tokens"];
  ASSERT_EQ(added.size(), 3u);
  EXPECT_EQ(added[0]["content"], "<|endoftext|>");
  EXPECT_EQ(added[0]["id"], 259);
  EXPECT_EQ(added[0]["special"], true);
  EXPECT_EQ(added[1]["content"], "<tool_call>");
  EXPECT_EQ(added[1]["special"], false) << "a user's token is text as well";
}

TEST_F(TokenizerFilesTest, TheConfigNamesEndsPaddingAndTemplate) {
  const auto files = Export();
  ASSERT_TRUE(files.ok()) << files.status();
  const Json config = Json::parse(files->tokenizer_config);
  EXPECT_EQ(config["eos_token"], "<|im_end|>");
  EXPECT_EQ(config["pad_token"], "<|endoftext|>") << "where the file names none";
  EXPECT_TRUE(config["bos_token"].is_null());
  EXPECT_EQ(config["chat_template"], template_);
  EXPECT_EQ(config["model_max_length"], 4096);
  EXPECT_EQ(config["tokenizer_class"], "Qwen2Tokenizer");
  EXPECT_EQ(config["added_tokens_decoder"]["260"]["content"], "<tool_call>");
  EXPECT_EQ(config["additional_special_tokens"], Json({"<|endoftext|>", "<|im_end|>"}));
}

TEST_F(TokenizerFilesTest, KeysThatTheFileLacksAreLeftOut) {
  template_.clear();
  padding_ = 1'000'000;
  const auto files = Export();
  ASSERT_TRUE(files.ok()) << files.status();
  const Json config = Json::parse(files->tokenizer_config);
  EXPECT_FALSE(config.contains("chat_template"));
  EXPECT_TRUE(config["pad_token"].is_null()) << "an id outside the vocabulary";
}

TEST_F(TokenizerFilesTest, SequencesBeginAsTheFileSays) {
  auto files = Export();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(Json::parse(files->tokenizer)["post_processor"]["type"], "ByteLevel");
  EXPECT_EQ(Json::parse(files->tokenizer_config)["add_bos_token"], false);
  EXPECT_TRUE(Json::parse(files->tokenizer_config)["bos_token"].is_null());

  bos_ = 259;
  files = Export();
  ASSERT_TRUE(files.ok()) << files.status();
  const Json config = Json::parse(files->tokenizer_config);
  EXPECT_EQ(config["add_bos_token"], true);
  EXPECT_EQ(config["bos_token"], "<|endoftext|>");
  const Json processor = Json::parse(files->tokenizer)["post_processor"];
  EXPECT_EQ(processor["type"], "Sequence");
  const Json first = processor["processors"][1];
  EXPECT_EQ(first["type"], "TemplateProcessing");
  EXPECT_EQ(first["single"][0]["SpecialToken"]["id"], "<|endoftext|>");
  EXPECT_EQ(first["single"][1]["Sequence"]["id"], "A");
  EXPECT_EQ(first["special_tokens"]["<|endoftext|>"]["ids"], Json::array({259}));
}

TEST_F(TokenizerFilesTest, TheRowOfThePreTokenizerIsHandedOut) {
  pre_tokenizer_ = "minicpm5";
  const auto files = Export();
  ASSERT_TRUE(files.ok()) << files.status();
  const Json tokenizer = Json::parse(files->tokenizer);
  EXPECT_EQ(tokenizer["model"]["ignore_merges"], true);
  const Json& splits = tokenizer["pre_tokenizer"]["pretokenizers"];
  ASSERT_EQ(splits.size(), 3u) << "two expressions and the spelling of bytes";
  const std::span<const std::string_view> patterns = (*FindPreTokenizer("minicpm5"))->patterns;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(splits[i]["type"], "Split");
    EXPECT_EQ(splits[i]["pattern"]["Regex"], WriteOutClasses(patterns[i]));
    EXPECT_EQ(splits[i]["behavior"], "Isolated");
  }
  EXPECT_EQ(Json::parse(files->tokenizer_config)["tokenizer_class"], "PreTrainedTokenizerFast");

  pre_tokenizer_ = "qwen2";
  EXPECT_EQ(Json::parse(Export()->tokenizer)["model"]["ignore_merges"], false);
}

TEST_F(TokenizerFilesTest, TheSameModelGivesTheSameBytes) {
  const auto files = Export();
  const auto again = Export();
  ASSERT_TRUE(files.ok() && again.ok());
  EXPECT_EQ(files->tokenizer, again->tokenizer);
  EXPECT_EQ(files->tokenizer_config, again->tokenizer_config);
}

TEST_F(TokenizerFilesTest, ControlCharactersAreEscaped) {
  Add(std::string("<\x01\n\\\">"), 4);
  const auto files = Export();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(Json::parse(files->tokenizer)["model"]["vocab"]["<\x01\n\\\">"], 262);
}

TEST_F(TokenizerFilesTest, RefusesWhatJsonCannotCarry) {
  Add("\xff", 4);
  const auto files = Export();
  EXPECT_EQ(files.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(GetErrorDetails(files.status()).reason, "TOKENIZER_UNSUPPORTED");
  tokens_.back() = "fine";
  template_ = "\xc3";
  EXPECT_EQ(GetErrorDetails(Export().status()).reason, "TOKENIZER_UNSUPPORTED");
  template_.clear();
  types_.back() = 5;
  tokens_.back() = "\xff";
  EXPECT_TRUE(Export().ok()) << "what is left out may be spelled as it likes";
}

}  // namespace
}  // namespace orcd
