// The real worker with an smg that does what the test says; see scripted_smg.h. Tests with the real
// smg are in third_party/.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "integration_tests/scripted_orchestrator.h"
#include "integration_tests/scripted_smg.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Entries = std::vector<ScriptedSmg::Entry>;

class SmgRegistrationTest : public WorkerTest {
 protected:
  void SetUp() override {
    WorkerTest::SetUp();
    ASSERT_TRUE(smg_.listens());
  }

  void StartEntered(std::vector<std::string> args = {}) {
    args.insert(args.end(), {"--orchestrator", smg_.url()});
    ASSERT_NO_FATAL_FAILURE(StartLoaded(args));
    ASSERT_TRUE(IsEntered());
  }

  std::string own_url() { return absl::StrCat("grpc://", worker().address()); }

  bool IsEntered(const ScriptedSmg& smg, const std::string& url) {
    return Wait([&] { return smg.urls() == std::vector<std::string>{url}; });
  }
  bool IsEntered() { return IsEntered(smg_, own_url()); }

  void ExpectServes() { EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3)))); }

  // Longer than the worker's interval between reads of the list.
  template <typename Condition>
  static bool Wait(const Condition& condition) {
    return WaitUntil(condition, Bound(absl::Seconds(40)));
  }

  ScriptedSmg smg_;
};

TEST_F(SmgRegistrationTest, EntersItselfWhenItsModelIsReadyAndNotBefore) {
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--orchestrator", smg_.url()}));
  ASSERT_TRUE(Wait([&] { return smg_.CountOf("GET /workers") == 1; }));
  EXPECT_EQ(smg_.CountOf("POST"), 0u);
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  ASSERT_TRUE(IsEntered());
  ASSERT_TRUE(client().Unload(false).ok());
  ASSERT_TRUE(Wait([&] { return smg_.urls().empty(); }));
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  EXPECT_TRUE(IsEntered());
}

TEST_F(SmgRegistrationTest, EntersTheConfiguredAddress) {
  ASSERT_NO_FATAL_FAILURE(
      StartLoaded({"--orchestrator", smg_.url(), "--advertise-address", "worker.example:1234"}));
  EXPECT_TRUE(IsEntered(smg_, "grpc://worker.example:1234"));
}

TEST_F(SmgRegistrationTest, AnSmgThatWasStartedAgainHasItAgain) {
  ASSERT_NO_FATAL_FAILURE(StartEntered());
  smg_.GoAway();
  ExpectServes();
  smg_.ComeBack();
  ASSERT_TRUE(smg_.listens());
  EXPECT_TRUE(IsEntered());
  // The worker is removed from the list while smg stays up.
  smg_.Edit([](Entries& entries) { entries.clear(); });
  EXPECT_TRUE(IsEntered());
}

TEST_F(SmgRegistrationTest, AnSmgThatIsStartedLaterIsFound) {
  smg_.GoAway();
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--orchestrator", smg_.url()}));
  ExpectServes();
  smg_.ComeBack();
  EXPECT_TRUE(IsEntered());
}

TEST_F(SmgRegistrationTest, ASilentSmgHoldsNothingUp) {
  ASSERT_NO_FATAL_FAILURE(StartEntered());
  smg_.SetSilent(true);
  const size_t asked = smg_.requests().size();
  // The worker gave up on one request and sent another.
  ASSERT_TRUE(Wait([&] { return smg_.requests().size() > asked + 1; }));
  ExpectServes();
  smg_.SetSilent(false);
  smg_.Edit([](Entries& entries) { entries.clear(); });
  EXPECT_TRUE(IsEntered());
  smg_.SetSilent(true);
  // At its end the worker waits only until it notices that smg is silent.
  EXPECT_TRUE(worker().Terminate(Bound(absl::Seconds(10))).ok());
}

TEST_F(SmgRegistrationTest, OneThatIsThereAlreadyIsEntered) {
  smg_.SetScript([](const ScriptedSmg::Request& request) -> std::optional<std::string> {
    // Another client adds the worker at the last moment.
    if (request.method != "POST") return std::nullopt;
    return ScriptedHttpServer::Answer(409, R"({"code":"WORKER_ALREADY_EXISTS"})");
  });
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--orchestrator", smg_.url()}));
  ASSERT_TRUE(Wait([&] { return smg_.CountOf("POST") == 1; }));
  smg_.Add(own_url());
  ASSERT_TRUE(Wait([&] { return smg_.CountOf("GET /workers/") > 0; }));
  EXPECT_EQ(smg_.CountOf("POST"), 1u);
  ASSERT_TRUE(worker().Terminate(Bound(absl::Seconds(10))).ok());
  EXPECT_THAT(smg_.urls(), IsEmpty());
}

