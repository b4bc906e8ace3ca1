#include "worker/security/guard/connection_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "worker/security/guard/frames_for_test.h"

namespace orcd::guard {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace)
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

constexpr char kPath[] = "/orcd.v1.Worker/Health";

// A filter. The test plays its client and its server.
class ConnectionFilterTest : public ::testing::Test {
 protected:
  // Makes the filter. The test may change `options_` before.
  void Begin(std::vector<std::string> peer_names = {}) {
    filter_ = std::make_unique<ConnectionFilter>(options_, total_, nullptr);
    ASSERT_TRUE(filter_->ChargeConnection());
    if (!peer_names.empty()) filter_->SetPeerNames(std::move(peer_names));
    FromClient(absl::StrCat(absl::string_view(kPreface.data(), kPreface.size()),
                            MakeFrame(frame_type::kSettings, 0, 0)));
    ASSERT_TRUE(filter_->established());
    FromServer(MakeFrame(frame_type::kSettings, 0, 0));
    FromServer(MakeFrame(frame_type::kSettings, frame_flag::kAck, 0));
    TakeToServer();
    TakeToClient();
  }

  size_t FromClient(std::string_view bytes) {
    return filter_->FromClient({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, now_,
                               out_);
  }
  void FromServer(std::string_view bytes) {
    filter_->FromServer({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, now_, out_);
  }
  std::vector<Frame> TakeToServer() { return SplitFrames(std::exchange(out_.to_server, "")); }
  std::vector<Frame> TakeToClient() { return SplitFrames(std::exchange(out_.to_client, "")); }

  std::string HeadersFrame(uint32_t stream, const Headers& headers, bool end_stream = false) {
    const uint8_t end = end_stream ? frame_flag::kEndStream : 0;
    return MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders | end, stream,
                     EncodeBlock(client_encoder_, headers));
  }
  void Open(uint32_t stream, bool end_stream = false) {
    FromClient(HeadersFrame(stream, CallOf(kPath), end_stream));
  }
  // The headers that the server decodes from the block in `frame`.
  Headers AsServer(const Frame& frame) { return DecodeBlock(server_decoder_, frame.payload); }
  // The status with which the frames refuse the call, as the client decodes it.
  Headers RefusalIn(const std::vector<Frame>& frames, uint32_t stream) {
    for (const Frame& frame : frames) {
      if (frame.header.type == frame_type::kHeaders && frame.header.stream == stream) {
        EXPECT_NE(frame.header.flags & frame_flag::kEndStream, 0);
        EXPECT_NE(frame.header.flags & frame_flag::kEndHeaders, 0);
        return DecodeBlock(client_decoder_, frame.payload);
      }
    }
    return {};
  }
  static std::vector<std::pair<int, uint32_t>> Kinds(const std::vector<Frame>& frames) {
    std::vector<std::pair<int, uint32_t>> kinds;
    for (const Frame& frame : frames) kinds.emplace_back(frame.header.type, frame.header.stream);
    return kinds;
  }
  int64_t charged() const { return total_.used(); }

  FilterOptions options_;
  TransportBudget total_{int64_t{512} << 20};
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  ConnectionFilter::Output out_;
  // Outlives the filter, whose destructor takes back what it still counts here.
  ServerProgress progress_;
  std::unique_ptr<ConnectionFilter> filter_;
  HeaderEncoder client_encoder_;
  HeaderEncoder server_encoder_;
  HeaderDecoder client_decoder_{1 << 20};
  HeaderDecoder server_decoder_{1 << 20};
};

TEST_F(ConnectionFilterTest, RelaysACallAndItsAnswer) {
  Begin();
  const std::string message = GrpcMessage("hello");
  FromClient(HeadersFrame(1, CallOf(kPath, {{"x-key", "value"}})) +
             MakeFrame(frame_type::kData, frame_flag::kEndStream, 1, message));
  const std::vector<Frame> sent = TakeToServer();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(AsServer(sent[0]), CallOf(kPath, {{"x-key", "value"}}));
  EXPECT_EQ(sent[1].payload, message);
  EXPECT_EQ(sent[1].header.flags, frame_flag::kEndStream);
  EXPECT_EQ(filter_->open_calls(), 1u);

  const std::string answer =
      MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders, 1,
                EncodeBlock(server_encoder_, {{":status", "200"}})) +
      MakeFrame(frame_type::kData, 0, 1, GrpcMessage("yes")) +
      MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders | frame_flag::kEndStream, 1,
                EncodeBlock(server_encoder_, {{"grpc-status", "0"}}));
  FromServer(answer);
  EXPECT_EQ(out_.to_client, answer);
  EXPECT_EQ(filter_->open_calls(), 0u);
  EXPECT_EQ(charged(), options_.connection_charge);
}

TEST_F(ConnectionFilterTest, BytesMayComeOneByOne) {
  Begin();
  const std::string bytes = HeadersFrame(1, CallOf(kPath)) +
                            MakeFrame(frame_type::kPriority, 0, 1, "\0\0\0\0\0"s) +
                            MakeFrame(frame_type::kData, 0, 1, GrpcMessage("hello")) +
                            MakeFrame(frame_type::kPing, 0, 0, "12345678");
  for (const char& byte : bytes) ASSERT_EQ(FromClient({&byte, 1}), 1u);
  const std::vector<Frame> sent = TakeToServer();
  EXPECT_THAT(Kinds(sent), ElementsAre(Pair(frame_type::kHeaders, 1), Pair(frame_type::kData, 1),
                                       Pair(frame_type::kPing, 0)));
  EXPECT_EQ(AsServer(sent[0]), CallOf(kPath));
  const std::string answer = MakeFrame(frame_type::kPing, frame_flag::kAck, 0, "12345678");
  for (const char& byte : answer) FromServer({&byte, 1});
  EXPECT_EQ(out_.to_client, answer);
}

