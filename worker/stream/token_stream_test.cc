#include "worker/stream/token_stream.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "orcd/v1/worker.grpc.pb.h"
#include "runtime/base/error.h"
#include "testing/event.h"
#include "testing/eventually.h"
#include "worker/api/orcd/generate_encoder.h"
#include "worker/base/messages.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kLong = absl::Seconds(20);

// A stream as the engine sees it, with the test's view of its state.
struct Served {
  std::shared_ptr<TokenStream> stream;
  std::shared_ptr<std::atomic<int>> cancels = std::make_shared<std::atomic<int>>(0);
  // Held by the stream's cancel function.
  std::weak_ptr<int> held;
};

using EncoderMaker = std::function<std::unique_ptr<ResponseEncoder>()>;

std::unique_ptr<ResponseEncoder> MakeGenerateEncoder() {
  return std::make_unique<GenerateEncoder>("r1", 42, "digest", "null");
}

// Hands each Generate call's TokenStream to the test, which plays the engine.
class FakeService : public v1::Worker::WithRawCallbackMethod_Generate<v1::Worker::Service> {
 public:
  // `writes` goes to the TokenStream.
  FakeService(const TokenStreamLimits& limits, EncoderMaker encoder, WriteQueue* writes)
      : limits_(limits), encoder_(std::move(encoder)), writes_(writes) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer*) override {
    Served served;
    auto held = std::make_shared<int>();
    served.held = held;
    served.stream = std::make_shared<TokenStream>(context, writes_, limits_, log_);
    served.stream->Begin(
        {.id = "r1",
         .seed = 42,
         .encoder = encoder_(),
         .cancel = [cancels = served.cancels, held = std::move(held)] { ++*cancels; }});
    grpc::ServerWriteReactor<grpc::ByteBuffer>* reactor = served.stream->Serve();
    std::lock_guard lock(mutex_);
    served_.push_back(std::move(served));
    there_.notify_all();
    return reactor;
  }

  Served Next() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        there_.wait_for(lock, absl::ToChronoSeconds(kLong), [this] { return !served_.empty(); }));
    Served served = std::move(served_.front());
    served_.pop_front();
    return served;
  }

 private:
  const TokenStreamLimits limits_;
  const EncoderMaker encoder_;
  WriteQueue* const writes_;
  const Logger log_{LogFormat::kText, LogLevel::kError};
  std::mutex mutex_;
  std::condition_variable there_;
  std::deque<Served> served_;
};

// Blocks a thread of a queue.
class Holdup final : public Writer {
 public:
  void Write() override { release_.WaitFor(kLong); }
  void Release() { release_.Notify(); }

 private:
  Event release_;
};

class TokenStreamTest : public ::testing::Test {
 protected:
  // With `queued`, writes_ writes the engine's events; otherwise the thread that delivers them
  // does.
  explicit TokenStreamTest(const TokenStreamLimits& limits = {},
                           EncoderMaker encoder = MakeGenerateEncoder, bool queued = true)
      : service_(limits, std::move(encoder), queued ? &writes_ : nullptr) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::Worker::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  }
  ~TokenStreamTest() override {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  }

  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
  };
  std::unique_ptr<Call> Start() {
    auto call = std::make_unique<Call>();
    call->reader = stub_->Generate(&call->context, v1::GenerateRequest());
    return call;
  }

  static std::vector<v1::GenerateResponse> ReadAll(Call& call) {
    std::vector<v1::GenerateResponse> responses;
    v1::GenerateResponse response;
    while (call.reader->Read(&response)) responses.push_back(response);
    return responses;
  }

  static std::string ReadText(Call& call) {
    std::string text;
    for (const v1::GenerateResponse& response : ReadAll(call)) text += response.delta().text();
    return text;
  }

  // Until the returned writers are released, the queue writes nothing.
  std::vector<std::shared_ptr<Holdup>> HoldUpTheQueue() {
    std::vector<std::shared_ptr<Holdup>> holdups;
    for (int i = 0; i < kQueueThreads; ++i) {
      writes_.Enqueue(holdups.emplace_back(std::make_shared<Holdup>()));
    }
    return holdups;
  }

  static constexpr int kQueueThreads = 2;
  WriteQueue writes_{kQueueThreads};
  FakeService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Worker::Stub> stub_;
};

