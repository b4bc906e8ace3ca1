#include "worker/fleet/orchestrator_address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using Protocol = OrchestratorAddress::Protocol;

TEST(OrchestratorAddressTest, HostAndPortAreOfOrcd) {
  for (const char* text : {"127.0.0.1:50051", "fleet.example:1", "[::1]:65535"}) {
    const auto address = ParseOrchestratorAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->protocol, Protocol::kOrcd);
    EXPECT_EQ(address->text, text);
  }
}

TEST(OrchestratorAddressTest, UrlsAreOfSmg) {
  for (const char* text :
       {"http://127.0.0.1:30000", "https://smg.example:443", "http://[::1]:80"}) {
    const auto address = ParseOrchestratorAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->protocol, Protocol::kSmg);
    EXPECT_EQ(address->text, text);
  }
  EXPECT_EQ(ParseOrchestratorAddress("http://smg:30000/")->text, "http://smg:30000");
}

TEST(OrchestratorAddressTest, EverythingElseIsRefused) {
  for (const char* text : {"", "smg", "smg:0", "smg:65536", ":1", "smg:x", "http://", "http://smg",
                           "http://:1", "http://smg:0", "http://smg:1/v1", "http://smg:1?x",
                           "http://a@smg:1", "http://a b:1", "http://smg:1#x", "HTTP://smg:1",
                           "grpc://smg:1", "http://http://smg:1", "http://[::1:80"}) {
    const auto address = ParseOrchestratorAddress(text);
    EXPECT_TRUE(absl::IsInvalidArgument(address.status())) << text;
    EXPECT_THAT(address.status().message(), ::testing::HasSubstr("host:port")) << text;
  }
}

}  // namespace
}  // namespace orcd
