#include "worker/fleet/identity.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(IdentityTest, InstanceIdsAreRandomUuids) {
  const std::string id = MakeInstanceId();
  EXPECT_THAT(id, ::testing::MatchesRegex(
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
  EXPECT_EQ(ReachableAddress("[0:0::0]:80"), HostName() + ":80");
  EXPECT_EQ(ReachableAddress("[fd00::1]:80"), "[fd00::1]:80");
  EXPECT_EQ(ReachableAddress("[::1]:80"), "[::1]:80");
}

TEST(IdentityTest, AHostGetsTheBoundPortAndItsBrackets) {
  EXPECT_EQ(ReachableAddress("0.0.0.0:80", "10.0.0.7"), "10.0.0.7:80");
  EXPECT_EQ(ReachableAddress("[::]:80", "fd00::7"), "[fd00::7]:80");
  EXPECT_EQ(ReachableAddress("[::]:80", "[fd00::7]"), "[fd00::7]:80");
  EXPECT_EQ(ReachableAddress("127.0.0.1:80", "gpu7.example"), "gpu7.example:80");
}

TEST(IdentityTest, WorkerIdsAreShortPrintableText) {
  for (const std::string& id : {std::string("w1"), std::string("gpu 7"), std::string("Ã©"),
                                std::string(256, 'x'), std::string()}) {
    EXPECT_TRUE(CheckWorkerId(id).ok()) << id;
  }
  struct Case {
    std::string id;
    const char* why;
  };
  for (const Case& c :
       {Case{"w1\n", "a control character at byte 3"},
        Case{"\x1b[1m", "a control character at byte 1"},
        Case{"w\x7f", "a control character at byte 2"}, Case{"w\xE9", "bytes that are not UTF-8"},
        Case{std::string(257, 'x'), "257 bytes"}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckWorkerId(c.id)));
    EXPECT_THAT(CheckWorkerId(c.id).message(), ::testing::HasSubstr(c.why));
  }
}

}  // namespace
}  // namespace orcd