TEST_F(ConnectionFilterTest, HeadersBeyondTheLimitEndTheirCallAlone) {
  std::vector<std::string> reasons;
  options_.on_refused = [&](std::string_view reason) { reasons.emplace_back(reason); };
  Begin();
  Open(1);
  // The decoder must keep what the refused block added to the tables, because the next block uses
  // it.
  FromClient(
      HeadersFrame(3, CallOf(kPath, {{"x-kept", "value"}, {"x-big", std::string(17000, 'v')}})));
  const std::vector<Frame> answer = TakeToClient();
  const Headers refusal = RefusalIn(answer, 3);
  EXPECT_THAT(reasons, ElementsAre("HEADERS_TOO_LARGE"));
  EXPECT_EQ(ValueOf(refusal, ":status"), "200");
  EXPECT_EQ(ValueOf(refusal, "grpc-status"), "8");
  EXPECT_THAT(ValueOf(refusal, "grpc-message"), ::testing::HasSubstr("--max-metadata-bytes"));
  EXPECT_THAT(Kinds(answer),
              ElementsAre(Pair(frame_type::kHeaders, 3), Pair(frame_type::kRstStream, 3)));
  FromClient(HeadersFrame(5, CallOf(kPath, {{"x-kept", "value"}})));
  const std::vector<Frame> sent = TakeToServer();
  ASSERT_THAT(Kinds(sent),
              ElementsAre(Pair(frame_type::kHeaders, 1), Pair(frame_type::kHeaders, 5)));
  EXPECT_EQ(AsServer(sent[0]), CallOf(kPath));
  EXPECT_EQ(AsServer(sent[1]), CallOf(kPath, {{"x-kept", "value"}}));
  EXPECT_EQ(filter_->open_calls(), 2u);
  EXPECT_FALSE(filter_->failed());
}

TEST_F(ConnectionFilterTest, HeadersThatDoNotEndEndTheConnection) {
  Begin();
  std::string field(
      "\x00\x01"
      "a\x01"
      "b",
      5);
  std::string block;
  while (block.size() + field.size() <= kMaxFrameBytes) block += field;
  FromClient(MakeFrame(frame_type::kHeaders, 0, 1, "\x83"));
  size_t sent = 0;
  for (; sent < 4 << 20 && !filter_->failed(); sent += block.size()) {
    FromClient(MakeFrame(frame_type::kContinuation, 0, 1, block));
  }
  EXPECT_TRUE(filter_->failed());
  EXPECT_LE(sent, size_t{2} << 20);
  EXPECT_THAT(TakeToServer(), IsEmpty());
  EXPECT_THAT(Kinds(TakeToClient()), ElementsAre(Pair(frame_type::kGoaway, 0)));
}

TEST_F(ConnectionFilterTest, EmptyContinuationsThatDoNotEndEndTheConnection) {
  Begin();
  FromClient(MakeFrame(frame_type::kHeaders, 0, 1, "\x83"));
  for (int i = 0; i < 1000; ++i) FromClient(MakeFrame(frame_type::kContinuation, 0, 1));
  EXPECT_TRUE(filter_->failed());
}

TEST_F(ConnectionFilterTest, NamesOfTheCertificateAreTheGuardsToSay) {
  Begin({"router", "localhost"});
  FromClient(
      HeadersFrame(1, CallOf(kPath, {{"orcd-peer-name-bin", "Ym9zcw"}, {"orcd-peer-x", "y"}})));
  const std::vector<Frame> sent = TakeToServer();
  ASSERT_EQ(sent.size(), 1u);
  const std::string zero(1, '\0');
  EXPECT_EQ(AsServer(sent[0]), CallOf(kPath, {{"orcd-peer-name-bin", zero + "router"},
                                              {"orcd-peer-name-bin", zero + "localhost"}}));
}

TEST_F(ConnectionFilterTest, CallsAreRefusedBeforeTheirBody) {
  options_.admit = [](const CallHeaders& call, const std::vector<std::string>&) {
    if (call.authorization == "Bearer good") return absl::OkStatus();
    return MakeError(absl::StatusCode::kUnauthenticated, "not known: 100%",
                     {.reason = "UNAUTHENTICATED"});
  };
  options_.encode_details = [](const absl::Status& status) {
    return GetErrorDetails(status).reason;
  };
  std::vector<std::string> reasons;
  options_.on_refused = [&](std::string_view reason) { reasons.emplace_back(reason); };
  Begin();
  FromClient(HeadersFrame(1, CallOf(kPath, {{"authorization", "Bearer bad"}})));
  const Headers refusal = RefusalIn(TakeToClient(), 1);
  EXPECT_EQ(ValueOf(refusal, "grpc-status"), "16");
  EXPECT_EQ(ValueOf(refusal, "grpc-message"), "not known: 100%25");
  EXPECT_EQ(ValueOf(refusal, "grpc-status-details-bin"), "VU5BVVRIRU5USUNBVEVE");
  EXPECT_THAT(reasons, ElementsAre("UNAUTHENTICATED"));
  // The refused call's body is dropped and takes nothing from the connection's window.
  for (int i = 0; i < 4; ++i) {
    FromClient(MakeFrame(frame_type::kData, 0, 1, std::string(kMaxFrameBytes, 'x')));
  }
  EXPECT_THAT(TakeToServer(), IsEmpty());
  uint32_t credit = 0;
  for (const Frame& frame : TakeToClient()) {
    EXPECT_EQ(frame.header.type, frame_type::kWindowUpdate);
    EXPECT_EQ(frame.header.stream, 0u);
    credit += ReadBigEndian32(reinterpret_cast<const uint8_t*>(frame.payload.data()));
  }
  EXPECT_EQ(credit, 4 * kMaxFrameBytes);
  FromClient(HeadersFrame(3, CallOf(kPath, {{"authorization", "Bearer good"}})));
  EXPECT_EQ(TakeToServer().size(), 1u);
}

TEST_F(ConnectionFilterTest, CompressedRequestsAreRefused) {
  Begin();
  FromClient(HeadersFrame(1, CallOf(kPath, {{"grpc-encoding", "gzip"}})));
  const Headers refusal = RefusalIn(TakeToClient(), 1);
  EXPECT_EQ(ValueOf(refusal, "grpc-status"), "12");
  EXPECT_EQ(ValueOf(refusal, "grpc-accept-encoding"), "identity");
  FromClient(HeadersFrame(3, CallOf(kPath, {{"grpc-encoding", "identity"}})));
  EXPECT_THAT(Kinds(TakeToServer()), ElementsAre(Pair(frame_type::kHeaders, 3)));
}

