#include "tools/orcdctl/credentials.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd::ctl {
namespace {

TEST(CredentialsTest, ATokenIsReadWithoutItsLineEnd) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/token-", getpid());
  std::ofstream(path) << "a-token-of-some-length\n";
  const auto credentials = ReadCredentials({.ca = "", .certificate = "", .key = "", .token = path});
  std::filesystem::remove(path);
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EXPECT_EQ(credentials->token, "a-token-of-some-length");
  EXPECT_NE(credentials->channel, nullptr);
}

TEST(CredentialsTest, AFileThatCannotBeReadIsNamed) {
  const auto status =
      ReadCredentials({.ca = "/nowhere/ca.pem", .certificate = "", .key = "", .token = ""})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("/nowhere/ca.pem"));
}

}  // namespace
}  // namespace orcd::ctl
