// Tests which row of a file stands where, without a GPU.
#include "cuda/row_order.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/spec.h"

namespace orcd::cuda {
namespace {

using ::testing::ElementsAre;

using Names = std::vector<std::string>;

// The rows of `file` in the order of `row_of`.
Names Placed(const Names& file, int rows, const std::function<int(int)>& row_of) {
  Names placed;
  for (int row = 0; row < rows; ++row) placed.push_back(file.at(row_of(row)));
  return placed;
}

// Adds `count` rows of a head.
void Add(Names& names, const std::string& what, int head, int count) {
  for (int i = 0; i < count; ++i) names.push_back(absl::StrCat(what, head, ".", i));
}

// Two key heads, with three value heads each.
constexpr DeltaNetSpec kNet = {
    .key_heads = 2, .value_heads = 6, .head_dim = 16, .pairing = HeadPairing::kDivision};

TEST(RowOrderTest, HalvesOfAHeadFollowOneAnother) {
  std::vector<int> rows;
  for (int row = 0; row < 16; ++row) {
    rows.push_back(RowOfHalves(row, 8));
    EXPECT_EQ(PlaceInHalves(rows.back(), 8), row);
  }
  EXPECT_THAT(rows, ElementsAre(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
}

TEST(RowOrderTest, QueriesAndTheirGatesAreParted) {
  constexpr int kHeads = 3;
  constexpr int kHeadDim = 4;
  Names file, queries, gates;
  for (int head = 0; head < kHeads; ++head) {
    Add(file, "q", head, kHeadDim);
    Add(file, "gate", head, kHeadDim);
    Add(queries, "q", head, kHeadDim);
    Add(gates, "gate", head, kHeadDim);
  }
  const int rows = kHeads * kHeadDim;
  EXPECT_EQ(Placed(file, rows, [](int row) { return RowOfQuery(row, kHeadDim); }), queries);
  EXPECT_EQ(Placed(file, rows, [](int row) { return RowOfAttentionGate(row, kHeadDim); }), gates);
}

TEST(RowOrderTest, InputsOfADeltaNetAreParted) {
  Names file, expected;
  for (int key_head = 0; key_head < 2; ++key_head) {
    Add(file, "q", key_head, 16);
    Add(file, "k", key_head, 16);
    for (int i = 0; i < 3; ++i) Add(file, "v", 3 * key_head + i, 16);
    for (int i = 0; i < 3; ++i) Add(file, "z", 3 * key_head + i, 16);
  }
  for (int head = 0; head < 2; ++head) Add(expected, "q", head, 16);
  for (int head = 0; head < 2; ++head) Add(expected, "k", head, 16);
  for (int head = 0; head < 6; ++head) Add(expected, "v", head, 16);
  for (int head = 0; head < 6; ++head) Add(expected, "z", head, 16);
  const int rows = kNet.channels() + kNet.value_size();
  EXPECT_EQ(Placed(file, rows, [](int row) { return RowOfDeltaInputs(row, kNet); }), expected);
  EXPECT_EQ(expected[kNet.channels()], "z0.0") << "the gate begins there";
}

TEST(RowOrderTest, FactorsOfADeltaNetAreParted) {
  const Names file = {"b0", "b1", "b2", "a0", "a1", "a2", "b3", "b4", "b5", "a3", "a4", "a5"};
  EXPECT_THAT(Placed(file, 12, [](int row) { return RowOfDeltaFactors(row, kNet); }),
              ElementsAre("b0", "b1", "b2", "b3", "b4", "b5", "a0", "a1", "a2", "a3", "a4", "a5"));
}

}  // namespace
}  // namespace orcd::cuda