TEST_F(ConnectionFilterTest, MalformedCallsEndAlone) {
  Begin();
  FromClient(HeadersFrame(1, CallOf(kPath, {{"x-bin", "no base64!"}})));
  EXPECT_EQ(ValueOf(RefusalIn(TakeToClient(), 1), "grpc-status"), "3");
  FromClient(HeadersFrame(3, {{":method", "POST"}, {"x", "no path"}}));
  FromClient(HeadersFrame(5, CallOf(kPath, {{"Upper", "case"}})));
  FromClient(HeadersFrame(7, CallOf(kPath, {{":path", "/again"}})));
  EXPECT_THAT(Kinds(TakeToClient()),
              ElementsAre(Pair(frame_type::kRstStream, 3), Pair(frame_type::kRstStream, 5),
                          Pair(frame_type::kRstStream, 7)));
  EXPECT_THAT(TakeToServer(), IsEmpty());
  EXPECT_FALSE(filter_->failed());
  FromClient(HeadersFrame(9, CallOf(kPath, {{"x-bin", "YQ=="}, {"y-bin", "\0raw\xff"s}})));
  EXPECT_EQ(TakeToServer().size(), 1u);
  // Unused bits of the last character must be zero.
  uint32_t stream = 11;
  for (const char* value : {"QR", "YQF=", "YR==", "AAAAQR"}) {
    FromClient(HeadersFrame(stream, CallOf(kPath, {{"x-bin", value}})));
    EXPECT_EQ(ValueOf(RefusalIn(TakeToClient(), stream), "grpc-status"), "3") << value;
    stream += 2;
  }
  FromClient(HeadersFrame(stream, CallOf(kPath, {{"x-bin", "QQ"}, {"y-bin", "YWI="}})));
  EXPECT_EQ(TakeToServer().size(), 1u);
}

TEST_F(ConnectionFilterTest, OwnFramesWaitForTheEndOfTheServers) {
  Begin();
  Open(1);
  const std::string block = EncodeBlock(server_encoder_, {{":status", "200"}, {"x", "y"}});
  const std::string data = MakeFrame(frame_type::kData, 0, 1, "0123456789");
  FromServer(MakeFrame(frame_type::kHeaders, 0, 1, block.substr(0, 1)));
  FromClient(HeadersFrame(3, CallOf(kPath, {{"grpc-encoding", "gzip"}}), true));
  EXPECT_THAT(Kinds(TakeToClient()), ElementsAre(Pair(frame_type::kHeaders, 1)));
  FromServer(MakeFrame(frame_type::kContinuation, frame_flag::kEndHeaders, 1, block.substr(1)));
  EXPECT_THAT(Kinds(TakeToClient()),
              ElementsAre(Pair(frame_type::kContinuation, 1), Pair(frame_type::kHeaders, 3)));
  FromServer(data.substr(0, 12));
  FromClient(HeadersFrame(5, CallOf(kPath, {{"grpc-encoding", "gzip"}}), true));
  FromServer(data.substr(12));
  EXPECT_THAT(Kinds(TakeToClient()),
              ElementsAre(Pair(frame_type::kData, 1), Pair(frame_type::kHeaders, 5)));
}

TEST_F(ConnectionFilterTest, ABodyBeyondTheBudgetEndsItsCallAlone) {
  options_.max_connection_bytes = 1 << 20;
  Begin();
  Open(1);
  Open(3);
  TakeToServer();
  const std::string part = MakeFrame(frame_type::kData, 0, 1, std::string(kMaxFrameBytes, '\x7f'));
  for (int i = 0; i < 100; ++i) FromClient(part);
  EXPECT_LE(charged(), 1 << 20);
  const std::vector<Frame> sent = TakeToServer();
  EXPECT_THAT(Kinds(sent), Contains(Pair(frame_type::kRstStream, 1)).Times(1));
  EXPECT_EQ(Kinds(sent).back(), std::pair(int{frame_type::kSettings}, 0u));
  // gRPC may still send on the stream. The client hears of the end only after those frames.
  const auto refused = [](const std::vector<Frame>& frames) {
    return std::any_of(frames.begin(), frames.end(), [](const Frame& frame) {
      return frame.header.type == frame_type::kHeaders && frame.header.stream == 1;
    });
  };
  EXPECT_FALSE(refused(TakeToClient()));
  FromServer(MakeFrame(frame_type::kSettings, frame_flag::kAck, 0));
  const std::vector<Frame> answer = TakeToClient();
  EXPECT_EQ(ValueOf(RefusalIn(answer, 1), "grpc-status"), "8");
  EXPECT_THAT(Kinds(answer), Not(Contains(Pair(frame_type::kSettings, 0))));
  // Once gRPC has had time to free the body there is room again.
  EXPECT_EQ(filter_->open_calls(), 1u);
  now_ += absl::Seconds(2);
  filter_->Tick(now_, out_);
  EXPECT_LT(charged(), 200 << 10);
  FromClient(MakeFrame(frame_type::kData, frame_flag::kEndStream, 3, GrpcMessage("hello")));
  EXPECT_THAT(Kinds(TakeToServer()), ElementsAre(Pair(frame_type::kData, 3)));
}

