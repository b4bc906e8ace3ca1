#include "worker/pending_deltas.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using testing::ElementsAre;

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

}  // namespace
}  // namespace orcd