TEST_F(SmgRegistrationTest, ErrorsGarbageAndFloodsAreNotSeenInAStream) {
  ASSERT_NO_FATAL_FAILURE(StartEntered());
  GenerateCall running(stub(), EndlessRequest("running"), Bound(absl::Seconds(120)));
  ASSERT_TRUE(running.ReadUntilTokens(1));
  const std::pair<int, std::string> answers[] = {
      {500, "internal"},
      {503, ""},
      {401, "{}"},
      {200, "no json"},
      {200, "[]"},
      {200, std::string(3 << 20, '[')},
      {302, "{}"},
      {200, R"({"workers":[[],7,{"url":[]}],"id":"../x"})"},
      {202, R"({"worker_id":5})"}};
  for (const auto& [status, body] : answers) {
    smg_.AnswerAll(status, body);
    const size_t asked = smg_.requests().size();
    ASSERT_TRUE(Wait([&] { return smg_.requests().size() > asked; }))
        << status << body.substr(0, 9);
    ASSERT_TRUE(running.ReadUntilTokens(running.so_far().ids.size() + 3));
  }
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_READY);
  smg_.SetScript(nullptr);
  smg_.Edit([](Entries& entries) { entries.clear(); });
  EXPECT_TRUE(IsEntered());
}

TEST_F(SmgRegistrationTest, ADrainTakesItOutWhileItsStreamsGoOn) {
  ASSERT_NO_FATAL_FAILURE(StartEntered({"--drain-timeout", "300s"}));
  GenerateCall call(stub(), EndlessRequest("running"), Bound(absl::Seconds(120)));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  worker().Signal(SIGTERM);
  ASSERT_TRUE(Wait([&] { return smg_.urls().empty(); }));
  // If the worker ended before it knew of its removal, it would remove itself once more.
  ASSERT_TRUE(Wait([&] { return absl::StrContains(worker().Log(), "the worker is not ready"); }));
  ASSERT_TRUE(call.ReadUntilTokens(call.so_far().ids.size() + 3));
  ASSERT_TRUE(client().Cancel("running").ok());
  const absl::StatusOr<ProcessEnd> end = worker().WaitForEnd(Bound(absl::Seconds(10)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 0);
  EXPECT_EQ(smg_.CountOf("DELETE"), 1u);
}

TEST_F(SmgRegistrationTest, TerminationTakesItOut) {
  ASSERT_NO_FATAL_FAILURE(StartEntered());
  smg_.Add("grpc://another:1");
  ASSERT_TRUE(worker().Terminate(Bound(absl::Seconds(10))).ok());
  EXPECT_THAT(smg_.urls(), ElementsAre("grpc://another:1"));
}

TEST_F(SmgRegistrationTest, TerminationDoesNotWaitForAnSmgThatIsAway) {
  ASSERT_NO_FATAL_FAILURE(StartEntered());
  smg_.GoAway();
  const absl::StatusOr<ProcessEnd> end = worker().Terminate(Bound(absl::Seconds(10)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 0);
}

TEST_F(SmgRegistrationTest, AWorkerThatWasKilledIsEnteredAgainAtItsAddress) {
  ASSERT_NO_FATAL_FAILURE(StartEntered());
  const std::string address = worker().address();
  worker().Kill();
  EXPECT_THAT(smg_.urls(), ElementsAre("grpc://" + address)) << "nobody took it out";
  WorkerOptions options;
  options.model_dir = models().path().string();
  options.listen = address;
  options.args = {"--orchestrator", smg_.url()};
  const absl::StatusOr<std::unique_ptr<WorkerProcess>> again = WorkerProcess::Start(options);
  ASSERT_TRUE(again.ok()) << again.status();
  // Requests should go elsewhere until the worker has a model.
  ASSERT_TRUE(Wait([&] { return smg_.urls().empty(); }));
  ASSERT_TRUE(WorkerClient((*again)->address()).Load("nano.gguf").loaded);
  EXPECT_TRUE(IsEntered(smg_, "grpc://" + address));
}

TEST_F(SmgRegistrationTest, TheSecondSmgStandsInForTheFirstAndBothForgetItInTheEnd) {
  ScriptedSmg second;
  ASSERT_TRUE(second.listens());
  ASSERT_NO_FATAL_FAILURE(
      StartLoaded({"--orchestrator", smg_.url(), "--orchestrator", second.url()}));
  ASSERT_TRUE(IsEntered());
  EXPECT_THAT(second.requests(), IsEmpty());
  smg_.SetSilent(true);
  ASSERT_TRUE(IsEntered(second, own_url()));
  smg_.SetSilent(false);
  EXPECT_THAT(smg_.urls(), ElementsAre(own_url()));
  ASSERT_TRUE(worker().Terminate(Bound(absl::Seconds(10))).ok());
  EXPECT_THAT(second.urls(), IsEmpty());
  EXPECT_THAT(smg_.urls(), IsEmpty());
}

TEST_F(SmgRegistrationTest, AnOrchestratorOfOrcdStandsInForSmg) {
  ScriptedOrchestrator orchestrator(absl::Milliseconds(600));
  OrchestratorServer server(orchestrator);
  ASSERT_TRUE(server.listens());
  smg_.AnswerAll(500, "{}");
  ASSERT_NO_FATAL_FAILURE(
      StartLoaded({"--orchestrator", absl::StrCat(smg_.url(), ",", server.address())}));
  EXPECT_TRUE(Wait([&] { return !orchestrator.heartbeats().empty(); }));
}

TEST_F(SmgRegistrationTest, SaysThatSmgDoesNotReachIt) {
  ASSERT_NO_FATAL_FAILURE(StartEntered());
  smg_.Edit([](Entries& entries) {
    entries.at(0).status = "pending";
    entries.at(0).job_status = "processing";
  });
  EXPECT_TRUE(Wait([&] { return absl::StrContains(worker().Log(), "--advertise-address"); }));
}

}  // namespace
}  // namespace orcd::testing
