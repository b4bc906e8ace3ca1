#include "runtime/text/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/small_vocabulary_for_test.h"

namespace orcd {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Merges by the definition: searches all pairs, merges one, starts again.
class PlainBpe {
 public:
  bool AddMerge(int32_t left, int32_t right, int32_t merged) {
    return merges_.emplace(std::pair(left, right), std::pair(merges_.size(), merged)).second;
  }
  std::vector<int32_t> Encode(std::string_view word) const {
    std::vector<int32_t> ids;
    for (const char c : word) ids.push_back(static_cast<uint8_t>(c));
    while (true) {
      auto best = merges_.end();
      size_t at = 0;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto merge = merges_.find({ids[i], ids[i + 1]});
        if (merge == merges_.end()) continue;
        if (best == merges_.end() || merge->second.first < best->second.first) {
          best = merge;
          at = i;
        }
      }
      if (best == merges_.end()) return ids;
      ids[at] = best->second.second;
      ids.erase(ids.begin() + at + 1);
    }
  }

 private:
  std::map<std::pair<int32_t, int32_t>, std::pair<size_t, int32_t>> merges_;
};

std::array<int32_t, 256> ByteIds() {
  std::array<int32_t, 256> ids;
  for (int byte = 0; byte < 256; ++byte) ids[byte] = byte;
  return ids;
}

std::vector<int32_t> Encode(const Bpe& bpe, std::string_view word) {
  Bpe::Workspace workspace;
  std::vector<int32_t> ids;
  bpe.Append(word, workspace, ids);
  return ids;
}

TEST(BpeTest, LowestRankFirst) {
  Bpe bpe(ByteIds());
  ASSERT_TRUE(bpe.AddMerge('b', 'c', 300));
  ASSERT_TRUE(bpe.AddMerge('a', 'b', 301));
  ASSERT_TRUE(bpe.AddMerge(301, 'c', 302));
  EXPECT_THAT(Encode(bpe, "abc"), ElementsAre('a', 300));
  EXPECT_THAT(Encode(bpe, "ab"), ElementsAre(301));
  EXPECT_THAT(Encode(bpe, "abd"), ElementsAre(301, 'd'));
  EXPECT_THAT(Encode(bpe, "z"), ElementsAre('z'));
  EXPECT_THAT(Encode(bpe, ""), ElementsAre());
}

TEST(BpeTest, LeftmostAmongEquals) {
  Bpe bpe(ByteIds());
  bpe.AddMerge('a', 'a', 300);
  EXPECT_THAT(Encode(bpe, "aaa"), ElementsAre(300, 'a'));
  EXPECT_THAT(Encode(bpe, "aaaaa"), ElementsAre(300, 300, 'a'));
}

TEST(BpeTest, RefusesAPairTwice) {
  Bpe bpe(ByteIds());
  EXPECT_TRUE(bpe.AddMerge('a', 'b', 300));
  EXPECT_FALSE(bpe.AddMerge('a', 'b', 301));
  EXPECT_THAT(Encode(bpe, "ab"), ElementsAre(300));
}

TEST(BpeTest, AgreesWithTheDefinition) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 60; ++round) {
    Bpe bpe(ByteIds());
    PlainBpe plain;
    const int letters = 1 + static_cast<int>(random() % 4);
    std::vector<int32_t> known;
    for (int i = 0; i < letters; ++i) known.push_back('a' + i);
    for (int32_t id = 256; id < 256 + 40; ++id) {
      const int32_t left = known[random() % known.size()];
      const int32_t right = known[random() % known.size()];
      ASSERT_EQ(bpe.AddMerge(left, right, id), plain.AddMerge(left, right, id));
      known.push_back(id);
    }
    for (int i = 0; i < 40; ++i) {
      // Lengths on both sides of the limit beyond which words are merged with a heap.
      std::string word(random() % 150, 'a');
      for (char& c : word) c = static_cast<char>('a' + random() % letters);
      ASSERT_EQ(Encode(bpe, word), plain.Encode(word)) << word;
    }
  }
}

