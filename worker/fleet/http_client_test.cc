#include "worker/fleet/http_client.h"

#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "integration_tests/scripted_http_server.h"
#include "runtime/base/steady_time.h"
#include "testing/event.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Request = ScriptedHttpServer::Request;

constexpr absl::Duration kLong = absl::Seconds(30);

absl::StatusOr<HttpResponse> Get(const std::string& url, absl::Duration timeout = kLong,
                                 HttpClient::Options options = {}) {
  CallCancellation never;
  return HttpClient(std::move(options)).Call({.method = "GET", .url = url}, timeout, never);
}

TEST(HttpClientTest, SendsTheRequestAndReturnsTheAnswer) {
  std::mutex mutex;
  Request seen;
  ScriptedHttpServer server([&](const Request& request) {
    std::lock_guard lock(mutex);
    seen = request;
    return std::optional(ScriptedHttpServer::Answer(409, R"({"a":1})"));
  });
  CallCancellation never;
  const auto response = HttpClient({}).Call({.method = "POST",
                                             .url = server.url() + "/workers",
                                             .body = R"({"url":"grpc://a:1"})",
                                             .bearer_token = "Secret"},
                                            kLong, never);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 409);
  EXPECT_EQ(response->body, R"({"a":1})");
  std::lock_guard lock(mutex);
  EXPECT_EQ(seen.method, "POST");
  EXPECT_EQ(seen.path, "/workers");
  EXPECT_EQ(seen.body, R"({"url":"grpc://a:1"})");
  EXPECT_THAT(seen.headers, HasSubstr("\r\ncontent-type: application/json\r\n"));
  EXPECT_THAT(seen.headers, HasSubstr("\r\nauthorization: bearer secret\r\n"));
  EXPECT_THAT(seen.headers, HasSubstr("\r\nuser-agent: worker-orcd/"));
}

TEST(HttpClientTest, ADeleteHasNoBodyAndNoToken) {
  std::mutex mutex;
  Request seen;
  ScriptedHttpServer server([&](const Request& request) {
    std::lock_guard lock(mutex);
    seen = request;
    return std::optional(ScriptedHttpServer::Answer(202, ""));
  });
  CallCancellation never;
  const auto response =
      HttpClient({}).Call({.method = "DELETE", .url = server.url() + "/workers/x"}, kLong, never);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 202);
  std::lock_guard lock(mutex);
  EXPECT_EQ(seen.method, "DELETE");
  EXPECT_EQ(seen.body, "");
  EXPECT_THAT(seen.headers, Not(HasSubstr("authorization")));
  EXPECT_THAT(seen.headers, Not(HasSubstr("content-length")));
}

TEST(HttpClientTest, ABodyThatIsTooLongEndsTheCall) {
  for (const bool chunked : {false, true}) {
    ScriptedHttpServer server([&](const Request&) {
      const std::string body(1001, 'x');
      return std::optional(
          chunked ? absl::StrCat("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n",
                                 body, "\r\n0\r\n\r\n")
                  : ScriptedHttpServer::Answer(200, body));
    });
    EXPECT_TRUE(Get(server.url(), kLong, {.max_body_bytes = 1001}).ok());
    const auto refused = Get(server.url(), kLong, {.max_body_bytes = 1000});
    EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
    EXPECT_THAT(refused.status().message(), HasSubstr("1000 bytes"));
  }
}

TEST(HttpClientTest, HeadersThatAreTooLongEndTheCall) {
  ScriptedHttpServer server([](const Request&) {
    std::string answer = "HTTP/1.1 200 OK\r\n";
    for (int i = 0; i < 100; ++i) {
      absl::StrAppend(&answer, "x-", i, ": ", std::string(1000, 'y'), "\r\n");
    }
    return std::optional(absl::StrCat(answer, "content-length: 0\r\n\r\n"));
  });
  EXPECT_TRUE(absl::IsResourceExhausted(Get(server.url()).status()));
}

TEST(HttpClientTest, AnAnswerThatIsNotHttpIsAnError) {
  for (const char* answer :
       {"", "garbage\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab"}) {
    ScriptedHttpServer server([&](const Request&) { return std::optional(std::string(answer)); });
    const auto response = Get(server.url());
    EXPECT_TRUE(absl::IsUnknown(response.status())) << answer << response.status();
    EXPECT_NE(response.status().message(), "");
  }
}

TEST(HttpClientTest, FollowsNoRedirect) {
  ScriptedHttpServer server([](const Request&) {
    return std::optional<std::string>(
        "HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n");
  });
  const auto response = Get(server.url());
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 302);
}

TEST(HttpClientTest, HeedsNoProxyOfTheEnvironment) {
  ScriptedHttpServer server(
      [](const Request&) { return std::optional(ScriptedHttpServer::Answer(200, "direct")); });
  ASSERT_EQ(setenv("http_proxy", "http://127.0.0.1:1", 1), 0);
  ASSERT_EQ(setenv("all_proxy", "http://127.0.0.1:1", 1), 0);
  const auto response = Get(server.url());
  unsetenv("http_proxy");
  unsetenv("all_proxy");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->body, "direct");
}

TEST(HttpClientTest, NobodyThereIsUnavailable) {
  int port = 0;
  {
    ScriptedHttpServer server([](const Request&) { return std::optional<std::string>(); });
    port = server.port();
  }
  const auto response = Get(absl::StrCat("http://127.0.0.1:", port));
  EXPECT_TRUE(absl::IsUnavailable(response.status())) << response.status();
  EXPECT_THAT(response.status().message(), HasSubstr("connect"));
}

TEST(HttpClientTest, PlaintextIsNotTakenForTls) {
  ScriptedHttpServer server(
      [](const Request&) { return std::optional(ScriptedHttpServer::Answer(200, "")); });
  // The server waits for the end of a header that never comes, so it may not refuse the TLS
  // handshake either.
  const auto response =
      Get(absl::StrCat("https://127.0.0.1:", server.port()), absl::Milliseconds(300));
  EXPECT_FALSE(response.ok());
}

TEST(HttpClientTest, OtherProtocolsAreRefused) {
  EXPECT_TRUE(absl::IsUnavailable(Get("file:///etc/passwd").status()));
}

TEST(HttpClientTest, ASilentServerCostsTheTimeoutAndNoMore) {
  ScriptedHttpServer server([](const Request&) { return std::optional<std::string>(); });
  const absl::Time begun = SteadyNow();
  const auto response = Get(server.url(), absl::Milliseconds(200));
  EXPECT_TRUE(absl::IsDeadlineExceeded(response.status())) << response.status();
  EXPECT_GE(SteadyNow() - begun, absl::Milliseconds(200));
  EXPECT_LT(SteadyNow() - begun, absl::Seconds(10));
}

TEST(HttpClientTest, ACancellationEndsTheCallUnderWayAndThoseThatFollow) {
  Event asked;
  ScriptedHttpServer server([&](const Request&) {
    asked.Notify();
    return std::optional<std::string>();
  });
  CallCancellation cancel;
  std::thread canceller([&] {
    EXPECT_TRUE(asked.WaitFor(kLong));
    cancel.Cancel();
  });
  const HttpClient client({});
  const absl::Time begun = SteadyNow();
  EXPECT_TRUE(absl::IsCancelled(
      client.Call({.method = "GET", .url = server.url()}, absl::Minutes(5), cancel).status()));
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(
      client.Call({.method = "GET", .url = server.url()}, absl::Minutes(5), cancel).status()));
  EXPECT_LT(SteadyNow() - begun, kLong);
}

}  // namespace
}  // namespace orcd
