// The ends of a worker: by a Drain call, by SIGTERM, by a second SIGTERM, by kill -9.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "integration_tests/test_models.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using grpc::health::v1::HealthCheckResponse;

// Polls a channel's connection, as an application's own event loop does: gRPC's C++ client looks at
// a connection only while a call on it waits.
class Attendant {
 public:
  explicit Attendant(std::shared_ptr<grpc::Channel> channel)
      : thread_([this, channel = std::move(channel)] {
          while (!stop_) {
            channel->WaitForStateChange(channel->GetState(/*try_to_connect=*/false),
                                        absl::ToChronoTime(absl::Now() + absl::Milliseconds(50)));
          }
        }) {}
  ~Attendant() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

class ShutdownTest : public WorkerTest {
 protected:
  void StartAttended(std::vector<std::string> args = {}) {
    ASSERT_NO_FATAL_FAILURE(StartLoaded(std::move(args)));
    Attend();
  }
  void Attend() { attendant_ = std::make_unique<Attendant>(client().channel()); }

  static v1::GenerateRequest Counted(const std::string& id, uint32_t tokens) {
    v1::GenerateRequest request = EndlessRequest(id);
    request.mutable_stop()->set_max_tokens(tokens);
    return request;
  }

  void ExpectExit(const absl::StatusOr<ProcessEnd>& end, int code) {
    ASSERT_TRUE(end.ok()) << end.status();
    ASSERT_TRUE(end->exit_code) << "ended by signal " << end->signal.value_or(0);
    EXPECT_EQ(*end->exit_code, code);
  }

 private:
  std::unique_ptr<Attendant> attendant_;
};

TEST_F(ShutdownTest, IdleWorkerExitsAtOnce) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  ExpectExit(worker().Terminate(Bound(absl::Seconds(3))), 0);
}

TEST_F(ShutdownTest, ReadyWorkerWithoutRequestsExitsAtOnce) {
  ASSERT_NO_FATAL_FAILURE(StartAttended());
  ExpectExit(worker().Terminate(Bound(absl::Seconds(3))), 0);
}

// A hanging client cannot acknowledge the end of its connection; the worker waits for it for a few
// seconds only.
TEST_F(ShutdownTest, ConnectionThatNobodyAttendsHoldsItUpForSeconds) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  ExpectExit(worker().Terminate(Bound(absl::Seconds(8))), 0);
}

TEST_F(ShutdownTest, InterruptIsATermination) {
  ASSERT_NO_FATAL_FAILURE(StartAttended());
  worker().Signal(SIGINT);
  ExpectExit(worker().WaitForEnd(Bound(absl::Seconds(3))), 0);
}

TEST_F(ShutdownTest, OpenWatchesAndIdleConnectionsDoNotHoldItUp) {
  ASSERT_NO_FATAL_FAILURE(StartAttended());
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(60));
  auto watch = client().health_stub().Watch(&context, {});
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  ExpectExit(worker().Terminate(Bound(absl::Seconds(3))), 0);
  while (watch->Read(&response)) {
  }
  EXPECT_FALSE(watch->Finish().ok());
}

TEST_F(ShutdownTest, TerminationLetsRunningRequestsFinish) {
  ASSERT_NO_FATAL_FAILURE(StartAttended({"--drain-timeout", "600s"}));
  const Generation expected = client().Generate(Counted("alone", 400));
  ASSERT_TRUE(IsComplete(expected));
  std::vector<std::unique_ptr<GenerateCall>> calls;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(std::make_unique<GenerateCall>(stub(), Counted(absl::StrCat("r", i), 400),
                                                   absl::Seconds(60)));
    ASSERT_TRUE(calls.back()->ReadUntilStarted());
  }
  worker().Signal(SIGTERM);
  for (auto& call : calls) {
    const Generation& generation = call->Finish();
    ASSERT_TRUE(IsComplete(generation));
    EXPECT_EQ(generation.ids, expected.ids);
  }
  ExpectExit(worker().WaitForEnd(Bound(absl::Seconds(3))), 0);
}

