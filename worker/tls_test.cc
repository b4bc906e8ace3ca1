#include "worker/tls.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/error.h"

namespace orcd {
namespace {

using testing::HasSubstr;

TEST(TlsTest, WhatCannotBeUsedIsNamed) {
  const std::string missing = testing::TempDir() + "/no_such_certificate.pem";
  const auto server = MakeServerCredentials({.certificate = missing, .key = missing, .ca = ""});
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(server.status()).reason, "TLS_FILE_INVALID");
  EXPECT_THAT(std::string(server.status().message()), HasSubstr(missing));

  const auto client = MakeChannelCredentials({.certificate = "", .key = "", .ca = missing});
  EXPECT_EQ(GetErrorDetails(client.status()).reason, "TLS_FILE_INVALID");
  EXPECT_THAT(std::string(client.status().message()), HasSubstr(missing));
}

}  // namespace
}  // namespace orcd
