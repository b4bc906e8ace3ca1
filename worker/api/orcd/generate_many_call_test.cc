#include "worker/api/orcd/generate_many_call.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "orcd/v1/worker.grpc.pb.h"
#include "testing/event.h"
#include "testing/eventually.h"
#include "worker/api/orcd/worker_service.h"
#include "worker/host/load_for_test.h"
#include "worker/host/nano_model_for_test.h"
#include "worker/observe/metrics.h"
#include "worker/observe/telemetry.h"
#include "worker/server.h"
#include "worker/stream/blocked_pool_for_test.h"

namespace orcd {
namespace {

ModelHostOptions Options(const std::string& model_dir, absl::Duration step_time) {
  ModelHostOptions options = NullHostOptions(model_dir, step_time);
  options.load.backend.max_seqs = 8;
  options.load.backend.block_tokens = 4;
  options.load.engine.max_waiting = 8;
  return options;
}

// Messages received about one request.
struct Received {
  int started = 0;
  std::vector<uint32_t> ids;
  std::optional<v1::GenerateEnd> end;
  // 1: found; 0: not found.
  std::vector<bool> cancelled;

  grpc::StatusCode code() const { return static_cast<grpc::StatusCode>(end->status().code()); }
  std::string reason() const {
    google::rpc::ErrorInfo info;
    for (const auto& any : end->status().details()) any.UnpackTo(&info);
    return info.reason();
  }
};

class GenerateManyTest : public ::testing::Test {
 protected:
  explicit GenerateManyTest(const MultiplexedCallLimits& limits = {},
                            absl::Duration step_time = absl::ZeroDuration())
      : host_(Options(dir_.path(), step_time)),
        service_(host_, log_, {.limits = {}, .many_limits = limits, .telemetry = &telemetry_}) {
    LoadNanoModel(host_);
    auto server = Server::Start({.listen = "127.0.0.1:0"}, {&service_});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::Worker::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  ~GenerateManyTest() override { server_->Stop(absl::Seconds(5)); }

  // One GenerateMany call and the answers received so far.
  struct Call {
    explicit Call(v1::Worker::Stub& stub) : stream(stub.GenerateMany(&context)) {}

    static v1::GenerateManyRequest Message(const v1::GenerateRequest& request,
                                           absl::Duration timeout = absl::Seconds(60)) {
      v1::GenerateManyRequest message;
      *message.mutable_generate() = request;
      message.mutable_timeout()->set_nanos(
          static_cast<int32_t>(absl::ToInt64Nanoseconds(timeout % absl::Seconds(1))));
      message.mutable_timeout()->set_seconds(absl::ToInt64Seconds(timeout));
      return message;
    }
    void Generate(const v1::GenerateRequest& request, absl::Duration timeout = absl::Seconds(60)) {
      EXPECT_TRUE(stream->Write(Message(request, timeout)));
    }
    void Cancel(const std::string& id) {
      v1::GenerateManyRequest message;
      message.mutable_cancel()->set_request_id(id);
      EXPECT_TRUE(stream->Write(message));
    }
    // Reads one message; returns false at the end of the call.
    bool Read() {
      v1::GenerateManyResponse response;
      if (!stream->Read(&response)) return false;
      EXPECT_GT(response.events_size(), 0);
      most_events = std::max(most_events, response.events_size());
      most_bytes = std::max(most_bytes, response.ByteSizeLong());
      for (const v1::GenerateEvent& event : response.events()) {
        Received& received = by_id[event.request_id()];
        if (event.has_cancelled()) {
          received.cancelled.push_back(event.cancelled().found());
          continue;
        }
        EXPECT_FALSE(received.end) << event.request_id() << " went on after its end";
        if (event.has_started()) {
          EXPECT_EQ(received.started++, 0);
          EXPECT_EQ(event.started().request_id(), event.request_id());
        } else if (event.has_delta()) {
          EXPECT_EQ(received.started, 1);
          received.ids.insert(received.ids.end(), event.delta().token_ids().begin(),
                              event.delta().token_ids().end());
        } else {
          EXPECT_TRUE(event.has_end());
          EXPECT_EQ(event.end().has_finished(), received.started == 1);
          received.end = event.end();
        }
      }
      return true;
    }
    void ReadUntilEnd(const std::string& id) {
      while (!by_id[id].end) ASSERT_TRUE(Read()) << "the call ended before " << id;
    }
    grpc::Status Finish() {
      stream->WritesDone();
      while (Read()) {
      }
      return stream->Finish();
    }

    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::GenerateManyRequest, v1::GenerateManyResponse>>
        stream;
    std::map<std::string, Received> by_id;
    int most_events = 0;
    size_t most_bytes = 0;
  };

  static v1::GenerateRequest Request(const std::string& id, uint32_t tokens, uint64_t seed = 1) {
    v1::GenerateRequest request;
    request.set_request_id(id);
    for (uint32_t token : {3, 1, 4, 1, 5}) request.mutable_tokens()->add_ids(token);
    request.mutable_sampling()->set_seed(seed);
    request.mutable_stop()->set_ignore_eog(true);
    if (tokens > 0) request.mutable_stop()->set_max_tokens(tokens);
    return request;
  }

  // Returns the token ids that a Generate call of its own returns for the request.
  std::vector<uint32_t> Alone(v1::GenerateRequest request) {
    request.clear_request_id();
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, request);
    std::vector<uint32_t> ids;
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
      ids.insert(ids.end(), response.delta().token_ids().begin(),
                 response.delta().token_ids().end());
    }
    EXPECT_TRUE(reader->Finish().ok());
    return ids;
  }

