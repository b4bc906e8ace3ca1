// If a device hangs, the worker reports it and then ends itself.
#include <gtest/gtest.h>

#include <string>

#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

constexpr int kStalledExitCode = 72;

class StallTest : public WorkerTest {};

TEST_F(StallTest, AHungStepEndsReadinessAndThenTheWorker) {
  ASSERT_NO_FATAL_FAILURE(
      StartLoaded({"--backend", "null", "--null-step", "1h", "--watchdog", "500ms"}));
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_READY);
  // An idle worker is not stalled.
  absl::SleepFor(absl::Seconds(1));
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_READY);

  GenerateCall call(stub(), EndlessRequest("hung"), absl::Seconds(60));
  // The worker ends itself 2 s later.
  v1::WorkerStatus status;
  ASSERT_TRUE(client().WaitForStatus([&](const v1::WorkerStatus& current) {
    status = current;
    return current.state() == v1::WORKER_STATE_FAILED;
  }));
  const Generation refused = client().Generate(TextRequest("Hello", 1));
  EXPECT_TRUE(IsError(refused.error, grpc::StatusCode::UNAVAILABLE, "ENGINE_STALLED"));
  EXPECT_NE(status.reason().find("no progress"), std::string::npos) << status.reason();

  const absl::StatusOr<ProcessEnd> end = worker().WaitForEnd(Bound(absl::Seconds(10)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, kStalledExitCode);
  EXPECT_EQ(call.Finish().error.code, grpc::StatusCode::UNAVAILABLE);
}

// Twenty steps take twice the watchdog's limit. A step that a busy machine delays stays within it.
TEST_F(StallTest, SlowStepsAreNoStall) {
  ASSERT_NO_FATAL_FAILURE(
      StartLoaded({"--backend", "null", "--null-step", kSanitized ? "500ms" : "100ms", "--watchdog",
                   kSanitized ? "5s" : "1s"}));
  v1::GenerateRequest request = EndlessRequest("slow");
  request.mutable_stop()->set_max_tokens(20);
  EXPECT_TRUE(IsComplete(client().Generate(request)));
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_READY);
}

// The watchdog does not count time in which the process was stopped.
TEST_F(StallTest, AWorkerThatIsStoppedForLongerThanAStepMayTakeGoesOn) {
  const absl::Duration limit = kSanitized ? absl::Seconds(2) : absl::Milliseconds(500);
  ASSERT_NO_FATAL_FAILURE(StartLoaded(
      {"--backend", "null", "--null-step", "100ms", "--watchdog", absl::FormatDuration(limit)}));
  v1::GenerateRequest request = EndlessRequest("stopped");
  request.mutable_stop()->set_max_tokens(30);
  GenerateCall call(stub(), request, absl::Seconds(60));
  for (size_t tokens = 1; tokens < 20; tokens += 6) {
    ASSERT_TRUE(call.ReadUntilTokens(tokens));
    worker().Pause();
    absl::SleepFor(limit + absl::Milliseconds(500));
    worker().Resume();
  }
  EXPECT_TRUE(IsComplete(call.Finish()));
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_READY);
}

}  // namespace
}  // namespace orcd::testing
