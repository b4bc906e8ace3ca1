#include "runtime/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/gguf/gguf_writer.h"
#include "runtime/text/pre_tokenizer.h"
#include "runtime/text/random_text_for_test.h"
#include "runtime/text/small_vocabulary_for_test.h"
#include "runtime/text/word_splitter.h"
#include "testing/files.h"

namespace orcd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += tokenizer.TokenBytes(id);
  return text;
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

// ---------------------------------------------------------------------------------------------
// A vocabulary of a few merges and special tokens.

class SmallTokenizerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    in_ = vocabulary_.AddMerge("i", "n");
    space_in_ = vocabulary_.AddMerge("Ġ", "in");
    e_acute_ = vocabulary_.AddMerge("Ã", "©");
    replacement_ = vocabulary_.AddMerge("ï", "¿");
    replacement_ = vocabulary_.AddMerge("ï¿", "½");
    two_breaks_ = vocabulary_.AddMerge("Ċ", "Ċ");
    end_ = vocabulary_.Add("<|im_end|>", TokenType::kControl);
    call_ = vocabulary_.Add("<tool_call>", TokenType::kUserDefined);
    pad_ = vocabulary_.Add("[PAD0]", TokenType::kUnused);
    unknown_ = vocabulary_.Add("<unk>", TokenType::kUnknown);
    Vocabulary view = vocabulary_.View();
    view.eos_id = end_;
    view.eot_id = call_;
    auto tokenizer = Tokenizer::Create(view);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  SmallVocabulary vocabulary_;
  int32_t in_, space_in_, e_acute_, replacement_, two_breaks_, end_, call_, pad_, unknown_;
  std::unique_ptr<const Tokenizer> tokenizer_;
};

TEST_F(SmallTokenizerTest, MergesWithinWords) {
  EXPECT_THAT(tokenizer_->Encode("in in", false), ElementsAre(in_, space_in_));
  EXPECT_THAT(tokenizer_->Encode("i n", false), ElementsAre('i', ' ', 'n'));
  EXPECT_THAT(tokenizer_->Encode("\n\n", false), ElementsAre(two_breaks_));
  EXPECT_THAT(tokenizer_->Encode("é", false), ElementsAre(e_acute_));
  EXPECT_THAT(tokenizer_->Encode("", true), ElementsAre());
}

TEST_F(SmallTokenizerTest, ControlTokensOnlyWhereAsked) {
  EXPECT_THAT(tokenizer_->Encode("in<|im_end|>in", true), ElementsAre(in_, end_, in_));
  EXPECT_THAT(tokenizer_->Encode("<|im_end|>", false), Not(Contains(end_)));
  EXPECT_EQ(Decode(*tokenizer_, tokenizer_->Encode("<|im_end|>", false)), "<|im_end|>");
}

TEST_F(SmallTokenizerTest, UserDefinedTokensAlways) {
  EXPECT_THAT(tokenizer_->Encode("x<tool_call>", false), ElementsAre('x', call_));
  EXPECT_THAT(tokenizer_->Encode("x<tool_call>", true), ElementsAre('x', call_));
}

TEST_F(SmallTokenizerTest, UnusedTokensNever) {
  for (const bool parse_special : {false, true}) {
    EXPECT_EQ(tokenizer_->Encode("[PAD0]", parse_special).size(), 6);
  }
}

TEST_F(SmallTokenizerTest, TheUnknownTokenIsAsAControlToken) {
  EXPECT_THAT(tokenizer_->Encode("<unk>", true), ElementsAre(unknown_));
  EXPECT_EQ(tokenizer_->Encode("<unk>", false).size(), 5);
}

TEST_F(SmallTokenizerTest, EmptyTokensAreNeverUsed) {
  const int32_t first = vocabulary_.Add("");
  const int32_t second = vocabulary_.Add("", TokenType::kControl);
  const auto tokenizer = Tokenizer::Create(vocabulary_.View());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("in", true), ElementsAre(in_));
  for (const int32_t id : {first, second}) {
    EXPECT_EQ((*tokenizer)->TokenBytes(id), "");
    EXPECT_EQ((*tokenizer)->TokenText(id), "");
  }
}

