#include "worker/api/health/health_session.h"

#include <malloc.h>
#include <nghttp2/nghttp2.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";

std::string Message(const std::string& bytes, char compressed = 0) {
  const size_t size = bytes.size();
  return std::string({compressed, static_cast<char>(size >> 24), static_cast<char>(size >> 16),
                      static_cast<char>(size >> 8), static_cast<char>(size)}) +
         bytes;
}

std::string Asking(const std::string& service) {
  HealthCheckRequest request;
  request.set_service(service);
  return Message(request.SerializeAsString());
}

// Connects the session to an nghttp2 client, without a socket.
class HealthSessionTest : public ::testing::Test {
 protected:
  struct Answer {
    std::vector<HealthCheckResponse::ServingStatus> statuses;
    std::map<std::string, std::string> fields;
    bool is_closed = false;
  };

  HealthSessionTest() {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t n,
                      const uint8_t* value, size_t v, uint8_t, void* self) {
          auto& answer = static_cast<HealthSessionTest*>(self)->answers_[frame->hd.stream_id];
          answer.fields[std::string(reinterpret_cast<const char*>(name), n)] =
              std::string(reinterpret_cast<const char*>(value), v);
          return 0;
        });
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        callbacks, [](nghttp2_session*, uint8_t, int32_t stream, const uint8_t* data, size_t bytes,
                      void* self) {
          // Each message is a prefix and one field.
          EXPECT_EQ(bytes % 7, 0u);
          for (size_t at = 0; at + 7 <= bytes; at += 7) {
            HealthCheckResponse response;
            EXPECT_TRUE(response.ParseFromArray(data + at + 5, 2));
            static_cast<HealthSessionTest*>(self)->answers_[stream].statuses.push_back(
                response.status());
          }
          return 0;
        });
    nghttp2_session_callbacks_set_on_stream_close_callback(
        callbacks, [](nghttp2_session*, int32_t stream, uint32_t, void* self) {
          static_cast<HealthSessionTest*>(self)->answers_[stream].is_closed = true;
          return 0;
        });
    nghttp2_option* options = nullptr;
    nghttp2_option_new(&options);
    nghttp2_option_set_no_closed_streams(options, 1);
    nghttp2_session_client_new2(&client_, callbacks, this, options);
    nghttp2_option_del(options);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(client_, NGHTTP2_FLAG_NONE, nullptr, 0);
  }
  ~HealthSessionTest() override { nghttp2_session_del(client_); }

  // Moves bytes both ways until there are none.
  void Exchange() {
    for (bool moved = true; moved;) {
      moved = false;
      const uint8_t* bytes = nullptr;
      for (ssize_t count = 0; (count = nghttp2_session_mem_send(client_, &bytes)) > 0;) {
        moved = true;
        ASSERT_TRUE(session_.Receive({bytes, static_cast<size_t>(count)}));
      }
      std::string out;
      ASSERT_TRUE(session_.Send(1 << 20, out));
      moved = moved || !out.empty();
      ASSERT_EQ(nghttp2_session_mem_recv(client_, reinterpret_cast<const uint8_t*>(out.data()),
                                         out.size()),
                static_cast<ssize_t>(out.size()));
    }
  }

  // Sends a request and returns the stream of its call.
  int32_t Call(const std::string& path, std::string body) {
    const auto field = [](std::string_view name, std::string_view value) {
      return nghttp2_nv{reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
                        reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(),
                        value.size(), NGHTTP2_NV_FLAG_NONE};
    };
    const nghttp2_nv fields[] = {field(":method", "POST"), field(":scheme", "http"),
                                 field(":path", path), field(":authority", "w"),
                                 field("content-type", "application/grpc")};
    bodies_.push_back(std::make_unique<std::string>(std::move(body)));
    const nghttp2_data_provider provider = {
        .source = {.ptr = bodies_.back().get()},
        .read_callback = [](nghttp2_session*, int32_t, uint8_t* buffer, size_t size,
                            uint32_t* flags, nghttp2_data_source* source, void*) -> ssize_t {
          auto& rest = *static_cast<std::string*>(source->ptr);
          const size_t count = rest.copy(reinterpret_cast<char*>(buffer), size);
          rest.erase(0, count);
          if (rest.empty()) *flags |= NGHTTP2_DATA_FLAG_EOF;
          return static_cast<ssize_t>(count);
        }};
    const int32_t stream =
        nghttp2_submit_request(client_, nullptr, fields, std::size(fields), &provider, nullptr);
    Exchange();
    return stream;
  }

  std::string StatusOf(int32_t stream) { return answers_[stream].fields["grpc-status"]; }

  HealthService health_;
  HealthSession session_{health_};
  nghttp2_session* client_ = nullptr;
  std::vector<std::unique_ptr<std::string>> bodies_;
  std::map<int32_t, Answer> answers_;
};

