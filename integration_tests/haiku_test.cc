// The original system's end-to-end test: a real model in a real worker writes a haiku that must
// contain a word given by the current minute, so no recorded answer passes.
#include "integration_tests/haiku.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "integration_tests/real_model_fixture.h"

namespace orcd::testing {
namespace {

TEST(HaikuRuleTest, MinutesAreWords) {
  EXPECT_EQ(MinuteInWords(0), "zero");
  EXPECT_EQ(MinuteInWords(13), "thirteen");
  EXPECT_EQ(MinuteInWords(20), "twenty");
  EXPECT_EQ(MinuteInWords(43), "forty-three");
  EXPECT_EQ(MinuteInWords(59), "fifty-nine");
}

TEST(HaikuRuleTest, NonceIsEightLowercaseLettersAndDigits) {
  EXPECT_EQ(Nonce(1).size(), 8u);
  EXPECT_EQ(Nonce(1).find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789"), std::string::npos);
  EXPECT_EQ(Nonce(1), Nonce(1));
  EXPECT_NE(Nonce(1), Nonce(2));
}

TEST(HaikuRuleTest, PromptIsTheOriginal) {
  EXPECT_EQ(HaikuPrompt("forty-three", "ab12cd34"),
            "Write a haiku about GPU computing that includes the word \"forty-three\" (nonce: "
            "ab12cd34)");
}

TEST(HaikuRuleTest, OnlyWholeWordsCount) {
  EXPECT_EQ(CountWholeWord("Six cores hum", "six"), 1);
  EXPECT_EQ(CountWholeWord("SIX, six; \"Six\"\nsix", "six"), 4);
  EXPECT_EQ(CountWholeWord("sixteen and sixty", "six"), 0);
  EXPECT_EQ(CountWholeWord("twenty-six", "six"), 0);
  EXPECT_EQ(CountWholeWord("six-fold", "six"), 0);
  EXPECT_EQ(CountWholeWord("the sixsix six", "six"), 1);
  EXPECT_EQ(CountWholeWord("Twenty-six threads", "twenty-six"), 1);
  EXPECT_EQ(CountWholeWord("twenty six", "twenty-six"), 0);
  EXPECT_EQ(CountWholeWord("6six6", "six"), 1);
  EXPECT_EQ(CountWholeWord("", "six"), 0);
}

using HaikuTest = RealModelTest;

// So small a model does not always comply, so the test may try several seeds. It keeps each
// attempt.
TEST_F(HaikuTest, WordStandsInTheHaikuExactlyOnce) {
  constexpr int kMaxAttempts = 24;
  ASSERT_NO_FATAL_FAILURE(Load());
  const absl::Time now = absl::Now();
  const std::string word = MinuteInWords(absl::ToCivilMinute(now, absl::UTCTimeZone()).minute());
  const std::string prompt =
      HaikuPrompt(word, Nonce(static_cast<uint64_t>(absl::ToUnixNanos(now))));

  nlohmann::json artifact;
  artifact["time"] = absl::FormatTime(absl::RFC3339_sec, now, absl::UTCTimeZone());
  artifact["prompt"] = prompt;
  artifact["word"] = word;
  artifact["model"] = client().Status().model().file();
  artifact["attempts"] = nlohmann::json::array();
  const std::filesystem::path path =
      ArtifactDir("haiku") /
      absl::FormatTime("haiku-%Y%m%dT%H%M%SZ.json", now, absl::UTCTimeZone());

  bool complied = false;
  for (int attempt = 1; attempt <= kMaxAttempts && !complied; ++attempt) {
    const auto seed = static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()));
    const absl::Time begun = absl::Now();
    const Generation generation = client().Generate(HaikuRequest(prompt, seed));
    const int count = CountWholeWord(generation.text, word);
    complied = count == 1;
    nlohmann::json entry = Describe(generation);
    entry["whole_word_count"] = count;
    entry["wall_ms"] = absl::ToDoubleMilliseconds(absl::Now() - begun);
    artifact["attempts"].push_back(std::move(entry));
    std::ofstream(path) << artifact.dump(2) << "\n";

    // The usage must count the tokens that came.
    ASSERT_TRUE(IsComplete(generation)) << "attempt " << attempt;
    EXPECT_GT(generation.finished->usage().prompt_tokens(), 0u);
    EXPECT_GT(generation.finished->usage().generated_tokens(), 0u);
    EXPECT_EQ(generation.started->seed(), seed);
    std::cout << "attempt " << attempt << ", \"" << word << "\" " << count << " times:\n"
              << generation.text << "\n";
  }
  EXPECT_TRUE(complied) << "not once in " << kMaxAttempts << " attempts; see " << path;
  std::cout << "artefact: " << path.string() << "\n";
}

}  // namespace
}  // namespace orcd::testing