// The charges of several connections fill the total, although none has reached its own limit.
TEST_F(ConnectionFilterTest, SeveralConnectionsShareTheTotal) {
  using Result = ConnectionBudget::Result;
  Begin();
  const int64_t connection = charged();
  const int64_t half = total_.limit() / 2;
  auto first = std::make_unique<ConnectionBudget>(half + 1, total_);
  ConnectionBudget second(half + 1, total_);
  EXPECT_EQ(first->Charge(half + 2), Result::kConnectionFull);
  EXPECT_EQ(first->Charge(half), Result::kCharged);
  EXPECT_EQ(second.Charge(half), Result::kTotalFull);
  EXPECT_EQ(charged(), connection + half) << "a refused charge leaves nothing behind";
  // The rest, but for the charge of an empty DATA frame.
  EXPECT_EQ(second.Charge(half - connection - 1024), Result::kCharged);

  Open(1);
  const Headers refusal = RefusalIn(TakeToClient(), 1);
  EXPECT_EQ(ValueOf(refusal, "grpc-status"), "8");
  EXPECT_THAT(ValueOf(refusal, "grpc-message"), ::testing::HasSubstr("--max-transport-bytes"));
  EXPECT_THAT(TakeToServer(), IsEmpty());
  EXPECT_EQ(filter_->open_calls(), 0u);
  ConnectionFilter late(options_, total_, nullptr);
  EXPECT_FALSE(late.ChargeConnection());

  first.reset();
  EXPECT_TRUE(late.ChargeConnection());
  Open(3);
  EXPECT_THAT(Kinds(TakeToServer()), ElementsAre(Pair(frame_type::kHeaders, 3)));

  // A body that is under way when the total is full ends its call alone, too.
  ConnectionBudget third(half, total_);
  EXPECT_EQ(third.Charge(total_.limit() - charged() - 1024), Result::kCharged);
  FromClient(MakeFrame(frame_type::kData, 0, 3, std::string(100, 'x')));
  FromServer(MakeFrame(frame_type::kSettings, frame_flag::kAck, 0));
  const Headers ended = RefusalIn(TakeToClient(), 3);
  EXPECT_EQ(ValueOf(ended, "grpc-status"), "8");
  EXPECT_THAT(ValueOf(ended, "grpc-message"), ::testing::HasSubstr("--max-transport-bytes"));
  EXPECT_FALSE(filter_->failed());
}

TEST_F(ConnectionFilterTest, AnswersReleaseWhatTheServerHasReadAndNoMore) {
  Begin();
  Open(1);
  const int64_t before = charged();
  const std::string whole = GrpcMessage(std::string(1000, 'x'));
  const std::string begun = GrpcMessage(std::string(9000, 'y')).substr(0, 8000);
  FromClient(MakeFrame(frame_type::kData, 0, 1, whole + begun));
  EXPECT_GE(charged(), before + 9000);
  FromServer(MakeFrame(frame_type::kData, 0, 1, GrpcMessage("yes")));
  EXPECT_EQ(charged(), before + 8000);
  // The server may not have read a message that comes after the first.
  const int64_t kept = charged();
  FromClient(MakeFrame(frame_type::kData, 0, 1, std::string(1005, 'y')));
  FromServer(MakeFrame(frame_type::kData, 0, 1, GrpcMessage("yes")));
  EXPECT_GE(charged(), kept + 1005);
}

TEST_F(ConnectionFilterTest, WholeMessagesThatTheServerMayNotHaveReadStayCharged) {
  Begin();
  Open(1);
  Open(3);
  const int64_t before = charged();
  const std::string message = GrpcMessage(std::string(15000, 'x'));
  FromClient(MakeFrame(frame_type::kData, 0, 3, message));
  for (int i = 0; i < 4; ++i) FromClient(MakeFrame(frame_type::kData, 0, 1, message));
  FromServer(MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders, 3,
                       EncodeBlock(server_encoder_, {{":status", "200"}})));
  FromServer(MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders, 1,
                       EncodeBlock(server_encoder_, {{":status", "200"}})));
  FromServer(MakeFrame(frame_type::kData, 0, 1, "\0"s));
  // The third stream's single message has been read; of the first stream's four messages one may
  // have been.
  EXPECT_GE(charged(), before + 3 * 15000);
  // An endless stream is charged at most the server's window and a little more.
  for (int i = 0; i < 200; ++i) {
    FromClient(MakeFrame(frame_type::kData, 0, 1, message));
    FromServer(MakeFrame(frame_type::kData, 0, 1, GrpcMessage("yes")));
    TakeToServer();
    TakeToClient();
  }
  EXPECT_LE(charged(), before + (160 << 10));
}

// gRPC would take a frame inserted into another frame's payload for body bytes, and the rest of the
// body for a frame.
TEST_F(ConnectionFilterTest, OwnFramesWaitForTheEndOfTheClients) {
  filter_ = std::make_unique<ConnectionFilter>(options_, total_, &progress_);
  FromClient(absl::StrCat(absl::string_view(kPreface.data(), kPreface.size()),
                          MakeFrame(frame_type::kSettings, 0, 0)));
  FromServer(MakeFrame(frame_type::kSettings, frame_flag::kAck, 0));
  Open(1);
  Open(3);
  FromClient(MakeFrame(frame_type::kRstStream, 0, 1, "\0\0\0\x8"s));
  TakeToServer();
  const std::string data = MakeFrame(frame_type::kData, 0, 3, std::string(100, 'z'));
  FromClient(data.substr(0, 50));
  // The server has finished with the reset call. Its connection must now be asked with a fence.
  progress_.sent = progress_.answered = 2;
  filter_->Tick(now_, out_);
  EXPECT_EQ(out_.to_server, data.substr(0, 50));
  FromClient(data.substr(50));
  EXPECT_EQ(out_.to_server, data + MakeFrame(frame_type::kSettings, 0, 0));
}

TEST_F(ConnectionFilterTest, AFenceThatAnotherAsksForWaitsForTheEndOfTheClients) {
  options_.stream_charge = 16 << 10;
  options_.max_connection_bytes = 200 << 10;
  Begin();
  for (const uint32_t stream : {1, 3, 5}) Open(stream);
  const std::string large = std::string(kMaxFrameBytes, '\x7f');
  const auto refuse = [&](uint32_t stream) {
    for (int i = 0; i < 8; ++i) FromClient(MakeFrame(frame_type::kData, 0, stream, large));
  };
  refuse(1);
  // The second refusal comes while the first refusal's fence is under way, so it needs a fence of
  // its own.
  refuse(3);
  TakeToServer();
  now_ += absl::Seconds(5);
  const std::string data = MakeFrame(frame_type::kData, 0, 5, std::string(100, 'z'));
  filter_->Tick(now_, out_);
  FromClient(data.substr(0, 50));
  FromServer(MakeFrame(frame_type::kSettings, frame_flag::kAck, 0));
  FromClient(data.substr(50));
  const std::vector<Frame> sent = TakeToServer();
  for (const Frame& frame : sent) {
    if (frame.header.type != frame_type::kData) continue;
    EXPECT_EQ(frame.payload, std::string(100, 'z'));
  }
  EXPECT_THAT(Kinds(sent), Contains(Pair(frame_type::kSettings, 0)));
}