TEST_F(SmallTokenizerTest, BadBytesAreReplacementCharacters) {
  EXPECT_THAT(tokenizer_->Encode("a\xFF", false), ElementsAre('a', replacement_));
  EXPECT_THAT(tokenizer_->Encode("\xE4\xB8z", false), ElementsAre(replacement_, replacement_, 'z'));
  EXPECT_THAT(tokenizer_->Encode("\xC3<|im_end|>\xA9", true),
              ElementsAre(replacement_, end_, replacement_));
}

TEST_F(SmallTokenizerTest, SpansSayWhereControlTokensMayStand) {
  const std::string text = "<|im_end|>\n<|im_end|>\n";
  const std::vector<TextSpan> spans = {{0, 11, true}, {11, 21, false}, {21, 22, true}};
  const std::vector<int32_t> ids = tokenizer_->Encode(text, spans);
  EXPECT_EQ(ids.front(), end_);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), end_), 1);
  // Words may span several spans.
  EXPECT_THAT(tokenizer_->Encode("\n\n", std::vector<TextSpan>{{0, 1, true}, {1, 2, false}}),
              ElementsAre(two_breaks_));
}

TEST_F(SmallTokenizerTest, Tokens) {
  EXPECT_EQ(tokenizer_->vocab_size(), unknown_ + 1);
  EXPECT_EQ(tokenizer_->TokenBytes(space_in_), " in");
  EXPECT_EQ(tokenizer_->TokenText(space_in_), "Ġin");
  EXPECT_EQ(tokenizer_->TokenBytes(0), std::string(1, '\0'));
  EXPECT_EQ(tokenizer_->TokenBytes(0xFF), "\xFF");
  EXPECT_EQ(tokenizer_->TokenBytes(end_), "");
  EXPECT_EQ(tokenizer_->TokenText(end_), "<|im_end|>");
  EXPECT_EQ(tokenizer_->TokenBytes(call_), "<tool_call>");
  EXPECT_EQ(tokenizer_->TokenBytes(pad_), "");
  EXPECT_EQ(tokenizer_->TokenBytes(unknown_), "");
  for (const int32_t outside : {-1, unknown_ + 1, std::numeric_limits<int32_t>::max(),
                                std::numeric_limits<int32_t>::min()}) {
    EXPECT_EQ(tokenizer_->TokenBytes(outside), "");
    EXPECT_EQ(tokenizer_->TokenText(outside), "");
    EXPECT_FALSE(tokenizer_->IsEog(outside));
  }
}

TEST_F(SmallTokenizerTest, FindSpecial) {
  EXPECT_EQ(tokenizer_->FindSpecial("<|im_end|>"), end_);
  EXPECT_EQ(tokenizer_->FindSpecial("<tool_call>"), call_);
  EXPECT_EQ(tokenizer_->FindSpecial("[PAD0]"), -1);
  EXPECT_EQ(tokenizer_->FindSpecial("in"), -1);
  EXPECT_EQ(tokenizer_->FindSpecial(""), -1);
}

TEST_F(SmallTokenizerTest, EndTokens) {
  EXPECT_THAT(tokenizer_->eog_ids(), ElementsAre(end_, call_));
  EXPECT_TRUE(tokenizer_->IsEog(end_));
  EXPECT_FALSE(tokenizer_->IsEog(in_));
}

TEST_F(SmallTokenizerTest, RoundTripOfRandomText) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = RandomText(random, 50);
    ASSERT_EQ(Decode(*tokenizer_, tokenizer_->Encode(text, false)), text);
  }
}

TEST_F(SmallTokenizerTest, RandomBytesDecodeToTheirReplacement) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 20000; ++i) {
    const std::string bytes = RandomBytes(random, 40);
    ASSERT_EQ(Decode(*tokenizer_, tokenizer_->Encode(bytes, false)), ReplaceInvalidUtf8(bytes));
  }
}

// Each text takes quadratic time or worse in a careless tokenizer.
TEST_F(SmallTokenizerTest, HostileLongTexts) {
  for (const std::string_view part :
       {"i", "in", " ", "\n", " \n", "\u00A0", "<", "<|im_end|", "<|im_end|>", "<tool_call>", "'",
        "é", "\u0301", "1", "中", "!"}) {
    const std::string text = RepeatedTo(kLong, part);
    const std::vector<int32_t> ids = tokenizer_->Encode(text, false);
    EXPECT_EQ(Decode(*tokenizer_, ids), text) << part;
  }
  EXPECT_EQ(tokenizer_->Encode(RepeatedTo(kLong, "<|im_end|>"), true).front(), end_);
  EXPECT_EQ(tokenizer_->Encode(std::string(kLong, '\xFF'), true).size(), kLong);
}

