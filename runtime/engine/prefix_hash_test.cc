#include "runtime/engine/prefix_hash.h"

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(PrefixHashTest, SaysModelAndTenantApart) {
  EXPECT_EQ(PrefixRoot("digest", "tenant"), PrefixRoot("digest", "tenant"));
  EXPECT_NE(PrefixRoot("digest", "tenant"), PrefixRoot("digest", ""));
  EXPECT_NE(PrefixRoot("digest", "tenant"), PrefixRoot("other", "tenant"));
  EXPECT_NE(PrefixRoot("ab", "c"), PrefixRoot("a", "bc"));
}

TEST(PrefixHashTest, DependsOnEveryTokenBefore) {
  const BlockHash root = PrefixRoot("digest", "");
  const std::vector<int32_t> one = {1, 2, 3, 4};
  const std::vector<int32_t> two = {1, 2, 4, 3};
  EXPECT_EQ(NextBlockHash(root, one), NextBlockHash(root, one));
  EXPECT_NE(NextBlockHash(root, one), NextBlockHash(root, two));
  EXPECT_NE(NextBlockHash(NextBlockHash(root, one), two),
            NextBlockHash(NextBlockHash(root, two), two));
}

TEST(PrefixHashTest, NamesDoNotMeet) {
  absl::flat_hash_set<BlockHash> seen;
  BlockHash hash = PrefixRoot("digest", "");
  for (int32_t i = 0; i < 20'000; ++i) {
    const int32_t tokens[] = {i % 7, i % 3};
    hash = NextBlockHash(hash, tokens);
    ASSERT_TRUE(seen.insert(hash).second) << i;
  }
}

}  // namespace
}  // namespace orcd
