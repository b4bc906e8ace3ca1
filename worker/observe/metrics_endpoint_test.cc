#include "worker/observe/metrics_endpoint.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::Duration kLong = absl::Seconds(20);
// Far more than a scrape takes, and far less than the idle limit of a connection.
constexpr absl::Duration kUsual = absl::Seconds(2);
constexpr char kScrape[] = "GET /metrics HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n";

// A TCP connection.
class Connection {
 public:
  // Connects to host:port; the host is an IP address.
  explicit Connection(const std::string& address) {
    const size_t colon = address.rfind(':');
    std::string host = address.substr(0, colon);
    if (host.front() == '[') host = host.substr(1, host.size() - 2);
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) return;
    fd_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    connected_ = connect(fd_, found->ai_addr, found->ai_addrlen) == 0;
    freeaddrinfo(found);
  }
  Connection(Connection&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  ~Connection() {
    if (fd_ >= 0) close(fd_);
  }

  bool connected() const { return connected_; }
  bool Send(const std::string& text) const {
    return send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // Reads until the other side closes or `within` is over.
  std::string ReadAll(absl::Duration within = kLong) const {
    const absl::Time deadline = SteadyNow() + within;
    std::string text;
    for (char buffer[4096];;) {
      pollfd wait = {.fd = fd_, .events = POLLIN, .revents = 0};
      const auto left = absl::ToInt64Milliseconds(deadline - SteadyNow());
      if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) <= 0) return text;
      const ssize_t size = recv(fd_, buffer, sizeof(buffer), 0);
      if (size <= 0) return text;
      text.append(buffer, static_cast<size_t>(size));
    }
  }
  // Returns true if the other side ends the connection within `within`; reads everything before the
  // end.
  bool Ends(absl::Duration within) const {
    ReadAll(within);
    char byte = 0;
    const ssize_t size = recv(fd_, &byte, 1, MSG_DONTWAIT);
    return size == 0 || (size < 0 && errno != EAGAIN);
  }

 private:
  int fd_ = -1;
  bool connected_ = false;
};

class MetricsEndpointTest : public ::testing::Test {
 protected:
  void Start(const std::string& listen) {
    auto started = MetricsEndpoint::Start(listen, metrics_, [] { return v1::WorkerStatus(); });
    ASSERT_TRUE(started.ok()) << started.status();
    endpoint_ = *std::move(started);
  }
  std::string Port() const {
    return endpoint_->address().substr(endpoint_->address().rfind(':') + 1);
  }
  static std::string Ask(const std::string& address, const std::string& request = kScrape) {
    const Connection connection(address);
    if (!connection.connected() || !connection.Send(request)) return "no connection";
    return connection.ReadAll();
  }
  // Returns the duration of a scrape; more than kLong if it is not answered.
  absl::Duration TimeScrape() const {
    const absl::Time begun = SteadyNow();
    return absl::StrContains(Ask(endpoint_->address()), "\norcd_start_time_seconds ")
               ? SteadyNow() - begun
               : absl::InfiniteDuration();
  }

  Metrics metrics_;
  std::unique_ptr<MetricsEndpoint> endpoint_;
};

bool HasIpv6() { return Connection("[::1]:1").connected() || errno == ECONNREFUSED; }

TEST_F(MetricsEndpointTest, AnswersAScrapeWithCountersAndGauges) {
  ASSERT_NO_FATAL_FAILURE(Start("127.0.0.1:0"));
  EXPECT_THAT(endpoint_->address(), StartsWith("127.0.0.1:"));
  EXPECT_NE(Port(), "0");
  const std::string answer = Ask(endpoint_->address());
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(answer, HasSubstr("\norcd_requests_running 0\n"));
  EXPECT_THAT(answer, HasSubstr("\norcd_heartbeats_total{result=\"ok\"} 0\n"));
  metrics_.OnHeartbeat("ok");
  EXPECT_THAT(Ask(endpoint_->address()), HasSubstr("\norcd_heartbeats_total{result=\"ok\"} 1\n"));
}

