#include "worker/stream/pending_deltas.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;

DeltaEvent Delta(int sample, const std::string& text, std::vector<int32_t> tokens) {
  DeltaEvent delta;
  delta.sample = sample;
  delta.text = text;
  delta.tokens = std::move(tokens);
  return delta;
}

TEST(PendingDeltasTest, MergesWhatIsOfOneSample) {
  PendingDeltas deltas;
  deltas.Add(Delta(1, "a", {1}));
  deltas.Add(Delta(0, "x", {9, 8}));
  deltas.Add(Delta(1, "b", {2}));
  EXPECT_EQ(deltas.tokens(), 4);
  const DeltaEvent first = deltas.Pop();
  EXPECT_EQ(first.sample, 1);
  EXPECT_EQ(first.text, "ab");
  EXPECT_THAT(first.tokens, ElementsAre(1, 2));
  EXPECT_EQ(deltas.tokens(), 2);
  EXPECT_EQ(deltas.Pop().sample, 0);
  EXPECT_TRUE(deltas.empty());
  EXPECT_EQ(deltas.bytes(), 0u);
  EXPECT_EQ(deltas.tokens(), 0);
}

TEST(PendingDeltasTest, CountsEverythingThatWaits) {
  PendingDeltas deltas;
  DeltaEvent delta = Delta(0, "text", {1});
  const auto bytes_with = [&](auto change) {
    PendingDeltas other;
    DeltaEvent changed = delta;
    change(changed);
    other.Add(changed);
    return other.bytes();
  };
  deltas.Add(delta);
  EXPECT_GT(bytes_with([](DeltaEvent& d) { d.text += "more"; }), deltas.bytes());
  EXPECT_GT(bytes_with([](DeltaEvent& d) { d.tokens.push_back(2); }), deltas.bytes());
  EXPECT_GT(bytes_with([](DeltaEvent& d) { d.logprobs.resize(1); }), deltas.bytes());
  EXPECT_GT(bytes_with([](DeltaEvent& d) { d.prompt_logprobs.resize(1); }), deltas.bytes());
  deltas.Clear();
  EXPECT_TRUE(deltas.empty());
  EXPECT_EQ(deltas.bytes(), 0u);
}

// Pops pieces until nothing is left.
std::vector<DeltaEvent> PopPieces(PendingDeltas& deltas, size_t max_bytes) {
  std::vector<DeltaEvent> pieces;
  while (!deltas.empty()) pieces.push_back(deltas.Pop(max_bytes));
  EXPECT_EQ(deltas.bytes(), 0u);
  EXPECT_EQ(deltas.tokens(), 0);
  return pieces;
}

TEST(PendingDeltasTest, PiecesOfALargeDeltaAreTheDelta) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "a\u00e9\u20ac\U0001F600";
  DeltaEvent whole = Delta(3, text, {});
  for (int i = 0; i < 500; ++i) {
    whole.tokens.push_back(i);
    whole.logprobs.push_back({.token = i, .logprob = -1, .top = {{i, -1.0f}, {i + 1, -2.0f}}});
    whole.prompt_logprobs.push_back({.token = -i, .logprob = -2, .top = {{i, -1.0f}}});
  }
  constexpr size_t kMax = 4000;
  PendingDeltas deltas;
  deltas.Add(whole);
  DeltaEvent joined = Delta(3, "", {});
  for (const DeltaEvent& piece : PopPieces(deltas, kMax)) {
    PendingDeltas alone;
    alone.Add(piece);
    EXPECT_LE(alone.bytes(), kMax + 2 * sizeof(DeltaEvent));
    EXPECT_EQ(piece.sample, 3);
    EXPECT_EQ(piece.tokens.size(), piece.logprobs.size());
    if (!piece.prompt_logprobs.empty()) {
      EXPECT_TRUE(joined.tokens.empty());
    }
    EXPECT_TRUE(piece.text.empty() || (piece.text[0] & 0xC0) != 0x80) << "a character was cut";
    joined.text += piece.text;
    joined.tokens.insert(joined.tokens.end(), piece.tokens.begin(), piece.tokens.end());
    for (const auto& token : piece.prompt_logprobs) joined.prompt_logprobs.push_back(token);
  }
  EXPECT_EQ(joined.text, whole.text);
  EXPECT_EQ(joined.tokens, whole.tokens);
  ASSERT_EQ(joined.prompt_logprobs.size(), 500u);
  EXPECT_EQ(joined.prompt_logprobs[499].token, -499);
}

TEST(PendingDeltasTest, PiecesOfTokensWithoutLogprobs) {
  PendingDeltas deltas;
  deltas.Add(Delta(0, "", std::vector<int32_t>(1000, 7)));
  EXPECT_EQ(PopPieces(deltas, 400).size(), 10u);
}

TEST(PendingDeltasTest, ADeltaThatCannotBeDividedIsPoppedWhole) {
  PendingDeltas deltas;
  DeltaEvent delta = Delta(0, "", {1});
  delta.logprobs.resize(1);
  delta.logprobs[0].top.resize(100);
  deltas.Add(delta);
  EXPECT_EQ(PopPieces(deltas, 10).size(), 1u);
}

}  // namespace
}  // namespace orcd