TEST(BpeTest, BytesWithoutATokenAreLeftOut) {
  std::array<int32_t, 256> byte_ids = ByteIds();
  byte_ids['x'] = Bpe::kNoToken;
  Bpe bpe(byte_ids);
  bpe.AddMerge('a', 'b', 300);
  EXPECT_THAT(Encode(bpe, "xaxbx"), ElementsAre(300));
  EXPECT_THAT(Encode(bpe, "x"), ElementsAre());
  // The same for words that are merged with a heap.
  EXPECT_THAT(Encode(bpe, std::string(100, 'x')), ElementsAre());
  EXPECT_THAT(Encode(bpe, std::string(100, 'x') + "axb"), ElementsAre(300));
}

TEST(BpeTest, WholeWords) {
  Bpe bpe(ByteIds());
  bpe.AddWord("abc", 301);
  std::vector<int32_t> ids;
  EXPECT_TRUE(bpe.AppendWhole("abc", ids));
  EXPECT_FALSE(bpe.AppendWhole("ab", ids));
  EXPECT_FALSE(bpe.AppendWhole("abcabc", ids)) << "longer than every word";
  EXPECT_THAT(ids, ElementsAre(301));
}

// A quadratic merge would take hours here.
TEST(BpeTest, AMegabyteOfOneLetter) {
  Bpe bpe(ByteIds());
  int32_t longest = 'a';
  for (int32_t id = 256; id < 256 + 10; ++id) {
    bpe.AddMerge(longest, longest, id);
    longest = id;
  }
  const std::vector<int32_t> ids = Encode(bpe, std::string(1 << 20, 'a'));
  EXPECT_EQ(ids.size(), 1 << 10);
  EXPECT_THAT(ids, Each(longest));
}

TEST(BpeTokenizerTest, VocabulariesMayLackBytesThatTextsDoNotNeed) {
  for (const int byte : {0x04, 0x7F, 0xC0, 0xF2, 0xFF}) {
    SmallVocabulary vocabulary;
    vocabulary.tokens()[byte] = "other";
    EXPECT_TRUE(Tokenizer::Create(vocabulary.View()).ok()) << byte;
  }
  for (const int byte : {0x09, 0x20, 0x7E, 0x80, 0xC2, 0xF0}) {
    SmallVocabulary vocabulary;
    vocabulary.tokens()[byte] = "other";
    EXPECT_FALSE(Tokenizer::Create(vocabulary.View()).ok()) << byte;
  }
}

// The merges lead to "bc", but not to "abc", which is a token as well.
class UnreachedTokenTest : public ::testing::Test {
 protected:
  std::vector<int32_t> EncodeAbc(std::string_view pre_tokenizer) {
    Vocabulary view = vocabulary_.View();
    view.pre_tokenizer = *FindPreTokenizer(pre_tokenizer);
    const auto tokenizer = Tokenizer::Create(view);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return (*tokenizer)->Encode("abc", /*parse_special=*/false);
  }

  SmallVocabulary vocabulary_;
  const int32_t bc_ = vocabulary_.AddMerge("b", "c");
};

TEST_F(UnreachedTokenTest, IsTakenWhereMergesAreIgnored) {
  const int32_t abc = vocabulary_.Add("abc");
  EXPECT_THAT(EncodeAbc("llama-bpe"), ElementsAre(abc));
  EXPECT_THAT(EncodeAbc("tekken"), ElementsAre(abc));
  EXPECT_THAT(EncodeAbc("qwen2"), ElementsAre('a', bc_));
}

TEST_F(UnreachedTokenTest, IsNotTakenIfPlainTextMustNotGiveIt) {
  for (const TokenType type : {TokenType::kUnused, TokenType::kUnknown, TokenType::kControl}) {
    const SmallVocabulary without = vocabulary_;
    vocabulary_.Add("abc", type);
    EXPECT_THAT(EncodeAbc("llama-bpe"), ElementsAre('a', bc_));
    vocabulary_ = without;
  }
}

}  // namespace
}  // namespace orcd