TEST_F(ShutdownTest, TerminationEndsWhatOutlastsTheDrain) {
  ASSERT_NO_FATAL_FAILURE(StartAttended({"--drain-timeout", "500ms"}));
  GenerateCall call(stub(), EndlessRequest("endless"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  worker().Signal(SIGTERM);
  const Generation& generation = call.Finish();
  EXPECT_TRUE(IsError(generation.error, grpc::StatusCode::UNAVAILABLE));
  EXPECT_EQ(generation.violation, "");
  ASSERT_TRUE(generation.finished);
  EXPECT_EQ(generation.reason(), v1::FINISH_REASON_DRAINED);
  EXPECT_EQ(generation.finished->usage().generated_tokens(), generation.ids.size());
  ExpectExit(worker().WaitForEnd(Bound(absl::Seconds(3))), 0);
}

TEST_F(ShutdownTest, SecondTerminationDoesNotWait) {
  ASSERT_NO_FATAL_FAILURE(StartAttended({"--drain-timeout", "120s"}));
  GenerateCall call(stub(), EndlessRequest("endless"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  worker().Signal(SIGTERM);
  ASSERT_TRUE(client().WaitForState(v1::WORKER_STATE_DRAINING));
  ASSERT_TRUE(call.ReadUntilTokens(call.so_far().ids.size() + 5));
  // Two signals within a moment count as one.
  absl::SleepFor(absl::Milliseconds(200));
  worker().Signal(SIGTERM);
  ExpectExit(worker().WaitForEnd(Bound(absl::Seconds(3))), kForcedExitCode);
  EXPECT_FALSE(call.Finish().error.ok());
}

TEST_F(ShutdownTest, TerminationEndsALoad) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  Attend();
  WriteSlowToLoadModel(models().File("large.gguf"));
  v1::LoadRequest request;
  request.set_model("large.gguf");
  bool signalled = false;
  const LoadResult result =
      client().Load(request, absl::Seconds(60), [&](grpc::ClientContext&, const v1::LoadProgress&) {
        if (!signalled) worker().Signal(SIGTERM);
        signalled = true;
      });
  EXPECT_FALSE(result.loaded);
  EXPECT_EQ(result.error.code, grpc::StatusCode::CANCELLED) << result.error;
  ExpectExit(worker().WaitForEnd(Bound(absl::Seconds(3))), 0);
}

TEST_F(ShutdownTest, DrainBeforeTheModelOfTheStartIsLoadedSaysHowTheWorkerEnds) {
  for (const bool exit : {true, false}) {
    WriteSlowToLoadModel(models().File("large.gguf"));
    ASSERT_NO_FATAL_FAILURE(StartWorker({"--model", "large.gguf"}));
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(60));
    v1::DrainRequest request;
    request.set_exit(exit);
    auto reader = stub().Drain(&context, request);
    v1::DrainResponse last;
    while (reader->Read(&last)) {
    }
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_TRUE(last.safe_to_delete());
    if (!exit) {
      EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_DRAINED);
      worker().Signal(SIGTERM);
    }
    ExpectExit(worker().WaitForEnd(Bound(absl::Seconds(8))), 0);
  }
}

// The exit code is that of the fault; the worker does not wait for a drain that cannot end.
TEST_F(ShutdownTest, FaultWhileItDrains) {
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--settle", "60s"}));
  Attend();
  std::filesystem::copy_file(models().File("nano.gguf"), models().File("cut.gguf"));
  ASSERT_TRUE(client().Load("cut.gguf").loaded);
  GenerateCall call(stub(), EndlessRequest("endless"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  worker().Signal(SIGTERM);
  ASSERT_TRUE(client().WaitForState(v1::WORKER_STATE_DRAINING));
  ASSERT_EQ(::truncate(models().File("cut.gguf").c_str(), 4096), 0);
  EXPECT_TRUE(IsError(call.Finish().error, grpc::StatusCode::INTERNAL, "BACKEND_FAULT"));
  ExpectExit(worker().WaitForEnd(Bound(absl::Seconds(8))), kFaultExitCode);
}

TEST_F(ShutdownTest, DrainStreamsWhatIsLeftUntilItIsSafeToDelete) {
  ASSERT_NO_FATAL_FAILURE(StartAttended({"--max-seqs", "2"}));
  std::vector<std::unique_ptr<GenerateCall>> calls;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(std::make_unique<GenerateCall>(stub(), Counted(absl::StrCat("r", i), 300),
                                                   absl::Seconds(300)));
  }
  ASSERT_TRUE(client().WaitForStatus([](const v1::WorkerStatus& status) {
    return status.queue().running_requests() + status.queue().waiting_requests() == 3;
  }));

  // Far more time than the drain takes, even on a busy machine and under a sanitizer.
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(300));
  v1::DrainRequest request;
  request.mutable_timeout()->set_seconds(240);
  auto reader = stub().Drain(&context, request);
  std::vector<v1::DrainResponse> responses;
  v1::DrainResponse response;
  ASSERT_TRUE(reader->Read(&response));
  responses.push_back(response);

  const Generation refused = client().Generate(Counted("late", 1));
  EXPECT_TRUE(IsError(refused.error, grpc::StatusCode::UNAVAILABLE));
  HealthCheckResponse::ServingStatus serving;
  ASSERT_TRUE(client().Check("orcd.v1.Worker", &serving).ok());
  EXPECT_EQ(serving, HealthCheckResponse::NOT_SERVING);
  ASSERT_TRUE(client().Check("liveness", &serving).ok());
  EXPECT_EQ(serving, HealthCheckResponse::SERVING);

  for (auto& call : calls) EXPECT_TRUE(IsComplete(call->Finish()));
  while (reader->Read(&response)) responses.push_back(response);
  EXPECT_TRUE(reader->Finish().ok());
  for (size_t i = 0; i < responses.size(); ++i) {
    EXPECT_EQ(responses[i].safe_to_delete(), i + 1 == responses.size());
  }
  EXPECT_EQ(responses.back().running_requests(), 0u);
  EXPECT_EQ(responses.back().waiting_requests(), 0u);
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_DRAINED);
  ASSERT_TRUE(worker().Running());
}