// ---------------------------------------------------------------------------------------------
// Invalid vocabularies.

struct BadVocabulary {
  std::string name;
  std::function<void(SmallVocabulary&)> spoil;
  std::string key;
  std::string message;
};

class BadVocabularyTest : public ::testing::TestWithParam<BadVocabulary> {};

TEST_P(BadVocabularyTest, IsRefused) {
  SmallVocabulary vocabulary;
  vocabulary.AddMerge("a", "b");
  vocabulary.Add("<|im_end|>", TokenType::kControl);
  ASSERT_TRUE(Tokenizer::Create(vocabulary.View()).ok());
  GetParam().spoil(vocabulary);
  const absl::Status status = Tokenizer::Create(vocabulary.View()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(GetErrorDetails(status).reason, "TOKENIZER_INVALID");
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().key + ": "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(All, BadVocabularyTest,
                         ::testing::ValuesIn(std::vector<BadVocabulary>{
                             {"NoTokens",
                              [](auto& v) {
                                v.tokens().clear();
                                v.types().clear();
                              },
                              "tokenizer.ggml.tokens", "there are no tokens"},
                             {"TooFewTypes", [](auto& v) { v.types().pop_back(); },
                              "tokenizer.ggml.token_type", "257 types for 258 tokens"},
                             {"UnknownType", [](auto& v) { v.types()[3] = 7; },
                              "tokenizer.ggml.token_type", "token 3 has type 7"},
                             {"NegativeType", [](auto& v) { v.types()[3] = -1; },
                              "tokenizer.ggml.token_type", "token 3 has type -1"},
                             {"TokenTwice", [](auto& v) { v.Add("ab"); }, "tokenizer.ggml.tokens",
                              "tokens 256 and 258 are both 'ab'"},
                             {"ByteMissing", [](auto& v) { v.tokens()[' '] = "space"; },
                              "tokenizer.ggml.tokens",
                              "no token for byte 32, which is spelled 'Ġ'"},
                             {"ByteUnused", [](auto& v) { v.types()['q'] = 5; },
                              "tokenizer.ggml.tokens", "no token for byte 113"},
                             {"MergeWithoutSpace", [](auto& v) { v.merges().push_back("ab"); },
                              "tokenizer.ggml.merges", "merge 1 is 'ab': not two tokens"},
                             {"MergeOfThree", [](auto& v) { v.merges().push_back("a b c"); },
                              "tokenizer.ggml.merges", "not two tokens"},
                             {"MergeWithoutLeft", [](auto& v) { v.merges().push_back(" b"); },
                              "tokenizer.ggml.merges", "not two tokens"},
                             {"MergeWithoutRight", [](auto& v) { v.merges().push_back("a "); },
                              "tokenizer.ggml.merges", "not two tokens"},
                             {"EmptyMerge", [](auto& v) { v.merges().push_back(""); },
                              "tokenizer.ggml.merges", "not two tokens"},
                             {"MergeOfUnknownLeft", [](auto& v) { v.merges().push_back("xy a"); },
                              "tokenizer.ggml.merges", "there is no token 'xy'"},
                             {"MergeOfUnknownRight", [](auto& v) { v.merges().push_back("a xy"); },
                              "tokenizer.ggml.merges", "there is no token 'xy'"},
                             {"MergeToUnknown", [](auto& v) { v.merges().push_back("b a"); },
                              "tokenizer.ggml.merges", "there is no token 'ba'"},
                             {"MergeTwice", [](auto& v) { v.merges().push_back("a b"); },
                              "tokenizer.ggml.merges", "there twice"},
                             // Otherwise plain text could become a control token.
                             {"MergeToControl",
                              [](auto& v) {
                                v.AddMerge("<", "x");
                                v.types().back() = 3;
                              },
                              "tokenizer.ggml.merges", "must not come out of plain text"},
                             {"MergeToUnused",
                              [](auto& v) {
                                v.AddMerge("<", "x");
                                v.types().back() = 5;
                              },
                              "tokenizer.ggml.merges", "must not come out of plain text"},
                         }),
                         [](const auto& info) { return info.param.name; });

TEST(TokenizerCreateTest, EndTokenOutsideTheVocabulary) {
  const SmallVocabulary vocabulary;
  Vocabulary view = vocabulary.View();
  view.eos_id = 256;
  EXPECT_THAT(std::string(Tokenizer::Create(view).status().message()),
              HasSubstr("tokenizer.ggml.eos_token_id: id 256 is outside the vocabulary of 256"));
  view.eos_id = 255;
  view.eot_id = 0xFFFFFFFF;
  EXPECT_THAT(std::string(Tokenizer::Create(view).status().message()),
              HasSubstr("tokenizer.ggml.eot_token_id: id 4294967295"));
}

// ---------------------------------------------------------------------------------------------
// Files.

class TokenizerFileTest : public ::testing::Test {
 protected:
  // Writes every key except `without`.
  GgufWriter Writer(std::string_view without) {
    SmallVocabulary vocabulary;
    vocabulary.AddMerge("a", "b");
    GgufWriter writer;
    const auto wanted = [&](std::string_view key) { return key != without; };
    if (wanted("tokenizer.ggml.model")) writer.SetString("tokenizer.ggml.model", "gpt2");
    if (wanted("tokenizer.ggml.pre")) writer.SetString("tokenizer.ggml.pre", "qwen2");
    if (wanted(kTokensKey)) writer.SetStrings(kTokensKey, vocabulary.tokens());
    if (wanted(kTokenTypesKey)) writer.SetI32s(kTokenTypesKey, vocabulary.types());
    if (wanted(kMergesKey)) writer.SetStrings(kMergesKey, vocabulary.merges());
    if (wanted(kEosKey)) writer.SetU32(kEosKey, 'e');
    return writer;
  }

  absl::StatusOr<std::unique_ptr<const Tokenizer>> Load(const GgufWriter& writer) {
    // The mapping stays valid after the file is removed.
    const TempDir dir;
    const std::string path = dir.File("tokenizer.gguf");
    std::ofstream(path, std::ios::binary) << writer.Header();
    const auto gguf = GgufReader::Open(path);
    if (!gguf.ok()) return gguf.status();
    return Tokenizer::FromGguf(**gguf);
  }
};

TEST_F(TokenizerFileTest, Loads) {
  const auto tokenizer = Load(Writer(""));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("ab", false), ElementsAre(256));
  EXPECT_THAT((*tokenizer)->eog_ids(), ElementsAre('e'));
  const auto without_eos = Load(Writer(kEosKey));
  ASSERT_TRUE(without_eos.ok());
  EXPECT_THAT((*without_eos)->eog_ids(), ElementsAre());
}

TEST_F(TokenizerFileTest, APreTokenizerIsGuessedIfTheFileNamesNone) {
  const auto tokenizer = Load(Writer("tokenizer.ggml.pre"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("ab", false), ElementsAre(256));
}

// llama.cpp does the same. A chat template writes these tokens itself.
TEST_F(TokenizerFileTest, TextsBeginAndEndAsTheFileSays) {
  for (const bool adds : {false, true}) {
    GgufWriter writer = Writer("");
    writer.SetU32(kBosKey, 'x');
    writer.SetBool(kAddBosKey, adds);
    writer.SetBool(kAddEosKey, adds);
    const auto tokenizer = Load(writer);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const std::string text = "ab";
    const TextSpan whole = {0, text.size(), true};
    EXPECT_THAT((*tokenizer)->Encode(text, std::span(&whole, 1)), ElementsAre(256));
    if (adds) {
      EXPECT_THAT((*tokenizer)->Encode(text, false), ElementsAre('x', 256, 'e'));
      EXPECT_THAT((*tokenizer)->Encode("", false), ElementsAre('x', 'e'));
      EXPECT_THAT((*tokenizer)->Encode("x", false), ElementsAre('x', 'x', 'e'));
    } else {
      EXPECT_THAT((*tokenizer)->Encode(text, false), ElementsAre(256));
      EXPECT_THAT((*tokenizer)->Encode("", false), ElementsAre());
    }
  }
}

TEST_F(TokenizerFileTest, NamesTheTokensOfTheFile) {
  const auto none = Load(Writer(kEosKey));
  ASSERT_TRUE(none.ok()) << none.status();
  for (const int32_t id :
       {(*none)->bos_id(), (*none)->eos_id(), (*none)->unk_id(), (*none)->pad_id()}) {
    EXPECT_EQ(id, -1);
    EXPECT_EQ((*none)->TokenText(id), "");
  }
  GgufWriter writer = Writer("");
  writer.SetU32(kBosKey, 'b');
  writer.SetU32("tokenizer.ggml.unknown_token_id", 'u');
  writer.SetU32("tokenizer.ggml.padding_token_id", 257);
  const auto some = Load(writer);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ((*some)->bos_id(), 'b');
  EXPECT_EQ((*some)->eos_id(), 'e');
  EXPECT_EQ((*some)->unk_id(), 'u');
  EXPECT_EQ((*some)->pad_id(), -1) << "outside the vocabulary";
  EXPECT_EQ((*some)->TokenText((*some)->bos_id()), "b");
}

TEST_F(TokenizerFileTest, SuppressedTokens) {
  EXPECT_THAT((*Load(Writer("")))->suppressed_ids(), ElementsAre());
  const auto with = [this](std::vector<int32_t> ids) {
    GgufWriter writer = Writer("");
    writer.SetI32s(kSuppressedKey, ids);
    return Load(writer);
  };
  EXPECT_THAT((*with({256, 3, 256}))->suppressed_ids(), ElementsAre(3, 256));
  EXPECT_THAT(std::string(with({257}).status().message()),
              HasSubstr("tokenizer.ggml.suppress_tokens: id 257 is outside the vocabulary of 257"));
  EXPECT_THAT(std::string(with({-1}).status().message()), HasSubstr("is outside"));
  std::vector<int32_t> all(257);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_THAT(std::string(with(all).status().message()), HasSubstr("has every token"));
  all.pop_back();
  EXPECT_THAT((*with(all))->suppressed_ids().size(), 256u);
}

TEST_F(TokenizerFileTest, NamesWhatIsWrongWithTheTokenToBeginWith) {
  GgufWriter none = Writer("");
  none.SetBool(kAddBosKey, true);
  const absl::Status missing = Load(none).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("tokenizer.ggml.add_bos_token: is true"));
  GgufWriter no_eos = Writer(kEosKey);
  no_eos.SetBool(kAddEosKey, true);
  EXPECT_THAT(std::string(Load(no_eos).status().message()),
              HasSubstr("tokenizer.ggml.add_eos_token: is true"));
  none.SetU32(kBosKey, 1 << 30);
  EXPECT_THAT(std::string(Load(none).status().message()),
              HasSubstr("tokenizer.ggml.bos_token_id: id 1073741824 is outside"));
  GgufWriter number = Writer("");
  number.SetU32(kAddBosKey, 1);
  EXPECT_THAT(std::string(Load(number).status().message()), HasSubstr(std::string(kAddBosKey)));
}

TEST_F(TokenizerFileTest, NamesTheMissingKey) {
  for (const std::string_view key :
       {std::string_view("tokenizer.ggml.model"), kTokensKey, kTokenTypesKey, kMergesKey}) {
    const absl::Status status = Load(Writer(key)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(key) + ": the file has no"));
  }
}