TEST_F(MetricsEndpointTest, AnswersNothingElse) {
  ASSERT_NO_FATAL_FAILURE(Start("127.0.0.1:0"));
  const auto ask = [&](const std::string& line, const std::string& more = "") {
    return Ask(endpoint_->address(),
               line + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" + more + "\r\n");
  };
  EXPECT_THAT(ask("GET /"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(ask("GET /metrics/more"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(ask("GET /metrics?name=x"), StartsWith("HTTP/1.1 200 "));
  const std::string head = ask("HEAD /metrics");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(head, HasSubstr("version=0.0.4"));
  EXPECT_THAT(head, Not(HasSubstr("orcd_")));
  EXPECT_THAT(ask("DELETE /metrics"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(ask("DELETE /metrics"), HasSubstr("\r\nAllow: GET, HEAD\r\n"));
  EXPECT_THAT(ask("nonsense"), StartsWith("HTTP/1.1 40"));
  // The server does not wait for the body, which never comes.
  EXPECT_THAT(ask("POST /metrics", "Content-Length: 1000000000\r\n"), StartsWith("HTTP/1.1 405 "));
}

TEST_F(MetricsEndpointTest, ListensOnBothFamilies) {
  ASSERT_NO_FATAL_FAILURE(Start("0.0.0.0:0"));
  EXPECT_THAT(Ask("127.0.0.1:" + Port()), StartsWith("HTTP/1.1 200 "));
  ASSERT_NO_FATAL_FAILURE(Start("localhost:0"));
  EXPECT_THAT(Ask("127.0.0.1:" + Port()), StartsWith("HTTP/1.1 200 "));
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  ASSERT_NO_FATAL_FAILURE(Start("[::1]:0"));
  EXPECT_THAT(endpoint_->address(), StartsWith("[::1]:"));
  EXPECT_THAT(Ask(endpoint_->address()), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(Ask("127.0.0.1:" + Port()), "no connection");
  ASSERT_NO_FATAL_FAILURE(Start("[::]:0"));
  EXPECT_THAT(Ask("[::1]:" + Port()), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Ask("127.0.0.1:" + Port()), StartsWith("HTTP/1.1 200 "));
}

TEST_F(MetricsEndpointTest, APortThatIsTakenIsAnError) {
  ASSERT_NO_FATAL_FAILURE(Start("127.0.0.1:0"));
  const absl::Status status = MetricsEndpoint::Start(endpoint_->address(), metrics_, [] {
                                return v1::WorkerStatus();
                              }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(GetErrorDetails(status).reason, "CANNOT_LISTEN");
  EXPECT_THAT(std::string(status.message()), HasSubstr("--metrics-listen"));
}

TEST_F(MetricsEndpointTest, HeldConnectionsDelayNoScrape) {
  ASSERT_NO_FATAL_FAILURE(Start("127.0.0.1:0"));
  for (const char* begun : {"", "G", "GET /metrics HTTP/1.1\r\nHost: w\r\nX-Slow: "}) {
    std::vector<Connection> held;
    for (const size_t count : {2u, 50u, 200u, 600u}) {
      while (held.size() < count) {
        held.emplace_back(endpoint_->address());
        ASSERT_TRUE(held.back().connected());
        ASSERT_TRUE(held.back().Send(begun));
      }
      for (int i = 0; i < 3; ++i) {
        EXPECT_LT(TimeScrape(), kUsual) << count << " connections that sent '" << begun << "'";
      }
    }
    EXPECT_TRUE(held.front().Ends(kUsual)) << "the oldest made room";
    EXPECT_FALSE(held.back().Ends(absl::Milliseconds(100)));
  }
}

TEST_F(MetricsEndpointTest, OneThatReadsNothingDelaysNoScrape) {
  ASSERT_NO_FATAL_FAILURE(Start("127.0.0.1:0"));
  const Connection silent(endpoint_->address());
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "GET /metrics HTTP/1.1\r\nHost: worker\r\n\r\n";
  // The server stops reading once nobody reads its answers.
  ASSERT_TRUE(silent.Send(many));
  for (int i = 0; i < 3; ++i) EXPECT_LT(TimeScrape(), kUsual);
}

TEST_F(MetricsEndpointTest, HeadersThatNeverEndAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Start("127.0.0.1:0"));
  const Connection flood(endpoint_->address());
  ASSERT_TRUE(flood.Send("GET /metrics HTTP/1.1\r\nHost: w\r\n"));
  const std::string line = absl::StrCat("x-more: ", std::string(1000, 'x'), "\r\n");
  size_t sent = 0;
  while (sent < (16u << 20) && flood.Send(line)) sent += line.size();
  EXPECT_LT(sent, 16u << 20) << "the server took all of it";
  const Connection url(endpoint_->address());
  ASSERT_TRUE(url.Send("GET /"));
  for (sent = 0; sent < (16u << 20) && url.Send(std::string(1000, 'x'));) sent += 1000;
  EXPECT_LT(sent, 16u << 20) << "the server took all of it";
  EXPECT_LT(TimeScrape(), kUsual);
}

TEST_F(MetricsEndpointTest, AnIdleConnectionEnds) {
  ASSERT_NO_FATAL_FAILURE(Start("127.0.0.1:0"));
  const Connection idle(endpoint_->address());
  const Connection half(endpoint_->address());
  ASSERT_TRUE(half.Send("GET /metrics HTTP/1.1\r\n"));
  EXPECT_FALSE(idle.Ends(absl::Seconds(1)));
  const absl::Duration limit = absl::Seconds(MetricsEndpoint::kIdleSeconds + 5);
  EXPECT_TRUE(idle.Ends(limit));
  EXPECT_TRUE(half.Ends(limit));
}

}  // namespace
}  // namespace orcd
