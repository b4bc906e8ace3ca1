// Sets a worker's date forward and back. Only the worker's log may change.
#include "absl/time/clock.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "integration_tests/scripted_orchestrator.h"
#include "integration_tests/test_models.h"
#include "integration_tests/worker_client.h"
#include "integration_tests/worker_process.h"

namespace orcd::testing {
namespace {

constexpr absl::Duration kTtl = absl::Milliseconds(600);

// Path of libfaketime, which gives a process another date; empty if it is not installed.
std::string FakeTimeLibrary() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/usr/lib", error)) {
    const std::filesystem::path library = entry.path() / "faketime/libfaketimeMT.so.1";
    if (std::filesystem::exists(library, error)) return library.string();
  }
  return {};
}

class ClockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(FakeTimeLibrary(), "") << "install libfaketime (tools/install-deps does)";
    WriteNanoModel(models_.File("nano.gguf"));
    SetDate(absl::ZeroDuration());
    ASSERT_TRUE(server_.listens());
    WorkerOptions options;
    options.model_dir = models_.path().string();
    options.args = {"--orchestrator",   server_.address(),
                    "--worker-id",      "a",
                    "--model",          "nano.gguf",
                    "--kv-cache-bytes", "32MiB",
                    "--watchdog",       "5s",
                    "--backend",        "null",
                    "--null-step",      "5ms",
                    "--metrics-listen", "127.0.0.1:0",
                    "--drain-timeout",  "60s"};
    options.environment = {absl::StrCat("LD_PRELOAD=", FakeTimeLibrary()),
                           absl::StrCat("FAKETIME_TIMESTAMP_FILE=", models_.File("date")),
                           "FAKETIME_NO_CACHE=1", "DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1"};
    absl::StatusOr<std::unique_ptr<WorkerProcess>> worker = WorkerProcess::Start(options);
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    client_ = std::make_unique<WorkerClient>(worker_->address());
    ASSERT_TRUE(client_->WaitForState(v1::WORKER_STATE_READY));
    ASSERT_TRUE(Wait([&] { return !orchestrator_.heartbeats().empty(); }));
  }

  // Sets the worker's clock ahead of the test's by `ahead`.
  void SetDate(absl::Duration ahead) {
    const std::string next = models_.File("date.next");
    std::ofstream(next) << (ahead < absl::ZeroDuration() ? "" : "+") << absl::ToInt64Seconds(ahead)
                        << "\n";
    std::filesystem::rename(next, models_.File("date"));
  }

  // A stream that lasts some seconds.
  static v1::GenerateRequest Stream(const std::string& id, uint32_t tokens) {
    v1::GenerateRequest request = TokenRequest({1, 2, 3}, tokens);
    request.set_request_id(id);
    request.mutable_sampling()->set_seed(7);
    request.mutable_stop()->set_ignore_eog(true);
    return request;
  }

  // Sets every date once, each for the length of some leases.
  void SetManyDates() {
    for (const absl::Duration ahead :
         {absl::Hours(1), -absl::Hours(1), absl::Hours(24 * 365 * 10), -absl::Hours(24 * 365 * 10),
          absl::Minutes(3), absl::ZeroDuration()}) {
      SetDate(ahead);
      absl::SleepFor(2 * kTtl);
    }
  }

  TempDir models_;
  ScriptedOrchestrator orchestrator_{kTtl};
  OrchestratorServer server_{orchestrator_};
  std::unique_ptr<WorkerProcess> worker_;
  std::unique_ptr<WorkerClient> client_;
};

TEST_F(ClockTest, NoDateEndsAStreamALeaseOrTheWorker) {
  const Generation expected = client_->Generate(Stream("before", 1600));
  ASSERT_TRUE(IsComplete(expected));
  const absl::Time begun = absl::Now();
  const size_t before = orchestrator_.heartbeats().size();
  GenerateCall call(client_->stub(), Stream("during", 1600), absl::Seconds(120));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  SetManyDates();
  const Generation& generation = call.Finish();
  ASSERT_TRUE(IsComplete(generation));
  EXPECT_EQ(generation.ids, expected.ids);
  EXPECT_GT(generation.finished->timings().decode().seconds(), 5);
  EXPECT_LT(generation.finished->timings().decode().seconds(), 120);

  // At least one heartbeat per lease, and no second registration.
  const auto leases = static_cast<size_t>((absl::Now() - begun) / kTtl);
  EXPECT_GE(orchestrator_.heartbeats().size() - before, leases);
  EXPECT_LT(orchestrator_.heartbeats().size() - before, 10 * leases);
  EXPECT_EQ(orchestrator_.registrations().size(), 1u);
  const v1::WorkerStatus status = client_->Status();
  EXPECT_EQ(status.state(), v1::WORKER_STATE_READY);
  EXPECT_LT(status.uptime().seconds(), 300);
  EXPECT_LT(status.last_step_age().seconds(), 60);

  // Shows that the worker did see the changed dates.
  SetDate(absl::Hours(24 * 365 * 10));
  EXPECT_TRUE(IsComplete(client_->Generate(Stream("dated", 1))));
  const std::string year =
      absl::FormatTime("%Y-", absl::Now() + absl::Hours(24 * 365 * 10), absl::UTCTimeZone());
  EXPECT_TRUE(Wait([&] { return absl::StrContains(worker_->Log(), year); })) << worker_->Log();
  EXPECT_TRUE(worker_->Terminate(absl::Seconds(10)).ok());
}

TEST_F(ClockTest, ADeadlineIsAsFarAwayAsItWas) {
  for (const absl::Duration ahead : {-absl::Hours(1), absl::Hours(1)}) {
    v1::GenerateRequest endless = Stream("", 1);
    endless.mutable_stop()->clear_max_tokens();
    GenerateCall call(client_->stub(), endless, absl::Seconds(2));
    const absl::Time begun = absl::Now();
    ASSERT_TRUE(call.ReadUntilTokens(1));
    SetDate(ahead);
    EXPECT_EQ(call.Finish().error.code, grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_GT(absl::Now() - begun, absl::Seconds(1.5));
    // The worker has ended the request too.
    EXPECT_TRUE(client_->WaitForQuiet());
    EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
  }
  EXPECT_TRUE(worker_->Terminate(absl::Seconds(10)).ok());
}

TEST_F(ClockTest, ADrainLastsAsLongAsItWasTo) {
  GenerateCall call(client_->stub(), Stream("drained", 1000), absl::Seconds(120));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  worker_->Signal(SIGTERM);
  ASSERT_TRUE(client_->WaitForState(v1::WORKER_STATE_DRAINING));
  SetDate(absl::Hours(1));
  absl::SleepFor(absl::Seconds(1));
  SetDate(-absl::Hours(1));
  EXPECT_TRUE(IsComplete(call.Finish()));
  const absl::StatusOr<ProcessEnd> end = worker_->WaitForEnd(absl::Seconds(10));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 0);
}

}  // namespace
}  // namespace orcd::testing