TEST_F(HealthSessionTest, CheckIsAnsweredOnce) {
  health_.Set("a", true);
  health_.Set("b", false);
  const int32_t a = Call(kCheck, Asking("a"));
  const int32_t b = Call(kCheck, Asking("b"));
  EXPECT_THAT(answers_[a].statuses, ElementsAre(HealthCheckResponse::SERVING));
  EXPECT_THAT(answers_[b].statuses, ElementsAre(HealthCheckResponse::NOT_SERVING));
  for (const int32_t stream : {a, b}) {
    EXPECT_EQ(answers_[stream].fields[":status"], "200");
    EXPECT_EQ(answers_[stream].fields["content-type"], "application/grpc");
    EXPECT_EQ(StatusOf(stream), "0");
    EXPECT_TRUE(answers_[stream].is_closed);
  }
  EXPECT_EQ(StatusOf(Call(kCheck, Asking("nobody"))), "5");
}

TEST_F(HealthSessionTest, EveryOtherRequestIsRefusedAlone) {
  health_.Set("", true);
  EXPECT_EQ(StatusOf(Call("/orcd.v1.Worker/Health", Message(""))), "12");
  EXPECT_EQ(StatusOf(Call(absl::StrCat(kCheck, "s"), Message(""))), "12");
  EXPECT_EQ(StatusOf(Call(std::string(10'000, '/'), Message(""))), "12");
  EXPECT_EQ(StatusOf(Call(kCheck, Message("", 1))), "12") << "compressed";
  EXPECT_EQ(StatusOf(Call(kCheck, "")), "3");
  EXPECT_EQ(StatusOf(Call(kCheck, std::string(4, '\0'))), "3");
  EXPECT_EQ(StatusOf(Call(kCheck, Message("") + Message(""))), "3") << "two messages";
  EXPECT_EQ(StatusOf(Call(kCheck, Message("\x0A\x7F"))), "3") << "a length beyond the end";
  EXPECT_EQ(StatusOf(Call(kCheck, Asking(std::string(5'000, 'x')))), "8");
  EXPECT_EQ(StatusOf(Call(kCheck, Asking(std::string(50'000, 'x')))), "8");
  EXPECT_EQ(StatusOf(Call(kCheck, Asking(""))), "0");
}

TEST_F(HealthSessionTest, WatchersGetTheStatusNowAndAtEachChange) {
  const int32_t stream = Call(kWatch, Asking("a"));
  EXPECT_THAT(answers_[stream].statuses, ElementsAre(HealthCheckResponse::SERVICE_UNKNOWN));
  const auto look = [&] {
    answers_[stream].statuses.clear();
    session_.OnTick();
    Exchange();
    return answers_[stream].statuses;
  };
  EXPECT_THAT(look(), IsEmpty());
  health_.Set("a", true);
  EXPECT_THAT(look(), ElementsAre(HealthCheckResponse::SERVING));
  EXPECT_THAT(look(), IsEmpty());
  health_.Set("a", false);
  EXPECT_THAT(look(), ElementsAre(HealthCheckResponse::NOT_SERVING));
  health_.Shutdown();
  EXPECT_THAT(look(), IsEmpty());
  EXPECT_EQ(StatusOf(stream), "14");
  EXPECT_TRUE(answers_[stream].is_closed);
}

TEST_F(HealthSessionTest, AWatcherThatGoesIsForgotten) {
  const int32_t stream = Call(kWatch, Asking("a"));
  nghttp2_submit_rst_stream(client_, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL);
  Exchange();
  health_.Set("a", true);
  session_.OnTick();
  Exchange();
}

TEST_F(HealthSessionTest, UnreadChangesAreOneMessage) {
  // The window has no bytes.
  const nghttp2_settings_entry none = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
  nghttp2_submit_settings(client_, NGHTTP2_FLAG_NONE, &none, 1);
  const int32_t stream = Call(kWatch, Asking("a"));
  for (int i = 0; i < 1000; ++i) {
    health_.Set("a", i % 2 == 0);
    session_.OnTick();
    Exchange();
  }
  EXPECT_THAT(answers_[stream].statuses, IsEmpty());
  nghttp2_submit_window_update(client_, NGHTTP2_FLAG_NONE, stream, 1 << 20);
  Exchange();
  EXPECT_THAT(answers_[stream].statuses, ElementsAre(HealthCheckResponse::SERVICE_UNKNOWN));
  session_.OnTick();
  Exchange();
  EXPECT_EQ(answers_[stream].statuses.back(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(answers_[stream].statuses.size(), 2u);
}

TEST_F(HealthSessionTest, BytesThatAreNotHttp2EndTheConnection) {
  const std::string nonsense = "GET / HTTP/1.1\r\nHost: w\r\n\r\n";
  EXPECT_FALSE(
      session_.Receive({reinterpret_cast<const uint8_t*>(nonsense.data()), nonsense.size()}));
}

TEST_F(HealthSessionTest, CallsThatAreOverTakeNothing) {
  health_.Set("", true);
  const auto call_many = [&] {
    for (int i = 0; i < 2000; ++i) Call(kCheck, Asking(""));
    answers_.clear();
    bodies_.clear();
  };
  call_many();
  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < 10; ++i) call_many();
  // The client at the other end keeps a hundred of its own.
  EXPECT_LT(mallinfo2().uordblks, before + (1 << 20));
}

}  // namespace
}  // namespace orcd
