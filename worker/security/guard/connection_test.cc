#include "worker/security/guard/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "worker/security/guard/frames_for_test.h"

namespace orcd::guard {
namespace {

using ::testing::IsEmpty;
using ::testing::StartsWith;

// A connection. The test plays both its client and its server.
class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() {
    std::array<int, 2> pair;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()), 0);
    client_ = Descriptor(pair[0]);
    connection_ =
        std::make_unique<Connection>(options_, side_, total_, progress_, Descriptor(pair[1]), now_);
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
  const ServerSide side_{.connect = [this](int fd) { server_ = Descriptor(fd); }};
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

// Counts the bytes it is given and sends what the test queues.
class CountingServer final : public LocalServer {
 public:
  bool Receive(std::span<const uint8_t> bytes) override {
    received += bytes.size();
    return !refuses;
  }
  bool Send(size_t most, std::string& out) override {
    out += to_send.substr(0, most);
    to_send.erase(0, most);
    return true;
  }
  void OnTick() override { to_send += news; }

  size_t received = 0;
  bool refuses = false;
  std::string to_send;
  std::string news;
};

class LocalServerTest : public ConnectionTest {
 protected:
  LocalServerTest() {
    connection_->Close();
    std::array<int, 2> pair;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()), 0);
    client_ = Descriptor(pair[0]);
    const int small = 4096;
    setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    connection_ = std::make_unique<Connection>(options_, local_side_, total_, progress_,
                                               Descriptor(pair[1]), now_);
    EXPECT_TRUE(connection_->ChargeConnection());
    Send(std::string(kPreface) + MakeFrame(frame_type::kSettings, 0, 0));
  }
  static std::string Ping() { return MakeFrame(frame_type::kPing, 0, 0, "12345678"); }

  CountingServer* local_ = nullptr;
  const ServerSide local_side_{.make_local = [this] {
    auto made = std::make_unique<CountingServer>();
    local_ = made.get();
    made->to_send = MakeFrame(frame_type::kSettings, 0, 0);
    return made;
  }};
};

TEST_F(LocalServerTest, AnswersInTheTurnThatAsks) {
  ASSERT_NE(local_, nullptr);
  EXPECT_EQ(connection_->phase(), Connection::Phase::kOpen);
  EXPECT_LT(connection_->server_fd(), 0);
  EXPECT_GT(local_->received, kPreface.size());
  EXPECT_THAT(Received(client_.get()), StartsWith(std::string({0, 0, 12, 4})));
}

TEST_F(LocalServerTest, HearsNothingFromAClientThatDoesNotRead) {
  const std::string large = MakeFrame(frame_type::kPing, 1, 0, "12345678");
  while (local_->to_send.size() < (size_t{1} << 20)) local_->to_send += large;
  Send(Ping());
  EXPECT_FALSE(connection_->wants_turn()) << "the client does not take what it has been sent";
  EXPECT_EQ(connection_->client_events(), static_cast<uint32_t>(EPOLLOUT));
  const size_t received = local_->received;
  const size_t left = local_->to_send.size();
  connection_->Turn({.client_in = true}, now_, scratch_);
  EXPECT_EQ(local_->received, received);
  EXPECT_EQ(local_->to_send.size(), left) << "nothing more is taken from the server";
  for (int i = 0; i < 10'000 && !local_->to_send.empty(); ++i) {
    while (!Received(client_.get()).empty()) {
    }
    connection_->Turn({.client_out = true}, now_, scratch_);
  }
  EXPECT_THAT(local_->to_send, IsEmpty());
}

TEST_F(LocalServerTest, TellsItsNewsAtATickAndBeforeTheEnd) {
  Received(client_.get());
  local_->news = Ping();
  connection_->Tick(now_, scratch_);
  EXPECT_EQ(Received(client_.get()), Ping());
  connection_->EndLocalServer(now_, scratch_);
  EXPECT_THAT(Received(client_.get()), StartsWith(Ping()));
  EXPECT_EQ(connection_->phase(), Connection::Phase::kLinger);
}

TEST_F(LocalServerTest, EndsTheConnectionThatItRefuses) {
  local_->refuses = true;
  Send(Ping());
  EXPECT_FALSE(connection_->active());
}

}  // namespace
}  // namespace orcd::guard