TEST_F(TokenizerFileTest, NamesTheKeyOfAnotherType) {
  for (const std::string_view key :
       {std::string_view("tokenizer.ggml.model"), std::string_view("tokenizer.ggml.pre"),
        kTokensKey, kTokenTypesKey, kMergesKey, kEosKey}) {
    GgufWriter writer = Writer(key);
    writer.SetF32(key, 1.5f);
    const absl::Status status = Load(writer).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(key)));
  }
}

TEST_F(TokenizerFileTest, OtherTokenizersAreUnimplemented) {
  for (const std::string_view key : {"tokenizer.ggml.model", "tokenizer.ggml.pre"}) {
    GgufWriter writer = Writer(key);
    writer.SetString(key, "rwkv");
    const absl::Status status = Load(writer).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_EQ(GetErrorDetails(status).reason, "TOKENIZER_UNSUPPORTED");
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string(key) + ": the file has 'rwkv'"));
  }
}

// ---------------------------------------------------------------------------------------------
// The real vocabulary.

class QwenTokenizerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* oracle = std::getenv("ORCD_ORACLE_DIR");
    if (oracle == nullptr) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
    folder_ = std::string(oracle) + "/tokenizer/";
    const auto gguf = GgufReader::Open(folder_ + "qwen2.5-vocab.gguf");
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    auto tokenizer = Tokenizer::FromGguf(**gguf);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  std::string folder_;
  std::unique_ptr<const Tokenizer> tokenizer_;
};

