#include "worker/stream/unread_requests.h"

#include <memory>

#include "gtest/gtest.h"

namespace orcd {
namespace {

using Ticket = std::shared_ptr<UnreadRequests::Ticket>;

TEST(UnreadRequestsTest, IsFoundWhileItsTicketLives) {
  UnreadRequests requests;
  EXPECT_FALSE(requests.Cancel("a"));
  Ticket a = requests.Add("a");
  const Ticket b = requests.Add("b");
  EXPECT_FALSE(a->is_cancelled());
  EXPECT_TRUE(requests.Cancel("a"));
  EXPECT_TRUE(a->is_cancelled());
  EXPECT_FALSE(b->is_cancelled());
  a = nullptr;
  EXPECT_FALSE(requests.Cancel("a"));
}

TEST(UnreadRequestsTest, AllOfOneIdAreMeant) {
  UnreadRequests requests;
  Ticket first = requests.Add("a");
  const Ticket second = requests.Add("a");
  first = nullptr;
  const Ticket third = requests.Add("a");
  EXPECT_TRUE(requests.Cancel("a"));
  EXPECT_TRUE(second->is_cancelled());
  EXPECT_TRUE(third->is_cancelled());
}

TEST(UnreadRequestsTest, WithoutAnIdItIsFoundByNobody) {
  UnreadRequests requests;
  const Ticket nameless = requests.Add("");
  EXPECT_FALSE(requests.Cancel(""));
  EXPECT_FALSE(nameless->is_cancelled());
}

}  // namespace
}  // namespace orcd