// Random calls in random pieces, with a budget that refuses some of them and a server that answers
// and ends them at random.
TEST_F(ConnectionFilterTest, TheServerGetsWhatTheClientSentAndNothingElse) {
  options_.max_connection_bytes = 300 << 10;
  options_.max_streams = 6;
  std::minstd_rand random(29);
  const auto below = [&](uint32_t bound) { return static_cast<uint32_t>(random() % bound); };
  for (int round = 0; round < 200; ++round) {
    filter_ = nullptr;
    progress_ = {};
    HeaderEncoder client_encoder;
    filter_ = std::make_unique<ConnectionFilter>(options_, total_, &progress_);
    out_ = {};
    std::string sent(kPreface);
    sent += MakeFrame(frame_type::kSettings, 0, 0);
    uint32_t last = 0;
    for (int i = 0; i < 60; ++i) {
      const uint32_t stream = last == 0 ? 1 : 1 + 2 * below((last + 1) / 2);
      const uint32_t kind = below(10);
      if (last == 0 || kind == 0) {
        last = last == 0 ? 1 : last + 2;
        sent += MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders, last,
                          EncodeBlock(client_encoder, CallOf(kPath)));
      } else if (kind == 1) {
        sent += MakeFrame(frame_type::kRstStream, 0, stream, "\0\0\0\x8"s);
      } else {
        const bool padded = below(4) == 0;
        std::string payload(below(3) == 0 ? below(kMaxFrameBytes - 300) : below(300), '\0');
        for (char& byte : payload) byte = static_cast<char>(random());
        if (padded) {
          payload.insert(0, 1, '\x05');
          payload.append(5, '\0');
        }
        sent += MakeFrame(frame_type::kData, padded ? frame_flag::kPadded : 0, stream, payload);
      }
    }
    size_t taken = 0;
    HeaderEncoder server_encoder;
    for (int i = 0; i < 2000 && taken < sent.size() && !filter_->failed(); ++i) {
      const size_t size =
          std::min<size_t>(sent.size() - taken, 1 + below(below(4) == 0 ? 9000 : 60));
      taken += FromClient(std::string_view(sent).substr(taken, size));
      out_.to_client.clear();
      now_ += absl::Milliseconds(50);
      progress_.sent = ++progress_.answered;
      const uint32_t stream = 1 + 2 * below((last + 1) / 2);
      if (below(2) == 0) FromServer(MakeFrame(frame_type::kSettings, frame_flag::kAck, 0));
      if (below(8) == 0) FromServer(MakeFrame(frame_type::kRstStream, 0, stream, "\0\0\0\x8"s));
      if (below(8) == 0) {
        FromServer(MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders, stream,
                             EncodeBlock(server_encoder, {{":status", "200"}})));
      }
      if (below(4) == 0) filter_->Tick(now_, out_);
    }
    ASSERT_EQ(FaultInRelayed(std::string_view(sent).substr(0, taken), out_.to_server), "") << round;
  }
}

// The parameter: the server sends on the call only after the client has its answer.
class RefusedCallTest : public ConnectionFilterTest, public ::testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(BeforeAndAfter, RefusedCallTest, ::testing::Bool());

// The filter drops what the server sends on a call that the filter refused: the client has the
// filter's answer, or will get it.
TEST_P(RefusedCallTest, IsAnsweredOnce) {
  const bool late = GetParam();
  options_.max_connection_bytes = 200 << 10;
  Begin();
  const auto from_server = [&](uint32_t stream, const Headers& headers) {
    FromServer(MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders | frame_flag::kEndStream,
                         stream, EncodeBlock(server_encoder_, headers)));
  };
  Open(1, true);
  // The very first block says that there is no table.
  from_server(1, {{":status", "200"}});
  Open(3);
  TakeToClient();
  const std::string part = MakeFrame(frame_type::kData, 0, 3, std::string(kMaxFrameBytes, '\x7f'));
  for (int i = 0; i < 8; ++i) FromClient(part);
  const auto end_by_server = [&] {
    from_server(3, {{":status", "200"}, {"grpc-status", "1"}});
    FromServer(MakeFrame(frame_type::kRstStream, 0, 3, "\0\0\0\0"s));
  };
  TakeToClient();
  if (!late) end_by_server();
  EXPECT_THAT(Kinds(TakeToClient()), IsEmpty());
  FromServer(MakeFrame(frame_type::kSettings, frame_flag::kAck, 0));
  const std::vector<Frame> answer = TakeToClient();
  EXPECT_THAT(Kinds(answer),
              ElementsAre(Pair(frame_type::kHeaders, 3), Pair(frame_type::kRstStream, 3)));
  EXPECT_EQ(ValueOf(RefusalIn(answer, 3), "grpc-status"), "8");
  TakeToServer();
  if (late) end_by_server();
  EXPECT_THAT(Kinds(TakeToClient()), IsEmpty());
  // The server gets its credit back: it may send as much on the connection as before.
  FromServer(MakeFrame(frame_type::kData, 0, 3, std::string(300, 'x')));
  EXPECT_THAT(Kinds(TakeToClient()), IsEmpty());
  const std::vector<Frame> credit = TakeToServer();
  ASSERT_THAT(Kinds(credit), ElementsAre(Pair(frame_type::kWindowUpdate, 0)));
  EXPECT_EQ(credit[0].payload, "\0\0\x1\x2c"s);
}

