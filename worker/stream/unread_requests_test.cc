#include "worker/stream/unread_requests.h"

#include <memory>

#include "gtest/gtest.h"

namespace orcd {
namespace {

using Entry = std::shared_ptr<UnreadRequests::Entry>;

TEST(UnreadRequestsTest, IsFoundWhileItsEntryLives) {
  UnreadRequests requests;
  EXPECT_FALSE(requests.Cancel("a"));
  Entry a = requests.Add("a");
  const Entry b = requests.Add("b");
  EXPECT_FALSE(a->is_cancelled());
  EXPECT_TRUE(requests.Cancel("a"));
  EXPECT_TRUE(a->is_cancelled());
  EXPECT_FALSE(b->is_cancelled());
  a = nullptr;
  EXPECT_FALSE(requests.Cancel("a"));
}

TEST(UnreadRequestsTest, AllOfOneIdAreMeant) {
  UnreadRequests requests;
  Entry first = requests.Add("a");
  const Entry second = requests.Add("a");
  first = nullptr;
  const Entry third = requests.Add("a");
  EXPECT_TRUE(requests.Cancel("a"));
  EXPECT_TRUE(second->is_cancelled());
  EXPECT_TRUE(third->is_cancelled());
}

TEST(UnreadRequestsTest, WithoutAnIdItIsFoundByNobody) {
  UnreadRequests requests;
  const Entry nameless = requests.Add("");
  EXPECT_FALSE(requests.Cancel(""));
  EXPECT_FALSE(nameless->is_cancelled());
}

}  // namespace
}  // namespace orcd
