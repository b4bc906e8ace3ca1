#include "worker/security/guard/listen_sockets.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

namespace orcd::guard {
namespace {

// True if a connection to this port of the IPv4 loopback is accepted.
bool Connects(int port) {
  const Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(port));
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0;
}

TEST(ListenSocketsTest, ListensOnAddressesNamesAndAll) {
  for (const std::string host : {"127.0.0.1", "localhost", "0.0.0.0", "[::]"}) {
    const auto sockets = Listen(host + ":0");
    ASSERT_TRUE(sockets.has_value()) << host;
    EXPECT_NE(sockets->port, 0) << host;
    EXPECT_TRUE(Connects(sockets->port)) << host;
  }
}

TEST(ListenSocketsTest, APortIsForOneAlone) {
  const auto first = Listen("127.0.0.1:0");
  ASSERT_TRUE(first.has_value());
  const std::string port = std::to_string(first->port);
  EXPECT_FALSE(Listen("127.0.0.1:" + port).has_value());
  EXPECT_FALSE(Listen("0.0.0.0:" + port).has_value());
}

TEST(ListenSocketsTest, ForeignAddressesAreRefused) {
  EXPECT_FALSE(Listen("192.0.2.1:0").has_value());
  EXPECT_FALSE(Listen("no-such-host.invalid:0").has_value());
  EXPECT_FALSE(Listen("127.0.0.1").has_value());
}

}  // namespace
}  // namespace orcd::guard
