// Ids that other programs gave for the same texts.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_replace.h"
#include "runtime/text/random_text_for_test.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8_stream.h"
#include "testing/files.h"

namespace orcd {
namespace {

struct Oracle {
  std::string name;
  // Path of the cases in ORCD_ORACLE_DIR, without `-cases.bin`.
  std::string cases;
  // The vocabulary in ORCD_ORACLE_DIR, or in the model cache.
  std::string file;
  bool is_in_cache = false;
  bool has_published_cases = false;
  bool adds_space_prefix = false;
  bool adds_bos = true;
  // False if the vocabulary lacks bytes that random texts have (see bpe.h).
  bool keeps_texts = true;
};

const std::vector<Oracle>& Oracles() {
  static const std::vector<Oracle> oracles = {
      {.name = "Llama2",
       .cases = "tokenizer2/llama-spm",
       .file = "tokenizer2/llama-spm-vocab.gguf",
       .has_published_cases = true,
       .adds_space_prefix = true},
      {.name = "Phi3",
       .cases = "tokenizer2/phi-3",
       .file = "tokenizer2/phi-3-vocab.gguf",
       .has_published_cases = true,
       .adds_space_prefix = true},
      {.name = "Gemma3",
       .cases = "real2/gemma3",
       .file = "gemma-3-270m-q4_k_m.gguf",
       .is_in_cache = true},
      {.name = "Llama3",
       .cases = "tokenizer2/llama-bpe",
       .file = "tokenizer2/llama-bpe-vocab.gguf",
       .has_published_cases = true},
      {.name = "SmolLM2",
       .cases = "real2/smollm2",
       .file = "tokenizer2/smollm2-vocab.gguf",
       .adds_bos = false,
       .keeps_texts = false},
  };
  return oracles;
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> Split(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  size_t end;
  while ((end = text.find(separator)) != std::string_view::npos) {
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end + separator.size());
  }
  parts.emplace_back(text);
  return parts;
}

std::vector<int32_t> Ids(const std::string& line) {
  std::istringstream numbers(line);
  return std::vector<int32_t>(std::istream_iterator<int32_t>(numbers), {});
}

class TokenizerOracleTest : public ::testing::TestWithParam<Oracle> {
 protected:
  void SetUp() override {
    folder_ = Variable("ORCD_ORACLE_DIR");
    if (folder_.empty()) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
    std::string path = folder_ + "/" + GetParam().file;
    if (GetParam().is_in_cache) {
      const std::string cache = Variable("ORCD_MODEL_CACHE");
      path = (cache.empty() ? Variable("HOME") + "/.cache/orcd/models" : cache) + "/" +
             GetParam().file;
      if (!std::filesystem::exists(path)) {
        GTEST_SKIP() << path << " is not there; fetch it with tools/fetch-model "
                     << GetParam().file;
      }
    }
    const auto gguf = GgufReader::Open(path);
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    auto tokenizer = Tokenizer::FromGguf(**gguf);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  // The ids without BOS and EOS.
  std::vector<int32_t> Encode(const std::string& text, bool parse_special) const {
    const TextSpan whole = {0, text.size(), parse_special};
    return tokenizer_->Encode(text, std::span(&whole, 1));
  }
  // The text of ids that Encode gave for a text without special tokens.
  std::string Decode(const std::vector<int32_t>& ids) const {
    Utf8Stream stream;
    std::string text;
    for (const int32_t id : ids) text += stream.Append(tokenizer_->TokenBytes(id));
    text += stream.Finish();
    if (GetParam().adds_space_prefix && !text.empty()) {
      EXPECT_EQ(text[0], ' ');
      text.erase(0, 1);
    }
    return text;
  }

  std::string folder_;
  std::unique_ptr<const Tokenizer> tokenizer_;
};

TEST_P(TokenizerOracleTest, Cases) {
  const std::string prefix = folder_ + "/" + GetParam().cases;
  const std::vector<std::string> texts = Split(ReadFile(prefix + "-cases.bin"), "\x1E");
  ASSERT_EQ(texts.size(), 100);
  for (const bool parse_special : {false, true}) {
    const std::vector<std::string> lines =
        Split(ReadFile(prefix + (parse_special ? "-ids-special.txt" : "-ids-plain.txt")), "\n");
    ASSERT_GE(lines.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<int32_t> expected = Ids(lines[i]);
      EXPECT_EQ(Encode(texts[i], parse_special), expected)
          << parse_special << ::testing::PrintToString(texts[i]);
      if (!parse_special && GetParam().keeps_texts) {
        EXPECT_EQ(Decode(expected), texts[i]);
      }
    }
  }
}

class PublishedCasesTest : public TokenizerOracleTest {};

TEST_P(PublishedCasesTest, Agree) {
  const std::vector<std::string> texts =
      Split(ReadFile(folder_ + "/tokenizer2/published.inp"), "\n__ggml_vocab_test__\n");
  const std::vector<std::string> lines =
      Split(ReadFile(folder_ + "/" + GetParam().cases + "-published.out"), "\n");
  ASSERT_EQ(texts.size(), 47);
  ASSERT_GE(lines.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<int32_t> expected = Ids(lines[i]);
    EXPECT_EQ(Encode(texts[i], false), expected) << ::testing::PrintToString(texts[i]);
    EXPECT_EQ(Decode(expected), texts[i]);
  }
}

TEST_P(TokenizerOracleTest, RoundTripOfRandomText) {
  if (!GetParam().keeps_texts) return;
  std::mt19937_64 random(5);
  for (int i = 0; i < 5000; ++i) {
    std::string text = RandomText(random, 60);
    const std::vector<int32_t> ids = Encode(text, false);
    absl::StrReplaceAll({{"▁", " "}}, &text);
    ASSERT_EQ(Decode(ids), text);
    for (const int32_t id : ids) ASSERT_FALSE(tokenizer_->IsEog(id)) << id;
  }
}

TEST_P(TokenizerOracleTest, TextsBeginWithBosIfTheyHaveIt) {
  EXPECT_GE(tokenizer_->bos_id(), 0);
  std::vector<int32_t> expected;
  if (GetParam().adds_bos) expected.push_back(tokenizer_->bos_id());
  EXPECT_EQ(tokenizer_->Encode("", false), expected);
}

std::vector<Oracle> WithPublishedCases() {
  std::vector<Oracle> oracles = Oracles();
  std::erase_if(oracles, [](const Oracle& oracle) { return !oracle.has_published_cases; });
  return oracles;
}

const auto kNames = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(All, TokenizerOracleTest, ::testing::ValuesIn(Oracles()), kNames);
INSTANTIATE_TEST_SUITE_P(All, PublishedCasesTest, ::testing::ValuesIn(WithPublishedCases()),
                         kNames);

}  // namespace
}  // namespace orcd