  // Number of request ends that the metrics have counted.
  int CountedEnds() {
    double count = 0;
    for (const auto& family : metrics_.registry()->Collect()) {
      if (family.name != "orcd_requests_total") continue;
      for (const auto& metric : family.metric) count += metric.counter.value;
    }
    return static_cast<int>(count);
  }

  uint64_t CountedReleases() {
    uint64_t count = 0;
    for (const auto& family : metrics_.registry()->Collect()) {
      if (family.name != "orcd_cancel_to_release_seconds") continue;
      for (const auto& metric : family.metric) count += metric.histogram.sample_count;
    }
    return count;
  }

  bool Quiet() {
    const v1::WorkerStatus status = host_.Status();
    return status.queue().running_requests() + status.queue().waiting_requests() == 0 &&
           status.kv_blocks().free() == status.kv_blocks().total();
  }

  NanoModelDir dir_;
  const Logger log_{LogFormat::kText, LogLevel::kError};
  Metrics metrics_;
  Telemetry telemetry_{metrics_, nullptr, 0};
  ModelHost host_;
  WorkerService service_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Worker::Stub> stub_;
};

TEST_F(GenerateManyTest, EachRequestGetsItsOwnEvents) {
  Call call(*stub_);
  for (int i = 0; i < 12; ++i) call.Generate(Request(absl::StrCat("r", i), 20 + i, i));
  EXPECT_TRUE(call.Finish().ok());
  ASSERT_EQ(call.by_id.size(), 12u);
  for (int i = 0; i < 12; ++i) {
    const Received& received = call.by_id[absl::StrCat("r", i)];
    ASSERT_TRUE(received.end) << i;
    EXPECT_EQ(received.code(), grpc::StatusCode::OK);
    EXPECT_EQ(received.end->finished().reason(), v1::FINISH_REASON_MAX_TOKENS);
    EXPECT_EQ(received.ids, Alone(Request("", 20 + i, i))) << i;
  }
  EXPECT_TRUE(Eventually([&] { return Quiet(); }));
}

TEST_F(GenerateManyTest, AnotherCallCancelsWhatNobodyHasReadYet) {
  BlockedPool blocked(host_.threads().work);
  Call call(*stub_);
  call.Generate(Request("unread", 0));
  std::future<grpc::Status> alone = std::async(std::launch::async, [&] {
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, Request("alone", 0));
    v1::GenerateResponse response;
    EXPECT_FALSE(reader->Read(&response));
    return reader->Finish();
  });
  for (const char* id : {"unread", "alone"}) {
    EXPECT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      v1::CancelRequest request;
      v1::CancelResponse response;
      request.set_request_id(id);
      EXPECT_TRUE(stub_->Cancel(&context, request, &response).ok());
      return response.found();
    })) << id;
  }
  blocked.Release();
  EXPECT_EQ(alone.get().error_code(), grpc::StatusCode::CANCELLED);
  call.ReadUntilEnd("unread");
  EXPECT_EQ(call.by_id["unread"].code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(call.by_id["unread"].reason(), "CANCELLED");
  EXPECT_TRUE(call.by_id["unread"].ids.empty());
  // The id is free, and nothing is left of the cancel.
  call.Generate(Request("alone", 3));
  call.ReadUntilEnd("alone");
  EXPECT_EQ(call.by_id["alone"].code(), grpc::StatusCode::OK);
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_TRUE(Eventually([&] { return Quiet(); }));
}

