#include "worker/fleet/host_port.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HostPortTest, Addresses) {
  struct Case {
    const char* text;
    const char* host;
    int port;
    bool is_ipv6;
  };
  for (const Case& c :
       {Case{"127.0.0.1:50051", "127.0.0.1", 50051, false}, Case{"0.0.0.0:0", "0.0.0.0", 0, false},
        Case{"gpu-7.fleet_a.example:65535", "gpu-7.fleet_a.example", 65535, false},
        Case{"7up.example:80", "7up.example", 80, false}, Case{"[::]:0", "::", 0, true},
        Case{"[::1]:1", "::1", 1, true}, Case{"[fd00::1]:50051", "fd00::1", 50051, true},
        Case{"[::ffff:10.0.0.7]:80", "::ffff:10.0.0.7", 80, true},
        Case{"[fe80::1%eth0]:80", "fe80::1%eth0", 80, true}}) {
    const auto address = ParseHostPort(c.text, 0);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->host, c.host);
    EXPECT_EQ(address->port, c.port);
    EXPECT_EQ(address->is_ipv6, c.is_ipv6) << c.text;
    EXPECT_EQ(address->ToString(), c.text);
  }
}

TEST(HostPortTest, WrongAddressesSayWhy) {
  struct Case {
    std::string text;
    const char* why;
  };
  const Case cases[] = {
      {"", "it has no port"},
      {"localhost", "it has no port"},
      {"localhost:", "it has no port"},
      {"[::1]", "it has no port"},
      {"[::1]80", "it has no port"},
      {"[::1]:", "it has no port"},
      {":80", "it has no host"},
      {"localhost:http", "its port is not a number"},
      {"localhost:+80", "its port is not a number"},
      {"localhost:-1", "its port is not a number"},
      {"localhost:0x50", "its port is not a number"},
      {"localhost:65536", "its port is out of range"},
      {"localhost:99999999999999999999", "its port is out of range"},
      {"[::1]:70000", "its port is out of range"},
      {"127.0.0.1: 0", "byte 11 is a blank or a control character"},
      {" 127.0.0.1:0", "byte 1 is a blank"},
      {"127.0.0.1:0\n", "byte 12 is a blank"},
      {"a b:1", "byte 2 is a blank"},
      {std::string("a\0b:1", 5), "byte 2 is a blank or a control"},
      {"::1", "an IPv6 address needs brackets"},
      {"::1:50051", "an IPv6 address needs brackets"},
      {"fd00::1:50051", "an IPv6 address needs brackets"},
      {"1:2:3:4:5:6:7:8:50051", "an IPv6 address needs brackets"},
      {"a:b:80", "no IPv6 address in brackets"},
      {"[::1:80", "it has a '[' without its ']'"},
      {"[localhost]:80", "there is no IPv6 address in its brackets"},
      {"[]:80", "there is no IPv6 address in its brackets"},
      {"[fe80::1%]:80", "there is no IPv6 address in its brackets"},
      {"*:80", "its host has a character"},
      {"http//x:80", "its host has a character"},
      {"m\xc3\xbcller:80", "its host has a character"},
      {"300.1.1.1:80", "its host is numbers, and no IPv4 address"},
      {"10.0.0:80", "its host is numbers, and no IPv4 address"},
      {std::string(254, 'a') + ":80", "its host has 254 bytes of at most 253"},
  };
  for (const Case& c : cases) {
    const auto address = ParseHostPort(c.text, 0);
    EXPECT_TRUE(absl::IsInvalidArgument(address.status())) << c.text;
    EXPECT_THAT(address.status().message(),
                AllOf(HasSubstr(absl::StrCat("'", c.text, "' is not host:port: ")),
                      HasSubstr(c.why), HasSubstr("[::1]:50051")));
  }
}

TEST(HostPortTest, LeastPort) {
  EXPECT_TRUE(ParseHostPort("o:1", 1).ok());
  EXPECT_THAT(ParseHostPort("o:0", 1).status().message(),
              AllOf(HasSubstr("its port is out of range"), HasSubstr("a port of 1 to 65535")));
}

TEST(HostPortTest, HostsAlone) {
  EXPECT_EQ(ParseHost("10.0.0.7")->host, "10.0.0.7");
  EXPECT_EQ(ParseHost("gpu7.example")->host, "gpu7.example");
  for (const char* text : {"fd00::1", "[fd00::1]"}) {
    auto address = ParseHost(text);
    ASSERT_TRUE(address.ok()) << address.status();
    address->port = 7;
    EXPECT_EQ(address->ToString(), "[fd00::1]:7");
  }
  // A last group that could be a port is a part of the address.
  EXPECT_EQ(ParseHost("fd00::1:5005")->host, "fd00::1:5005");
}

TEST(HostPortTest, WrongHostsSayWhy) {
  struct Case {
    const char* text;
    const char* why;
  };
  for (const Case& c : {Case{"", "it has no host"}, Case{"10.0.0.7:80", "it has a port"},
                        Case{"[::1]:80", "it has a port"}, Case{"[x]", "no IPv6 address"},
                        Case{"a b", "byte 2 is a blank"}, Case{"1.2.3", "no IPv4 address"},
                        Case{"a:b:c", "has a ':'"}, Case{"fd00::1:50051", "it has a port"}}) {
    const auto address = ParseHost(c.text);
    EXPECT_TRUE(absl::IsInvalidArgument(address.status())) << c.text;
    EXPECT_THAT(address.status().message(), HasSubstr(c.why));
  }
}

}  // namespace
}  // namespace orcd