TEST_F(QwenTokenizerTest, PublishedCases) {
  // The last element of each list is empty.
  const std::vector<std::string> texts =
      Split(ReadFile(folder_ + "cases.inp"), "\n__ggml_vocab_test__\n");
  const std::vector<std::string> lines = Split(ReadFile(folder_ + "cases.out"), "\n");
  ASSERT_EQ(texts.size(), 47);
  ASSERT_EQ(lines.size(), 47);
  for (size_t i = 0; i < texts.size(); ++i) {
    std::istringstream numbers(lines[i]);
    const std::vector<int32_t> expected(std::istream_iterator<int32_t>(numbers), {});
    EXPECT_EQ(tokenizer_->Encode(texts[i], false), expected) << ::testing::PrintToString(texts[i]);
    EXPECT_EQ(Decode(*tokenizer_, expected), texts[i]);
  }
}

TEST_F(QwenTokenizerTest, SpecialTokens) {
  EXPECT_EQ(tokenizer_->vocab_size(), 151936);
  EXPECT_THAT(tokenizer_->eog_ids(), ElementsAre(151643, 151645, 151662, 151663, 151664));
  EXPECT_EQ(tokenizer_->FindSpecial("<|im_start|>"), 151644);
  EXPECT_THAT(tokenizer_->Encode("<|im_start|>user\n", true), ElementsAre(151644, 872, 198));
  EXPECT_THAT(tokenizer_->Encode("<tool_call>", false), ElementsAre(151657));
  EXPECT_EQ(tokenizer_->TokenBytes(151665), "");
  EXPECT_EQ(tokenizer_->TokenText(151665), "[PAD151665]");
}