TEST_F(ShutdownTest, DrainThatAsksForItEndsTheWorkerOnceItIsOver) {
  ASSERT_NO_FATAL_FAILURE(StartAttended());
  GenerateCall call(stub(), Counted("running", 300), absl::Seconds(300));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(300));
  v1::DrainRequest request;
  request.mutable_timeout()->set_seconds(240);
  request.set_exit(true);
  auto reader = stub().Drain(&context, request);
  EXPECT_TRUE(IsComplete(call.Finish()));
  v1::DrainResponse last;
  while (reader->Read(&last)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(last.safe_to_delete()) << "told before the worker went";
  ExpectExit(worker().WaitForEnd(Bound(absl::Seconds(8))), 0);
}

TEST_F(ShutdownTest, DrainEndsWhatOutlastsItsTimeout) {
  ASSERT_NO_FATAL_FAILURE(StartAttended());
  GenerateCall call(stub(), EndlessRequest("endless"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(60));
  v1::DrainRequest request;
  request.mutable_timeout()->set_nanos(300'000'000);
  auto reader = stub().Drain(&context, request);
  const Generation& generation = call.Finish();
  EXPECT_TRUE(IsError(generation.error, grpc::StatusCode::UNAVAILABLE));
  EXPECT_EQ(generation.reason(), v1::FINISH_REASON_DRAINED);
  v1::DrainResponse last;
  while (reader->Read(&last)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(last.safe_to_delete());
}

TEST_F(ShutdownTest, KillLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartAttended());
  GenerateCall call(stub(), EndlessRequest("endless"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  const pid_t group = worker().pid();
  const std::string address = worker().address();
  worker().Kill();
  EXPECT_FALSE(call.Finish().error.ok());
  EXPECT_EQ(::kill(-group, 0), -1);
  EXPECT_EQ(errno, ESRCH) << "it left a process behind";
  EXPECT_TRUE(std::filesystem::is_empty(worker().working_dir()));

  // The next worker can serve at the same address at once.
  WorkerOptions options;
  options.model_dir = models().path().string();
  options.listen = address;
  absl::StatusOr<std::unique_ptr<WorkerProcess>> next = WorkerProcess::Start(options);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ((*next)->address(), address);
  WorkerClient next_client(address);
  ASSERT_TRUE(next_client.Load("nano.gguf").loaded);
  EXPECT_TRUE(IsComplete(next_client.Generate(Counted("again", 5))));
  ExpectExit((*next)->Terminate(Bound(absl::Seconds(10))), 0);
}

// A worker that hangs (here: is stopped) and comes back continues its streams.
TEST_F(ShutdownTest, PausedWorkerGoesOn) {
  ASSERT_NO_FATAL_FAILURE(StartAttended());
  const Generation expected = client().Generate(Counted("alone", 500));
  ASSERT_TRUE(IsComplete(expected));
  GenerateCall call(stub(), Counted("paused", 500), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  worker().Pause();
  grpc::ClientContext context;
  SetTimeout(context, absl::Milliseconds(200));
  v1::HealthResponse response;
  EXPECT_EQ(stub().Health(&context, {}, &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  worker().Resume();
  const Generation& generation = call.Finish();
  ASSERT_TRUE(IsComplete(generation));
  EXPECT_EQ(generation.ids, expected.ids);
}

}  // namespace
}  // namespace orcd::testing
