// The ids that others computed for vocabularies of byte-level BPE.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/text/tokenizer.h"
#include "testing/files.h"

namespace orcd {
namespace {

struct OracleVocabulary {
  std::string name;
  // Paths within the oracle's folder. `cases` are continued by `-cases.bin` (texts between bytes
  // 0x1E), `-ids-plain.txt` and `-ids-special.txt` (a line each).
  std::string gguf;
  std::string cases;
  // llama.cpp's own cases, without special tokens; empty if there are none.
  std::string published_texts;
  std::string published_ids;
};

class BpeOracleTest : public ::testing::TestWithParam<OracleVocabulary> {
 protected:
  void SetUp() override {
    const char* oracle = std::getenv("ORCD_ORACLE_DIR");
    if (oracle == nullptr) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
    folder_ = std::string(oracle) + "/";
    const auto gguf = GgufReader::Open(folder_ + GetParam().gguf);
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    auto vocabulary = ReadVocabulary(**gguf);
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    // The ids have no BOS.
    vocabulary->bos_id.reset();
    auto tokenizer = Tokenizer::Create(*vocabulary);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  std::vector<std::string> Parts(const std::string& path, std::string_view separator) {
    const std::string content = ReadFile(folder_ + path);
    EXPECT_FALSE(content.empty()) << path;
    return absl::StrSplit(content, std::string(separator));
  }

  void Check(const std::vector<std::string>& texts, const std::vector<std::string>& lines,
             bool parse_special) {
    ASSERT_GE(lines.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      std::istringstream numbers(lines[i]);
      const std::vector<int32_t> expected(std::istream_iterator<int32_t>(numbers), {});
      EXPECT_EQ(tokenizer_->Encode(texts[i], parse_special), expected)
          << ::testing::PrintToString(texts[i]);
    }
  }

  std::string folder_;
  std::unique_ptr<const Tokenizer> tokenizer_;
};

TEST_P(BpeOracleTest, AHundredCases) {
  const std::string& cases = GetParam().cases;
  const std::vector<std::string> texts = Parts(cases + "-cases.bin", "\x1E");
  EXPECT_EQ(texts.size(), 100);
  Check(texts, Parts(cases + "-ids-plain.txt", "\n"), /*parse_special=*/false);
  Check(texts, Parts(cases + "-ids-special.txt", "\n"), /*parse_special=*/true);
}

TEST_P(BpeOracleTest, PublishedCases) {
  if (GetParam().published_texts.empty()) return;
  const auto texts = Parts(GetParam().published_texts, "\n__ggml_vocab_test__\n");
  EXPECT_EQ(texts.size(), 47);
  Check(texts, Parts(GetParam().published_ids, "\n"), /*parse_special=*/false);
}

INSTANTIATE_TEST_SUITE_P(
    All, BpeOracleTest,
    ::testing::Values(
        OracleVocabulary{"Llama3", "tokenizer2/llama-bpe-vocab.gguf", "tokenizer2/llama-bpe",
                         "tokenizer2/published.inp", "tokenizer2/llama-bpe-published.out"},
        OracleVocabulary{"SmolLM2", "tokenizer2/smollm2-vocab.gguf", "real2/smollm2", "", ""}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace orcd