TEST_F(ConnectionFilterTest, TheServersEncoderHasNoTable) {
  Begin();
  std::string settings;
  AppendSetting(setting::kHeaderTableSize, 4096, settings);
  AppendSetting(4, 70000, settings);
  AppendSetting(setting::kHeaderTableSize, 8192, settings);
  FromClient(MakeFrame(frame_type::kSettings, 0, 0, settings) +
             MakeFrame(frame_type::kSettings, frame_flag::kAck, 0));
  const std::vector<Frame> told = TakeToServer();
  ASSERT_EQ(told.size(), 2u);
  settings.clear();
  AppendSetting(setting::kHeaderTableSize, 0, settings);
  AppendSetting(4, 70000, settings);
  EXPECT_EQ(told[0].payload, settings);
  EXPECT_EQ(told[1].payload, "");
  EXPECT_EQ(told[1].header.flags, frame_flag::kAck);
}

TEST_F(ConnectionFilterTest, CallsThatAnybodyMayOpenDoNotMakeAConnectionOneInUse) {
  Begin();
  FromClient(HeadersFrame(1, CallOf("/grpc.health.v1.Health/Watch")) +
             MakeFrame(frame_type::kData, frame_flag::kEndStream, 1, GrpcMessage("")));
  Open(3);
  FromClient(
      MakeFrame(frame_type::kData, 0, 3, GrpcMessage("a body that does not end").substr(0, 9)));
  EXPECT_EQ(filter_->open_calls(), 2u);
  EXPECT_EQ(filter_->calls_in_use(), 0u);
  Open(5);
  FromClient(MakeFrame(frame_type::kData, 0, 5, GrpcMessage("whole") + GrpcMessage("again")));
  EXPECT_EQ(filter_->calls_in_use(), 1u);
  FromClient(MakeFrame(frame_type::kRstStream, 0, 5, "\0\0\0\x8"s) +
             MakeFrame(frame_type::kRstStream, 0, 3, "\0\0\0\x8"s));
  EXPECT_EQ(filter_->calls_in_use(), 0u);
}

TEST_F(ConnectionFilterTest, NamesOfTheCertificateAreChargedWithEachCall) {
  Begin();
  Open(1);
  const int64_t without = charged() - options_.connection_charge;
  filter_ = nullptr;
  client_encoder_ = HeaderEncoder();
  Begin({std::string(10000, 'n')});
  Open(1);
  EXPECT_GE(charged() - options_.connection_charge, without + 2 * 10000);
}

TEST_F(ConnectionFilterTest, ResetCallsAreChargedUntilTheirMemoryIsFree) {
  options_.max_connection_bytes = 6 << 20;
  Begin();
  size_t forwarded = 0;
  for (uint32_t stream = 1; stream < 4000; stream += 2) {
    if (stream < 3999) out_.to_client.clear();
    FromClient(HeadersFrame(stream, CallOf(kPath)) +
               MakeFrame(frame_type::kRstStream, 0, stream, "\0\0\0\x8"s));
  }
  for (const Frame& frame : TakeToServer()) forwarded += frame.header.type == frame_type::kHeaders;
  EXPECT_GT(forwarded, 50u);
  EXPECT_LT(forwarded, 150u);
  EXPECT_EQ(filter_->open_calls(), 0u);
  EXPECT_FALSE(filter_->failed());
  const std::vector<Frame> answers = TakeToClient();
  EXPECT_EQ(ValueOf(RefusalIn(answers, 3999), "grpc-status"), "8");
  now_ += absl::Seconds(2);
  Open(4001);
  EXPECT_EQ(TakeToServer().size(), 1u);
}

TEST_F(ConnectionFilterTest, AClientThatResetsIsReadNoFasterThanTheServerGoesOn) {
  filter_ = std::make_unique<ConnectionFilter>(options_, total_, &progress_);
  FromClient(absl::StrCat(absl::string_view(kPreface.data(), kPreface.size()),
                          MakeFrame(frame_type::kSettings, 0, 0)));
  uint32_t stream = 1;
  const auto reset_some = [&] {
    int resets = 0;
    for (; filter_->accepting() && resets < 1000; ++resets, stream += 2) {
      FromClient(HeadersFrame(stream, CallOf(kPath)) +
                 MakeFrame(frame_type::kRstStream, 0, stream, "\0\0\0\x8"s));
    }
    return resets;
  };
  EXPECT_EQ(reset_some(), 128);
  now_ += absl::Seconds(10);
  filter_->Tick(now_, out_);
  EXPECT_FALSE(filter_->accepting()) << "time does not tell where the server does";
  progress_.sent = progress_.answered = 2;
  TakeToServer();
  filter_->Tick(now_, out_);
  EXPECT_FALSE(filter_->accepting()) << "the connection has its own queue";
  EXPECT_THAT(Kinds(TakeToServer()), ElementsAre(Pair(frame_type::kSettings, 0)));
  // Acknowledges the client's SETTINGS, then the fence.
  FromServer(MakeFrame(frame_type::kSettings, frame_flag::kAck, 0));
  FromServer(MakeFrame(frame_type::kSettings, frame_flag::kAck, 0));
  EXPECT_EQ(progress_.unconfirmed, 0);
  // If many resets are under way in all, each client may have only a few.
  progress_.unconfirmed = 10000;
  EXPECT_EQ(reset_some(), 2);
  filter_ = nullptr;
  EXPECT_EQ(progress_.unconfirmed, 10000);
}