TEST_F(QwenTokenizerTest, RoundTripOfRandomText) {
  constexpr int32_t kFirstControl = 151643, kLastControl = 151656, kFirstUnused = 151665;
  std::mt19937_64 random(5);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = RandomText(random, 60);
    const std::vector<int32_t> ids = tokenizer_->Encode(text, false);
    ASSERT_EQ(Decode(*tokenizer_, ids), text);
    for (const int32_t id : ids) {
      ASSERT_TRUE(id < kFirstControl || (id > kLastControl && id < kFirstUnused)) << id;
    }
  }
}

TEST_F(QwenTokenizerTest, RandomBytesDecodeToTheirReplacement) {
  std::mt19937_64 random(6);
  for (int i = 0; i < 10000; ++i) {
    const std::string bytes = RandomBytes(random, 60);
    for (const bool parse_special : {false, true}) {
      ASSERT_EQ(Decode(*tokenizer_, tokenizer_->Encode(bytes, parse_special)),
                ReplaceInvalidUtf8(bytes));
    }
  }
}

TEST_F(QwenTokenizerTest, ATokenThatIsAWordEncodesToItself) {
  const WordSplitter splitter(**FindPreTokenizer("qwen2"));
  int words = 0;
  for (int32_t id = 0; id < 151643; ++id) {
    const std::string_view bytes = tokenizer_->TokenBytes(id);
    ASSERT_FALSE(bytes.empty()) << id;
    if (FindInvalidUtf8(bytes) != bytes.size()) continue;
    int parts = 0;
    splitter.Split(bytes, [&](std::string_view, bool) { return ++parts, true; });
    if (parts != 1) continue;
    ++words;
    ASSERT_THAT(tokenizer_->Encode(bytes, false), ElementsAre(id));
  }
  EXPECT_GT(words, 145000);
}

}  // namespace
}  // namespace orcd