std::string Reason(const grpc::Status& status) {
  google::rpc::Status rpc;
  google::rpc::ErrorInfo info;
  if (!rpc.ParseFromString(status.error_details())) return "no details";
  for (const auto& any : rpc.details()) any.UnpackTo(&info);
  return info.reason();
}

DeltaEvent Delta(const std::string& text, std::vector<int32_t> tokens) {
  return {.text = text, .tokens = std::move(tokens), .logprobs = {}};
}

FinishedEvent Finished(FinishReason reason) {
  FinishedEvent event;
  event.reason = reason;
  event.prompt_tokens = 3;
  event.cached_prompt_tokens = 1;
  event.generated_tokens = 2;
  event.queue_time = absl::Milliseconds(1500);
  return event;
}

TEST_F(TokenStreamTest, EventsInOrder) {
  auto call = Start();
  Served served = service_.Next();
  served.stream->OnStarted({.prompt_tokens = 3, .cached_prompt_tokens = 1});
  v1::GenerateResponse response;
  ASSERT_TRUE(call->reader->Read(&response));
  EXPECT_EQ(response.started().request_id(), "r1");
  EXPECT_EQ(response.started().prompt_tokens(), 3u);
  EXPECT_EQ(response.started().cached_prompt_tokens(), 1u);
  EXPECT_EQ(response.started().seed(), 42u);

  DeltaEvent delta = Delta("hé", {5, 6});
  delta.logprobs.resize(2);
  delta.logprobs[0] = {.token = 5, .logprob = -0.5f, .top = {{5, -0.5f}, {9, -1.5f}}};
  delta.logprobs[1] = {.token = 6, .logprob = -2.0f, .top = {}};
  served.stream->OnDelta(std::move(delta));
  ASSERT_TRUE(call->reader->Read(&response));
  EXPECT_EQ(response.delta().text(), "hé");
  EXPECT_THAT(response.delta().token_ids(), ElementsAre(5, 6));
  ASSERT_EQ(response.delta().logprobs_size(), 2);
  EXPECT_EQ(response.delta().logprobs(0).logprob(), -0.5f);
  ASSERT_EQ(response.delta().logprobs(0).top_size(), 2);
  EXPECT_EQ(response.delta().logprobs(0).top(1).token_id(), 9u);

  FinishedEvent finished = Finished(FinishReason::kStopString);
  finished.stop_string = "END";
  served.stream->OnFinished(finished);
  ASSERT_TRUE(call->reader->Read(&response));
  EXPECT_EQ(response.finished().reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(response.finished().stop_string(), "END");
  EXPECT_EQ(response.finished().usage().prompt_tokens(), 3u);
  EXPECT_EQ(response.finished().usage().cached_prompt_tokens(), 1u);
  EXPECT_EQ(response.finished().usage().generated_tokens(), 2u);
  EXPECT_EQ(response.finished().timings().queue().seconds(), 1);
  EXPECT_EQ(response.finished().timings().queue().nanos(), 500'000'000);
  EXPECT_EQ(response.finished().model_digest(), "digest");
  // The request's resources were released before the client got its end.
  EXPECT_TRUE(served.held.expired());
  EXPECT_FALSE(call->reader->Read(&response));
  EXPECT_TRUE(call->reader->Finish().ok());
  EXPECT_EQ(*served.cancels, 0);
}

TEST_F(TokenStreamTest, EventsFromAnEngineThatIsFasterThanGrpcAreMerged) {
  auto call = Start();
  Served served = service_.Next();
  served.stream->OnStarted({});
  std::string text;
  std::vector<uint32_t> tokens;
  for (int i = 0; i < 5000; ++i) {
    const std::string piece = absl::StrCat(i, " ");
    text += piece;
    tokens.push_back(i);
    served.stream->OnDelta(Delta(piece, {i}));
  }
  served.stream->OnFinished(Finished(FinishReason::kEog));
  const std::vector<v1::GenerateResponse> responses = ReadAll(*call);
  EXPECT_TRUE(call->reader->Finish().ok());
  ASSERT_GE(responses.size(), 3u);
  EXPECT_TRUE(responses.front().has_started());
  EXPECT_TRUE(responses.back().has_finished());
  std::string got_text;
  std::vector<uint32_t> got_tokens;
  for (size_t i = 1; i + 1 < responses.size(); ++i) {
    ASSERT_TRUE(responses[i].has_delta());
    got_text += responses[i].delta().text();
    got_tokens.insert(got_tokens.end(), responses[i].delta().token_ids().begin(),
                      responses[i].delta().token_ids().end());
  }
  EXPECT_EQ(got_text, text);
  EXPECT_EQ(got_tokens, tokens);
  EXPECT_LT(responses.size(), 5000u);
}

// Its client may be slow to take the first message.
class LargeTokenStreamTest : public TokenStreamTest {
 protected:
  LargeTokenStreamTest() : TokenStreamTest({.max_pending_bytes = 64 << 20}) {}
};

// Clients accept at most 4 MiB in a message.
TEST_F(LargeTokenStreamTest, LargeOutputComesInSeveralMessages) {
  auto call = Start();
  Served served = service_.Next();
  served.stream->OnStarted({});
  DeltaEvent large;
  for (int i = 0; i < 20'000; ++i) {
    SampledToken token{.token = 100'000 + i, .logprob = -1, .top = {}};
    for (int j = 0; j < 20; ++j) token.top.push_back({150'000 + j, -2.0f});
    large.prompt_logprobs.push_back(token);
  }
  served.stream->OnDelta(large);
  served.stream->OnDelta(Delta("a", {1}));
  served.stream->OnFinished(Finished(FinishReason::kEog));
  int scored = 0;
  std::string text;
  for (const v1::GenerateResponse& response : ReadAll(*call)) {
    scored += response.delta().prompt_logprobs_size();
    text += response.delta().text();
  }
  EXPECT_TRUE(call->reader->Finish().ok());
  EXPECT_EQ(scored, 20'000);
  EXPECT_EQ(text, "a");
}

// The engine thread delivers events and must not write them.
TEST_F(TokenStreamTest, TheThreadThatDeliversEventsDoesNotWriteThem) {
  auto call = Start();
  Served served = service_.Next();
  const auto holdups = HoldUpTheQueue();
  served.stream->OnStarted({});
  served.stream->OnDelta(Delta("a", {1}));
  served.stream->OnDelta(Delta("b", {2}));
  served.stream->OnFinished(Finished(FinishReason::kEog));
  auto reading = std::async(std::launch::async, [&] { return ReadAll(*call); });
  EXPECT_EQ(reading.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  for (const auto& holdup : holdups) holdup->Release();
  const std::vector<v1::GenerateResponse> responses = reading.get();
  EXPECT_TRUE(call->reader->Finish().ok());
  ASSERT_EQ(responses.size(), 3u);
  EXPECT_TRUE(responses[0].has_started());
  EXPECT_EQ(responses[1].delta().text(), "ab");
  EXPECT_TRUE(responses[2].has_finished());
}

TEST_F(TokenStreamTest, RequestsThatEndWithoutHavingStarted) {
  struct Case {
    FinishedEvent event;
    grpc::StatusCode code;
    std::string reason;
  };
  FinishedEvent expired;
  expired.status = MakeError(absl::StatusCode::kDeadlineExceeded, "m", {.reason = "TOO_LATE"});
  const Case cases[] = {
      {Finished(FinishReason::kCancelled), grpc::StatusCode::CANCELLED, "CANCELLED"},
      {Finished(FinishReason::kDrained), grpc::StatusCode::UNAVAILABLE, "DRAINED"},
      {expired, grpc::StatusCode::DEADLINE_EXCEEDED, "TOO_LATE"},
  };
  for (const Case& c : cases) {
    auto call = Start();
    service_.Next().stream->OnFinished(c.event);
    EXPECT_TRUE(ReadAll(*call).empty());
    const grpc::Status status = call->reader->Finish();
    EXPECT_EQ(status.error_code(), c.code);
    EXPECT_EQ(Reason(status), c.reason);
  }
}

TEST_F(TokenStreamTest, RequestsThatFailAfterTheirStartGetTheirFinished) {
  FinishedEvent fault;
  fault.status = MakeError(absl::StatusCode::kInternal, "m", {.reason = "BACKEND_FAULT"});
  const std::pair<FinishedEvent, v1::FinishReason> cases[] = {
      {fault, v1::FINISH_REASON_UNSPECIFIED},
      {Finished(FinishReason::kCancelled), v1::FINISH_REASON_CANCELLED},
      {Finished(FinishReason::kDrained), v1::FINISH_REASON_DRAINED}};
  for (const auto& [event, reason] : cases) {
    auto call = Start();
    Served served = service_.Next();
    served.stream->OnStarted({});
    served.stream->OnDelta(Delta("a", {1}));
    served.stream->OnFinished(event);
    const auto responses = ReadAll(*call);
    ASSERT_EQ(responses.size(), 3u);
    EXPECT_EQ(responses[1].delta().text(), "a");
    EXPECT_EQ(responses[2].finished().reason(), reason);
    EXPECT_FALSE(call->reader->Finish().ok());
  }
}

TEST_F(TokenStreamTest, Refuse) {
  auto call = Start();
  service_.Next().stream->Refuse(MakeError(
      absl::StatusCode::kResourceExhausted, "full",
      {.reason = "QUEUE_FULL", .subject = "queue:requests", .retry_after = absl::Seconds(2)}));
  EXPECT_TRUE(ReadAll(*call).empty());
  const grpc::Status status = call->reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Reason(status), "QUEUE_FULL");
  const auto& trailers = call->context.GetServerTrailingMetadata();
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, trailers.end());
  EXPECT_EQ(pushback->second, "2000");
}

TEST_F(TokenStreamTest, ClientGoneCancelsTheRequestAndOutlivesNobody) {
  auto call = Start();
  Served served = service_.Next();
  served.stream->OnStarted({});
  v1::GenerateResponse response;
  ASSERT_TRUE(call->reader->Read(&response));
  call->context.TryCancel();
  EXPECT_TRUE(Eventually([&] { return *served.cancels > 0; }));
  // The engine may send more events before it has seen the cancellation.
  served.stream->OnDelta(Delta("late", {1}));
  EXPECT_FALSE(served.held.expired());
  served.stream->OnFinished(Finished(FinishReason::kCancelled));
  EXPECT_TRUE(served.held.expired());
  const std::weak_ptr<TokenStream> weak = served.stream;
  served.stream = nullptr;
  EXPECT_TRUE(Eventually([&] { return weak.expired(); }));
}

TEST_F(TokenStreamTest, ClientGoneAfterTheEndCancelsNothing) {
  auto call = Start();
  Served served = service_.Next();
  served.stream->OnFinished(Finished(FinishReason::kEog));
  call->context.TryCancel();
  const std::weak_ptr<TokenStream> weak = served.stream;
  served.stream = nullptr;
  EXPECT_TRUE(Eventually([&] { return weak.expired(); }));
  EXPECT_EQ(*served.cancels, 0);
}

class LingeringReaderTest : public TokenStreamTest {
 protected:
  LingeringReaderTest()
      : TokenStreamTest({.max_pending_bytes = 64 << 20, .linger = absl::Milliseconds(500)}) {}
};

// Otherwise the unread output would be kept for as long as the client stays connected.
TEST_F(LingeringReaderTest, IsTornDownWhenItNeverReadsTheEnd) {
  auto call = Start();
  Served served = service_.Next();
  served.stream->OnStarted({});
  served.stream->OnDelta(Delta(std::string(32 << 20, 'x'), {1}));
  served.stream->OnFinished(Finished(FinishReason::kEog));
  const std::weak_ptr<TokenStream> weak = served.stream;
  served.stream = nullptr;
  EXPECT_TRUE(Eventually([&] { return weak.expired(); }));
}

// The writing thread sets the linger time; the engine thread, which delivers the end, does not.
TEST_F(LingeringReaderTest, HasItsTimeFromWhenTheQueueGetsToIt) {
  auto call = Start();
  Served served = service_.Next();
  const auto holdups = HoldUpTheQueue();
  served.stream->OnStarted({});
  served.stream->OnFinished(Finished(FinishReason::kEog));
  absl::SleepFor(absl::Milliseconds(800));
  for (const auto& holdup : holdups) holdup->Release();
  EXPECT_EQ(ReadAll(*call).size(), 2u);
  EXPECT_TRUE(call->reader->Finish().ok());
}

class SlowReaderTest : public TokenStreamTest {
 protected:
  SlowReaderTest()
      : TokenStreamTest({.max_pending_bytes = 10'000,
                         .max_pending_tokens = 100'000,
                         .grace = absl::Milliseconds(500)}) {}

  // Fills the network's buffers, then the stream's, until the stream asks for the request's end.
  static std::string Overwhelm(Served& served) {
    served.stream->OnStarted({});
    std::string text;
    for (int i = 0; *served.cancels == 0 && i < 1'000'000; ++i) {
      const std::string piece = absl::StrCat(i, std::string(1000, '.'));
      text += piece;
      served.stream->OnDelta(Delta(piece, {i}));
      // The client is not slow as long as the network accepts the writes.
      if (i < 1000) absl::SleepFor(absl::Microseconds(200));
    }
    return text;
  }
};

TEST_F(SlowReaderTest, GetsItsErrorWhenItReadsOn) {
  auto call = Start();
  Served served = service_.Next();
  const std::string text = Overwhelm(served);
  EXPECT_EQ(*served.cancels, 1);
  served.stream->OnDelta(Delta("after the gap", {1}));
  served.stream->OnFinished(Finished(FinishReason::kCancelled));
  const auto responses = ReadAll(*call);
  std::string got;
  for (const auto& response : responses) got += response.delta().text();
  EXPECT_FALSE(got.empty());
  EXPECT_EQ(got, text.substr(0, got.size()));
  EXPECT_EQ(responses.back().finished().reason(), v1::FINISH_REASON_CANCELLED);
  const grpc::Status status = call->reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Reason(status), "SLOW_READER");
}

TEST_F(SlowReaderTest, IsNotWhoWaitsForTheQueue) {
  auto call = Start();
  Served served = service_.Next();
  const auto holdups = HoldUpTheQueue();
  served.stream->OnStarted({});
  for (int i = 0; i < 20; ++i) served.stream->OnDelta(Delta(std::string(1000, '.'), {i}));
  EXPECT_EQ(*served.cancels, 0);
  for (const auto& holdup : holdups) holdup->Release();
  served.stream->OnFinished(Finished(FinishReason::kEog));
  EXPECT_EQ(ReadText(*call).size(), 20'000u);
  EXPECT_TRUE(call->reader->Finish().ok());
}

TEST_F(SlowReaderTest, IsTornDownWhenItDoesNot) {
  auto call = Start();
  Served served = service_.Next();
  Overwhelm(served);
  served.stream->OnFinished(Finished(FinishReason::kCancelled));
  const std::weak_ptr<TokenStream> weak = served.stream;
  served.stream = nullptr;
  EXPECT_TRUE(Eventually([&] { return weak.expired(); }));
}

TEST_F(SlowReaderTest, OtherStreamsGoOn) {
  auto slow_call = Start();
  Served slow = service_.Next();
  auto call = Start();
  Served served = service_.Next();
  served.stream->OnStarted({});
  v1::GenerateResponse response;
  ASSERT_TRUE(call->reader->Read(&response));
  Overwhelm(slow);
  served.stream->OnDelta(Delta("fine", {1}));
  ASSERT_TRUE(call->reader->Read(&response));
  EXPECT_EQ(response.delta().text(), "fine");
  for (Served* s : {&slow, &served}) s->stream->OnFinished(Finished(FinishReason::kEog));
  EXPECT_EQ(*served.cancels, 0);
}

TEST_F(TokenStreamTest, ManyStreamsAtOnce) {
  constexpr int kStreams = 200;
  constexpr int kThreads = 4;
  std::vector<std::weak_ptr<TokenStream>> streams;
  std::mutex mutex;
  auto play = [&](int seed) {
    std::minstd_rand random(seed);
    for (int i = 0; i < kStreams / kThreads; ++i) {
      auto call = Start();
      Served served = service_.Next();
      {
        std::lock_guard lock(mutex);
        streams.push_back(served.stream);
      }
      const int fate = static_cast<int>(random() % 4);
      std::thread engine([stream = std::move(served.stream), cancels = served.cancels, fate] {
        if (fate != 3) stream->OnStarted({});
        for (int t = 0; fate != 3 && t < 50 && *cancels == 0; ++t) {
          stream->OnDelta(Delta("x", {t}));
        }
        stream->OnFinished(Finished(*cancels > 0 ? FinishReason::kCancelled : FinishReason::kEog));
      });
      if (fate == 0) call->context.TryCancel();
      v1::GenerateResponse response;
      int read = 0;
      while (call->reader->Read(&response)) {
        if (++read == 3 && fate == 1) call->context.TryCancel();
      }
      call->reader->Finish();
      engine.join();
    }
  };
  std::vector<std::thread> players;
  for (int i = 0; i < kThreads; ++i) players.emplace_back(play, i);
  for (std::thread& player : players) player.join();
  EXPECT_TRUE(Eventually([&] {
    return std::all_of(streams.begin(), streams.end(), [](const auto& s) { return s.expired(); });
  }));
}

// Sends nothing before the end, and then one message for each delta.
class HoldingEncoder final : public ResponseEncoder {
 public:
  std::optional<grpc::ByteBuffer> OnStarted(const StartedEvent&) override { return std::nullopt; }
  std::optional<grpc::ByteBuffer> OnDelta(DeltaEvent event) override {
    held_bytes_ += event.text.size();
    texts_.push_back(std::move(event.text));
    return std::nullopt;
  }
  End OnFinished(const FinishedEvent&, const absl::Status& status) override {
    End end{.status = absl::IsCancelled(status) ? absl::OkStatus() : status};
    if (!end.status.ok()) return end;
    for (const std::string& text : texts_) {
      v1::GenerateResponse message;
      message.mutable_delta()->set_text(text);
      end.messages.push_back(SerializeMessage(message));
    }
    return end;
  }
  size_t held_bytes() const override { return held_bytes_; }

 private:
  std::vector<std::string> texts_;
  size_t held_bytes_ = 0;
};

class HoldingStreamTest : public TokenStreamTest {
 protected:
  HoldingStreamTest()
      : TokenStreamTest(
            {.max_pending_bytes = 100, .max_held_bytes = 1000},
            [] { return std::make_unique<HoldingEncoder>(); },
            // Without a queue the encoder gets each delta by itself: a queue would merge them.
            /*queued=*/false) {}
};

TEST_F(HoldingStreamTest, HeldOutputIsNotPending) {
  auto call = Start();
  Served served = service_.Next();
  served.stream->OnStarted({});
  for (int i = 0; i < 10; ++i) served.stream->OnDelta(Delta(std::string(90, 'x'), {i}));
  served.stream->OnFinished(Finished(FinishReason::kEog));
  EXPECT_EQ(ReadAll(*call).size(), 10u);
  EXPECT_TRUE(call->reader->Finish().ok());
  EXPECT_EQ(*served.cancels, 0);
}

TEST_F(HoldingStreamTest, MoreThanMayBeHeldEndsTheRequest) {
  auto call = Start();
  Served served = service_.Next();
  for (int i = 0; i < 20; ++i) served.stream->OnDelta(Delta(std::string(90, 'x'), {i}));
  EXPECT_EQ(*served.cancels, 1);
  served.stream->OnFinished(Finished(FinishReason::kCancelled));
  EXPECT_TRUE(ReadAll(*call).empty());
  const grpc::Status status = call->reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Reason(status), "OUTPUT_TOO_LARGE");
}

TEST_F(HoldingStreamTest, OutputSentAtOnceMayExceedThePendingLimit) {
  auto call = Start();
  Served served = service_.Next();
  served.stream->OnStarted({});
  for (int i = 0; i < 3; ++i) served.stream->OnDelta(Delta(std::string(200, 'x'), {i}));
  served.stream->OnFinished(Finished(FinishReason::kEog));
  EXPECT_EQ(ReadAll(*call).size(), 3u);
  EXPECT_TRUE(call->reader->Finish().ok());
  EXPECT_EQ(*served.cancels, 0);
}

// Like HoldingEncoder, but its first message is too large for a client to receive it before it
// reads.
class LoudHoldingEncoder final : public ResponseEncoder {
 public:
  std::optional<grpc::ByteBuffer> OnStarted(const StartedEvent&) override {
    v1::GenerateResponse message;
    message.mutable_delta()->set_text(std::string(3 << 20, 'x'));
    return SerializeMessage(message);
  }
  std::optional<grpc::ByteBuffer> OnDelta(DeltaEvent event) override {
    return holding_.OnDelta(std::move(event));
  }
  End OnFinished(const FinishedEvent& event, const absl::Status& status) override {
    return holding_.OnFinished(event, status);
  }
  size_t held_bytes() const override { return holding_.held_bytes(); }

 private:
  HoldingEncoder holding_;
};

class LoudHoldingStreamTest : public TokenStreamTest {
 protected:
  LoudHoldingStreamTest()
      : TokenStreamTest({.max_held_bytes = 1000, .grace = kLong, .linger = absl::Hours(1)},
                        [] { return std::make_unique<LoudHoldingEncoder>(); }) {}
};

TEST_F(LoudHoldingStreamTest, MoreThanMayBeHeldShowsAfterTheRequestHasEnded) {
  auto call = Start();
  Served served = service_.Next();
  served.stream->OnStarted({});
  served.stream->OnDelta(Delta(std::string(2000, 'x'), {1}));
  served.stream->OnFinished(Finished(FinishReason::kEog));
  EXPECT_EQ(ReadAll(*call).size(), 1u);
  EXPECT_EQ(Reason(call->reader->Finish()), "OUTPUT_TOO_LARGE");
  const std::weak_ptr<TokenStream> weak = served.stream;
  served.stream = nullptr;
  EXPECT_TRUE(Eventually([&] { return weak.expired(); }));
  // gRPC's timers still work.
  auto next = Start();
  service_.Next().stream->OnFinished(Finished(FinishReason::kEog));
  EXPECT_TRUE(ReadAll(*next).empty());
  EXPECT_TRUE(next->reader->Finish().ok());
}

TEST_F(HoldingStreamTest, TheEncoderSaysHowTheCallEnds) {
  auto call = Start();
  Served served = service_.Next();
  served.stream->OnDelta(Delta("x", {1}));
  served.stream->OnFinished(Finished(FinishReason::kCancelled));
  EXPECT_EQ(ReadAll(*call).size(), 1u);
  EXPECT_TRUE(call->reader->Finish().ok());
}

TEST_F(HoldingStreamTest, AClientThatLeavesBeforeTheFirstMessageCancels) {
  auto call = Start();
  Served served = service_.Next();
  served.stream->OnDelta(Delta("x", {1}));
  call->context.TryCancel();
  EXPECT_TRUE(Eventually([&] { return *served.cancels > 0; }));
  served.stream->OnFinished(Finished(FinishReason::kCancelled));
  EXPECT_EQ(call->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace orcd
