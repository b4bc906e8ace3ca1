#include "worker/identity.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(IdentityTest, InstanceIdsAreRandomUuids) {
  const std::string id = MakeInstanceId();
  EXPECT_THAT(id, testing::MatchesRegex(
                      "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"));
  EXPECT_NE(id, MakeInstanceId());
}

TEST(IdentityTest, WorkerIdSurvivesRestartsWhereThePortDoes) {
  EXPECT_EQ(DefaultWorkerId("0.0.0.0:50051", "aaaaaaaa-1"), HostName() + "-50051");
  EXPECT_EQ(DefaultWorkerId("0.0.0.0:50051", "bbbbbbbb-2"), HostName() + "-50051");
  EXPECT_EQ(DefaultWorkerId("127.0.0.1:0", "bbbbbbbb-2"), HostName() + "-bbbbbbbb");
}

TEST(IdentityTest, WildcardsAreNoAddress) {
  EXPECT_EQ(ReachableAddress("10.0.0.7:80"), "10.0.0.7:80");
  EXPECT_EQ(ReachableAddress("0.0.0.0:80"), HostName() + ":80");
  EXPECT_EQ(ReachableAddress("[::]:80"), HostName() + ":80");
}

}  // namespace
}  // namespace orcd