TEST_F(ConnectionFilterTest, ManyCallsThatHaveEndedAreChargedUntilTheirMemoryIsFree) {
  filter_ = std::make_unique<ConnectionFilter>(options_, total_, &progress_);
  FromClient(absl::StrCat(absl::string_view(kPreface.data(), kPreface.size()),
                          MakeFrame(frame_type::kSettings, 0, 0)));
  const int64_t idle = charged();
  const int few = static_cast<int>(ServerProgress::kFewEnded);
  for (int i = 0; i < few + 3; ++i) {
    const auto stream = static_cast<uint32_t>(2 * i + 1);
    Open(stream, /*end_stream=*/true);
    FromServer(MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders | frame_flag::kEndStream,
                         stream, "x"));
  }
  EXPECT_EQ(filter_->open_calls(), 0u);
  EXPECT_GE(charged(), idle + 3 * options_.stream_charge);
  EXPECT_LT(charged(), idle + 4 * options_.stream_charge);
  EXPECT_TRUE(filter_->lingers());
  EXPECT_TRUE(filter_->accepting()) << "nobody waits for them";
  EXPECT_TRUE(progress_.MustProbe());
  // More of them than a few keep the client waiting.
  uint32_t stream = 2 * few + 7;
  for (; filter_->accepting() && stream < 1000; stream += 2) {
    Open(stream, /*end_stream=*/true);
    FromServer(MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders | frame_flag::kEndStream,
                         stream, "x"));
  }
  EXPECT_LT(stream, 300u);
  progress_.sent = progress_.answered = 1;
  filter_->Tick(now_, out_);
  EXPECT_GT(charged(), idle) << "some threads may overtake the first answer";
  progress_.sent = progress_.answered = 2;
  progress_.ended_and_freed = progress_.ended;
  filter_->Tick(now_, out_);
  EXPECT_EQ(charged(), idle);
  EXPECT_FALSE(progress_.MustProbe());
}

TEST_F(ConnectionFilterTest, AClientThatDoesNotReadSlowsNoOther) {
  filter_ = std::make_unique<ConnectionFilter>(options_, total_, &progress_);
  FromClient(absl::StrCat(absl::string_view(kPreface.data(), kPreface.size()),
                          MakeFrame(frame_type::kSettings, 0, 0)));
  for (uint32_t stream = 1; filter_->accepting(); stream += 2) {
    FromClient(HeadersFrame(stream, CallOf(kPath)) +
               MakeFrame(frame_type::kRstStream, 0, stream, "\0\0\0\x8"s));
  }
  const int64_t held = charged();
  progress_.sent = progress_.answered = 2;
  filter_->Tick(now_, out_);
  EXPECT_EQ(progress_.unconfirmed, 128);
  // The server's acknowledgement waits behind bytes that the client does not read.
  now_ += absl::Seconds(2);
  filter_->Tick(now_, out_);
  EXPECT_EQ(progress_.unconfirmed, 0);
  EXPECT_FALSE(filter_->accepting());
  EXPECT_EQ(charged(), held);
  filter_ = nullptr;
  EXPECT_EQ(progress_.unconfirmed, 0);
}

TEST_F(ConnectionFilterTest, TheServersSettingsSayTheGuardsLimits) {
  options_.max_streams = 7;
  Begin();
  std::string settings;
  const auto add = [&](uint16_t id, uint32_t value) {
    settings.push_back(static_cast<char>(id >> 8));
    settings.push_back(static_cast<char>(id));
    AppendBigEndian32(value, settings);
  };
  add(setting::kMaxConcurrentStreams, 0x7fffffff);
  add(4, 65535);
  add(setting::kMaxFrameSize, 4 << 20);
  add(setting::kMaxHeaderListSize, 1 << 20);
  FromServer(MakeFrame(frame_type::kSettings, 0, 0, settings));
  const std::vector<Frame> told = TakeToClient();
  ASSERT_EQ(told.size(), 1u);
  settings.clear();
  add(setting::kMaxConcurrentStreams, 7);
  add(4, 65535);
  add(setting::kMaxFrameSize, kMaxFrameBytes);
  add(setting::kMaxHeaderListSize, 16384);
  EXPECT_EQ(told[0].payload, settings);
}

TEST_F(ConnectionFilterTest, CallsBeyondTheLimitAreRefusedForAnotherTry) {
  options_.max_streams = 2;
  Begin();
  Open(1);
  Open(3);
  Open(5);
  const std::vector<Frame> answer = TakeToClient();
  ASSERT_THAT(Kinds(answer), ElementsAre(Pair(frame_type::kRstStream, 5)));
  EXPECT_EQ(answer[0].payload, "\0\0\0\x7"s);
  FromClient(MakeFrame(frame_type::kRstStream, 0, 1, "\0\0\0\x8"s));
  Open(7);
  EXPECT_THAT(Kinds(TakeToClient()), IsEmpty());
}

TEST_F(ConnectionFilterTest, AClientThatLeavesAnswersUnreadIsNotRead) {
  Begin();
  const std::string ping = MakeFrame(frame_type::kPing, 0, 0, "12345678");
  std::string flood;
  for (int i = 0; i < 1000; ++i) flood += ping;
  const size_t taken = FromClient(flood);
  EXPECT_LT(taken, 50 * ping.size());
  EXPECT_FALSE(filter_->accepting());
  EXPECT_EQ(FromClient(std::string_view(flood).substr(taken)), 0u);
  FromServer(MakeFrame(frame_type::kPing, frame_flag::kAck, 0, "12345678"));
  EXPECT_TRUE(filter_->accepting());
}

TEST_F(ConnectionFilterTest, PaddingAndPrioritiesAreLeftOut) {
  Begin();
  const std::string block = EncodeBlock(client_encoder_, CallOf(kPath));
  FromClient(MakeFrame(frame_type::kHeaders,
                       frame_flag::kEndHeaders | frame_flag::kPadded | frame_flag::kPriority, 1,
                       absl::StrCat("\x03", "\0\0\0\0\x10"s, block, "\0\0\0"s)));
  FromClient(MakeFrame(frame_type::kData, frame_flag::kPadded | frame_flag::kEndStream, 1,
                       absl::StrCat("\x02", GrpcMessage("hello"), "\0\0"s)));
  const std::vector<Frame> sent = TakeToServer();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(AsServer(sent[0]), CallOf(kPath));
  EXPECT_EQ(sent[1].payload, GrpcMessage("hello"));
  EXPECT_EQ(sent[1].header.flags, frame_flag::kEndStream);
  const std::vector<Frame> credit = TakeToClient();
  ASSERT_THAT(Kinds(credit), ElementsAre(Pair(frame_type::kWindowUpdate, 1)));
  EXPECT_EQ(credit[0].payload, "\0\0\0\x3"s);
}