TEST_F(GenerateManyTest, TheCallGoesOnAsLongAsItsClientLikes) {
  Call call(*stub_);
  for (int i = 0; i < 3; ++i) {
    const std::string id = absl::StrCat("r", i);
    call.Generate(Request(id, 5));
    call.ReadUntilEnd(id);
    EXPECT_EQ(call.by_id[id].ids.size(), 5u);
  }
  EXPECT_TRUE(call.Finish().ok());
}

TEST_F(GenerateManyTest, ARefusedRequestEndsAlone) {
  Call call(*stub_);
  call.Generate(Request("good", 30));
  v1::GenerateRequest hot = Request("hot", 3);
  hot.mutable_sampling()->set_temperature(-1);
  call.Generate(hot);
  call.Generate(Request("", 3));
  const std::pair<const char*, std::pair<int64_t, int32_t>> bad_timeouts[] = {
      {"mixed", {1, -5}}, {"nanos", {0, 2'000'000'000}}, {"negative", {-1, 0}}};
  for (const auto& [id, timeout] : bad_timeouts) {
    v1::GenerateManyRequest message = Call::Message(Request(id, 3));
    message.mutable_timeout()->set_seconds(timeout.first);
    message.mutable_timeout()->set_nanos(timeout.second);
    EXPECT_TRUE(call.stream->Write(message));
    call.ReadUntilEnd(id);
    EXPECT_EQ(call.by_id[id].code(), grpc::StatusCode::INVALID_ARGUMENT) << id;
    EXPECT_EQ(call.by_id[id].reason(), "INVALID_FIELD") << id;
  }
  call.ReadUntilEnd("hot");
  call.ReadUntilEnd("");
  EXPECT_EQ(call.by_id["hot"].code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(call.by_id["hot"].reason(), "INVALID_FIELD");
  EXPECT_EQ(call.by_id[""].code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(call.by_id["good"].ids.size(), 30u);
}

TEST_F(GenerateManyTest, APromptThatCannotFitIsRefusedByItsBytes) {
  Call call(*stub_);
  call.Generate(Request("good", 30));
  v1::GenerateRequest large;
  large.set_request_id("large");
  large.mutable_text()->set_text(std::string(4'000'000, 'a'));
  call.Generate(large);
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(call.by_id["large"].code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(call.by_id["large"].reason(), "PROMPT_TOO_LONG");
  // A prompt that was encoded has a known number of tokens.
  EXPECT_THAT(call.by_id["large"].end->status().message(), ::testing::HasSubstr("tokens or more"));
  EXPECT_EQ(call.by_id["good"].ids.size(), 30u);
}

TEST_F(GenerateManyTest, AMessageThatAsksNothingEndsTheCall) {
  Call call(*stub_);
  call.Generate(Request("endless", 0));
  EXPECT_TRUE(call.stream->Write(v1::GenerateManyRequest()));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(Eventually([&] { return Quiet(); }));
}

TEST_F(GenerateManyTest, TwoSidesThatGoOnAtOnceLoseNothing) {
  Call call(*stub_);
  std::thread writer([&] {
    for (int i = 0; i < 500; ++i) call.Generate(Request(absl::StrCat("r", i), 3, i));
    call.stream->WritesDone();
  });
  while (call.Read()) {
  }
  writer.join();
  EXPECT_TRUE(call.stream->Finish().ok());
  ASSERT_EQ(call.by_id.size(), 500u);
  int complete = 0;
  for (const auto& [id, received] : call.by_id) {
    ASSERT_TRUE(received.end) << id;
    if (received.end->has_status()) {
      EXPECT_EQ(received.reason(), "QUEUE_FULL") << id;
      EXPECT_EQ(received.ids.size(), 0u);
    } else {
      EXPECT_EQ(received.ids.size(), 3u) << id;
      ++complete;
    }
  }
  EXPECT_GE(complete, 16);
}

class SmallMessagesTest : public GenerateManyTest {
 protected:
  SmallMessagesTest() : GenerateManyTest({.max_message_bytes = 8 << 10}, absl::Milliseconds(1)) {}
};

TEST_F(SmallMessagesTest, OutputPendingForLongComesInPieces) {
  Call call(*stub_);
  Event release;
  host_.threads().writes.Do([&] { EXPECT_TRUE(release.WaitFor(absl::Seconds(20))); });
  v1::GenerateRequest request = Request("r", 200);
  request.set_logprobs(20);
  call.Generate(request);
  ASSERT_TRUE(Eventually([&] { return host_.Status().queue().finished_requests() == 1; }));
  release.Notify();
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(call.by_id["r"].code(), grpc::StatusCode::OK);
  EXPECT_LT(call.most_bytes, 20u << 10);
  EXPECT_EQ(call.by_id["r"].ids, Alone(Request("", 200)));
}

class SlowGenerateManyTest : public GenerateManyTest {
 protected:
  SlowGenerateManyTest() : GenerateManyTest({}, absl::Milliseconds(2)) {}
};

TEST_F(SlowGenerateManyTest, EventsOfAStepShareAMessage) {
  Call call(*stub_);
  for (int i = 0; i < 8; ++i) call.Generate(Request(absl::StrCat("r", i), 30, i));
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_GE(call.most_events, 8);
}

// The engine thread neither logs nor counts: ReportRequestEnd does both.
TEST_F(SlowGenerateManyTest, TheEnginesThreadLeavesWritingAndCountingToTheQueue) {
  Call call(*stub_);
  call.Generate(Request("first", 3));
  call.ReadUntilEnd("first");
  EXPECT_EQ(CountedEnds(), 1);
  Event release;
  host_.threads().writes.Do([&] { EXPECT_TRUE(release.WaitFor(absl::Seconds(20))); });
  // Long enough for the pool's thread, which writes too, to finish with the message it read.
  call.Generate(Request("second", 300));
  ASSERT_TRUE(Eventually([&] { return host_.Status().queue().finished_requests() == 2; }));
  auto reading = std::async(std::launch::async, [&] { call.ReadUntilEnd("second"); });
  EXPECT_EQ(reading.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  EXPECT_EQ(CountedEnds(), 1);
  release.Notify();
  reading.get();
  EXPECT_EQ(CountedEnds(), 2);
  EXPECT_EQ(call.by_id["second"].ids.size(), 300u);
  EXPECT_TRUE(call.Finish().ok());
}

TEST_F(SlowGenerateManyTest, TheEnginesThreadLeavesReleasesToBeCounted) {
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, Request("left", 0));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  Event release;
  host_.threads().writes.Do([&] { EXPECT_TRUE(release.WaitFor(absl::Seconds(20))); });
  context.TryCancel();
  EXPECT_TRUE(Eventually([&] { return Quiet(); }));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(CountedReleases(), 0u);
  release.Notify();
  EXPECT_TRUE(Eventually([&] { return CountedReleases() == 1; }));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(SlowGenerateManyTest, ACancelIsAnsweredAfterTheEnd) {
  Call call(*stub_);
  call.Generate(Request("endless", 0));
  call.Generate(Request("other", 40));
  while (call.by_id["endless"].ids.empty()) ASSERT_TRUE(call.Read());
  call.Cancel("endless");
  call.Cancel("nobody");
  while (call.by_id["endless"].cancelled.empty() || call.by_id["nobody"].cancelled.empty()) {
    ASSERT_TRUE(call.Read());
    EXPECT_TRUE(call.by_id["endless"].cancelled.empty() || call.by_id["endless"].end);
  }
  EXPECT_TRUE(call.by_id["endless"].cancelled[0]);
  EXPECT_EQ(call.by_id["endless"].code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(call.by_id["endless"].end->finished().reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_FALSE(call.by_id["nobody"].cancelled[0]);
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(call.by_id["other"].ids.size(), 40u);
}

TEST_F(SlowGenerateManyTest, EachRequestHasADeadlineOfItsOwn) {
  Call call(*stub_);
  call.Generate(Request("late", 0), absl::Milliseconds(60));
  call.Generate(Request("other", 60));
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(call.by_id["late"].code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_GT(call.by_id["late"].ids.size(), 0u);
  EXPECT_EQ(call.by_id["other"].ids.size(), 60u);
}

TEST_F(SlowGenerateManyTest, ALiveIdIsRefusedAndTheLiveOneGoesOn) {
  Call call(*stub_);
  Call other(*stub_);
  call.Generate(Request("same", 60));
  while (call.by_id["same"].ids.empty()) ASSERT_TRUE(call.Read());
  other.Generate(Request("same", 5));
  other.ReadUntilEnd("same");
  EXPECT_EQ(other.by_id["same"].code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(other.Finish().ok());
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(call.by_id["same"].ids.size(), 60u);
}

TEST_F(SlowGenerateManyTest, HangingUpFreesEverything) {
  auto call = std::make_unique<Call>(*stub_);
  for (int i = 0; i < 12; ++i) call->Generate(Request(absl::StrCat("r", i), 0));
  while (call->by_id["r3"].ids.empty()) ASSERT_TRUE(call->Read());
  call->context.TryCancel();
  while (call->Read()) {
  }
  EXPECT_EQ(call->stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return Quiet(); }));
}

TEST_F(SlowGenerateManyTest, ShutdownWaitsForTheRequestsAndThenEndsTheCall) {
  Call call(*stub_);
  call.Generate(Request("last", 50));
  while (call.by_id["last"].ids.empty()) ASSERT_TRUE(call.Read());
  service_.Shutdown();
  while (call.Read()) {
  }
  EXPECT_EQ(call.stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(call.by_id["last"].ids.size(), 50u);
  Call late(*stub_);
  EXPECT_FALSE(late.Read());
  EXPECT_EQ(late.stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

class StalledReaderTest : public GenerateManyTest {
 protected:
  StalledReaderTest()
      : GenerateManyTest({.max_pending_bytes = 64 << 10,
                          .max_message_bytes = 8 << 10,
                          .grace = absl::Milliseconds(300)}) {}
};

TEST_F(StalledReaderTest, IsBoundedAndThenCancelledAlone) {
  Call stalled(*stub_);
  for (int i = 0; i < 8; ++i) {
    v1::GenerateRequest request = Request(absl::StrCat("stalled", i), 0);
    request.set_logprobs(20);
    // The call may be over before the last request is written.
    if (!stalled.stream->Write(Call::Message(request))) break;
  }
  // Nobody reads: gRPC's own buffers fill up, then those of the call. The number of the eight
  // requests that were read by then is not fixed.
  EXPECT_TRUE(
      Eventually([&] { return host_.Status().queue().finished_requests() > 0 && Quiet(); }));
  Call other(*stub_);
  other.Generate(Request("other", 20));
  EXPECT_TRUE(other.Finish().ok());
  EXPECT_EQ(other.by_id["other"].ids.size(), 20u);

  const grpc::Status status = stalled.Finish();
  // A client that reads on too late finds the call torn down.
  EXPECT_TRUE(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ||
              status.error_code() == grpc::StatusCode::CANCELLED)
      << status.error_message();
  const std::vector<uint32_t> all = Alone(Request("", 0));
  for (const auto& [id, received] : stalled.by_id) {
    EXPECT_FALSE(received.end) << id << " was said to have ended";
    ASSERT_LE(received.ids.size(), all.size());
    EXPECT_TRUE(std::equal(received.ids.begin(), received.ids.end(), all.begin()))
        << "what the client has is a prefix of what was generated";
  }
}

TEST_F(StalledReaderTest, CancelsWhoseAnswersNobodyReadsAreReadNoMore) {
  constexpr int kMany = 200'000;
  Call call(*stub_);
  std::atomic<int> written = 0;
  std::thread writer([&] {
    v1::GenerateManyRequest message;
    message.mutable_cancel()->set_request_id(std::string(128, 'x'));
    while (written < kMany && call.stream->Write(message)) ++written;
  });
  // Writing stalls once the call stops reading and the buffers in between are full.
  int before = -1;
  while (written < kMany && before != written) {
    before = written;
    absl::SleepFor(absl::Seconds(1));
  }
  call.context.TryCancel();
  writer.join();
  EXPECT_LT(written, kMany);
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace orcd
