#include "worker/security/guard/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "worker/security/guard/frames_for_test.h"

namespace orcd::guard {
namespace {

using ::testing::StartsWith;

// A connection. The test plays both its client and its server.
class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() {
    std::array<int, 2> pair;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()), 0);
    client_ = Descriptor(pair[0]);
    connection_ = std::make_unique<Connection>(options_, connect_, total_, progress_,
                                               Descriptor(pair[1]), now_);
    EXPECT_TRUE(connection_->ChargeConnection());
  }

  void Send(std::string_view bytes) {
    ASSERT_EQ(send(client_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    // Like epoll, the test reports the client only if the connection waits for it.
    if ((connection_->client_events() & EPOLLIN) == 0) return;
    connection_->Turn({.client_in = true}, now_, scratch_);
  }
  static std::string Received(int fd) {
    std::array<char, 4096> buffer;
    const ssize_t count = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    return std::string(buffer.data(), static_cast<size_t>(count < 0 ? 0 : count));
  }

  const GuardOptions options_;
  Descriptor server_;
  const ConnectServer connect_ = [this](int fd) { server_ = Descriptor(fd); };
  TransportBudget total_{int64_t{512} << 20};
  ServerProgress progress_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  Connection::Scratch scratch_;
  Descriptor client_;
  std::unique_ptr<Connection> connection_;
};

TEST_F(ConnectionTest, ThePrefaceMayComeInPieces) {
  Send(kPreface.substr(0, 10));
  Send(kPreface.substr(10));
  EXPECT_EQ(connection_->phase(), Connection::Phase::kPreface);
  Send(MakeFrame(frame_type::kSettings, 0, 0));
  EXPECT_EQ(connection_->phase(), Connection::Phase::kOpen);
  ASSERT_TRUE(server_.valid());
  EXPECT_THAT(Received(server_.get()), StartsWith(std::string(kPreface)));
}

}  // namespace
}  // namespace orcd::guard