TEST_F(ConnectionFilterTest, TrailersOfAClientGoOn) {
  Begin();
  Open(1);
  FromClient(HeadersFrame(1, {{"x-end", "yes"}}, true));
  const std::vector<Frame> sent = TakeToServer();
  ASSERT_EQ(sent.size(), 2u);
  AsServer(sent[0]);
  EXPECT_EQ(AsServer(sent[1]), (Headers{{"x-end", "yes"}}));
  EXPECT_EQ(sent[1].header.flags, frame_flag::kEndStream | frame_flag::kEndHeaders);
}

TEST_F(ConnectionFilterTest, MalformedTrailersEndTheirCallAlone) {
  Begin();
  const Headers cases[] = {
      {{":path", "/x"}}, {{"x-\xff", "v"}}, {{"x-a", "line\n"}}, {{"x-bin", "!!"}}};
  uint32_t stream = 1;
  // The server acknowledges the client's SETTINGS first.
  FromServer(MakeFrame(frame_type::kSettings, frame_flag::kAck, 0));
  for (const Headers& trailers : cases) {
    Open(stream);
    TakeToClient();
    FromClient(HeadersFrame(stream, trailers, true));
    FromServer(MakeFrame(frame_type::kSettings, frame_flag::kAck, 0));
    const Headers refusal = RefusalIn(TakeToClient(), stream);
    EXPECT_EQ(ValueOf(refusal, "grpc-status"), "3");
    EXPECT_EQ(ValueOf(refusal, "grpc-message").find('\xff'), std::string::npos);
    EXPECT_FALSE(filter_->failed());
    stream += 2;
  }
  EXPECT_EQ(filter_->open_calls(), 0u);
}

TEST_F(ConnectionFilterTest, TheFirstBlockHasATableSizeUpdate) {
  Begin();
  std::string settings("\0\x01", 2);
  AppendBigEndian32(100, settings);
  FromClient(MakeFrame(frame_type::kSettings, 0, 0, settings));
  FromClient(HeadersFrame(1, CallOf(kPath, {{"grpc-encoding", "gzip"}})));
  const std::vector<Frame> answer = TakeToClient();
  ASSERT_FALSE(answer.empty());
  // A table size update: 001, then a size of 0 in five bits. It is sent once.
  EXPECT_EQ(answer[0].payload.substr(0, 2), "\x20\x88");
  FromClient(HeadersFrame(3, CallOf(kPath, {{"grpc-encoding", "gzip"}})));
  EXPECT_EQ(TakeToClient().at(0).payload.front(), '\x88');
}

// gRPC's clients send RST_STREAM for a call that is cancelled before its headers have left.
TEST_F(ConnectionFilterTest, AResetBeforeHeadersEndsNothing) {
  Begin();
  Open(1);
  EXPECT_THAT(Kinds(TakeToServer()), ElementsAre(Pair(frame_type::kHeaders, 1)));
  FromClient(MakeFrame(frame_type::kRstStream, 0, 3, "1234"));
  EXPECT_FALSE(filter_->failed());
  EXPECT_THAT(Kinds(TakeToServer()), IsEmpty());
  Open(5);
  EXPECT_THAT(Kinds(TakeToServer()), ElementsAre(Pair(frame_type::kHeaders, 5)));
  EXPECT_EQ(filter_->open_calls(), 2u);
}

TEST_F(ConnectionFilterTest, BytesThatAreNotHttp2EndTheConnection) {
  const std::string settings = MakeFrame(frame_type::kSettings, 0, 0);
  const struct {
    std::string name;
    std::string bytes;
  } cases[] = {
      {"push promise", MakeFrame(frame_type::kPushPromise, frame_flag::kEndHeaders, 1, "1234")},
      {"even stream", MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders, 2, "\x83")},
      {"stream 0", MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders, 0, "\x83")},
      {"data before headers", MakeFrame(frame_type::kData, 0, 1, "x")},
      {"continuation alone", MakeFrame(frame_type::kContinuation, 0, 1, "x")},
      {"frame between", MakeFrame(frame_type::kHeaders, 0, 1, "\x83") + settings},
      {"ping of 7 bytes", MakeFrame(frame_type::kPing, 0, 0, "1234567")},
      {"settings of 5 bytes", MakeFrame(frame_type::kSettings, 0, 0, "12345")},
      {"65 settings", MakeFrame(frame_type::kSettings, 0, 0, std::string(65 * 6, '\0'))},
      {"window update of 3 bytes", MakeFrame(frame_type::kWindowUpdate, 0, 0, "123")},
      {"goaway of 7 bytes", MakeFrame(frame_type::kGoaway, 0, 0, "1234567")},
      {"too large", MakeFrame(frame_type::kData, 0, 1, std::string(kMaxFrameBytes + 1, 'x'))},
      {"no hpack",
       MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders, 1, "\xff\xff\xff\xff\xff\xff")},
      {"more padding than bytes",
       MakeFrame(frame_type::kHeaders, frame_flag::kEndHeaders | frame_flag::kPadded, 1,
                 "\x09\x83")},
  };
  for (const auto& [name, bytes] : cases) {
    Begin();
    FromClient(bytes);
    EXPECT_TRUE(filter_->failed()) << name;
    EXPECT_THAT(Kinds(TakeToClient()), ElementsAre(Pair(frame_type::kGoaway, 0))) << name;
    filter_ = nullptr;
    EXPECT_EQ(charged(), 0) << name;
  }
}

TEST_F(ConnectionFilterTest, AConnectionWithoutAPrefaceIsNotAnswered) {
  filter_ = std::make_unique<ConnectionFilter>(options_, total_, nullptr);
  FromClient("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(filter_->failed());
  EXPECT_EQ(out_.to_client, "");
  filter_ = std::make_unique<ConnectionFilter>(options_, total_, nullptr);
  FromClient(absl::StrCat(absl::string_view(kPreface.data(), kPreface.size()),
                          MakeFrame(frame_type::kPing, 0, 0, "12345678")));
  EXPECT_TRUE(filter_->failed());
}

}  // namespace
}  // namespace orcd::guard
