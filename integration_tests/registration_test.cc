// The real worker with an orchestrator that does what the test says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "integration_tests/relay.h"
#include "integration_tests/scripted_orchestrator.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using ::testing::Contains;
using ::testing::UnorderedElementsAre;

class RegistrationTest : public WorkerTest {
 protected:
  void SetUp() override {
    WorkerTest::SetUp();
    server_ = std::make_unique<OrchestratorServer>(orchestrator_);
    ASSERT_TRUE(server_->listens());
  }
  void TearDown() override {
    WorkerTest::TearDown();
    server_ = nullptr;
  }

  void StartRegistered(std::vector<std::string> args = {}) {
    args.insert(args.end(), {"--orchestrator", server_->address(), "--worker-id", "worker-7"});
    ASSERT_NO_FATAL_FAILURE(StartWorker(args));
    ASSERT_TRUE(Wait([&] { return !orchestrator_.registrations().empty(); }));
  }

  ScriptedOrchestrator orchestrator_{absl::Milliseconds(600)};
  std::unique_ptr<OrchestratorServer> server_;
};

TEST_F(RegistrationTest, RegistersWithWhoAndWhereItIsAndWhatItCan) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered());
  const v1::RegisterRequest request = orchestrator_.registrations().front();
  EXPECT_EQ(request.status().worker_id(), "worker-7");
  EXPECT_EQ(request.status().instance_id(), client().Status().instance_id());
  EXPECT_EQ(request.status().version(), client().Status().version());
  EXPECT_EQ(request.status().state(), v1::WORKER_STATE_IDLE);
  EXPECT_FALSE(request.status().has_model());
  EXPECT_EQ(request.address(), worker().address());
  EXPECT_THAT(request.capabilities().architectures(), Contains("qwen2"));
  EXPECT_THAT(request.capabilities().tensor_types(), Contains("Q4_K"));
  EXPECT_THAT(
      request.capabilities().services(),
      UnorderedElementsAre("orcd.v1.Worker", "grpc.health.v1.Health", "vllm.grpc.engine.VllmEngine",
                           "inference.GRPCInferenceService"));

  // The worker listens when it registers.
  WorkerClient at_address(request.address());
  EXPECT_EQ(at_address.Status().worker_id(), "worker-7");
}

TEST_F(RegistrationTest, NamesOnlyTheServicesThatItServes) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered({"--no-vllm", "--no-kserve"}));
  EXPECT_THAT(orchestrator_.registrations().front().capabilities().services(),
              UnorderedElementsAre("orcd.v1.Worker", "grpc.health.v1.Health"));
}

TEST_F(RegistrationTest, AdvertisesTheConfiguredAddress) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered({"--advertise-address", "worker.example:1234"}));
  EXPECT_EQ(orchestrator_.registrations().front().address(), "worker.example:1234");
}

TEST_F(RegistrationTest, AdvertisesTheConfiguredHostWithItsPortAndBrackets) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered({"--advertise-host", "fd00::7"}));
  const std::string& bound = worker().address();
  EXPECT_EQ(orchestrator_.registrations().front().address(),
            "[fd00::7]" + bound.substr(bound.rfind(':')));
}

TEST_F(RegistrationTest, HeartbeatsWithinTheLeaseAndCounts) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered());
  ASSERT_TRUE(Wait([&] { return orchestrator_.heartbeats().size() >= 4; }));
  const std::vector<v1::HeartbeatRequest> heartbeats = orchestrator_.heartbeats();
  for (size_t i = 0; i < heartbeats.size(); ++i) {
    EXPECT_EQ(heartbeats[i].lease_id(), "lease-1");
    EXPECT_EQ(heartbeats[i].sequence(), i + 1);
    EXPECT_EQ(heartbeats[i].status().worker_id(), "worker-7");
  }
  EXPECT_EQ(orchestrator_.registrations().size(), 1u);
}

TEST_F(RegistrationTest, EachChangeOfStateIsReported) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered());
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  const auto last_state = [&] {
    const auto heartbeats = orchestrator_.heartbeats();
    return heartbeats.empty() ? v1::WORKER_STATE_UNSPECIFIED : heartbeats.back().status().state();
  };
  EXPECT_TRUE(Wait([&] { return last_state() == v1::WORKER_STATE_READY; }));
  EXPECT_EQ(orchestrator_.heartbeats().back().status().model().model_id(), "nano");
  ASSERT_TRUE(client().Unload(false).ok());
  EXPECT_TRUE(Wait([&] {
    return last_state() == v1::WORKER_STATE_IDLE &&
           !orchestrator_.heartbeats().back().status().has_model();
  }));
}

TEST_F(RegistrationTest, RegistersAgainWhenTheLeaseIsUnknown) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered());
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  for (size_t round = 2; round <= 4; ++round) {
    orchestrator_.ForgetLeases();
    ASSERT_TRUE(Wait([&] { return orchestrator_.registrations().size() >= round; }));
  }
  const std::vector<v1::RegisterRequest> registrations = orchestrator_.registrations();
  EXPECT_EQ(registrations.back().status().instance_id(),
            registrations.front().status().instance_id());
  EXPECT_EQ(registrations.back().status().state(), v1::WORKER_STATE_READY);
  EXPECT_EQ(registrations.back().status().model().model_id(), "nano");
  const std::string lease = orchestrator_.lease_id();
  ASSERT_TRUE(Wait([&] { return orchestrator_.heartbeats().back().lease_id() == lease; }));
}

TEST_F(RegistrationTest, ServesWhileTheOrchestratorIsAwayAndComesBackToIt) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered());
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  const int port = server_->port();
  GenerateCall running(stub(), EndlessRequest("running"), absl::Seconds(60));
  ASSERT_TRUE(running.ReadUntilTokens(1));
  server_ = nullptr;
  // Longer than a lease.
  const absl::Time until = absl::Now() + absl::Seconds(1.5);
  while (absl::Now() < until) {
    ASSERT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 20))));
  }
  EXPECT_TRUE(running.ReadUntilTokens(running.so_far().ids.size() + 5));
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_READY);

  const size_t before = orchestrator_.registrations().size();
  server_ = std::make_unique<OrchestratorServer>(orchestrator_, port);
  ASSERT_TRUE(server_->listens());
  ASSERT_TRUE(Wait([&] { return orchestrator_.registrations().size() > before; }));
  EXPECT_EQ(orchestrator_.registrations().back().status().model().model_id(), "nano");
}

TEST_F(RegistrationTest, TriesAgainUntilItIsLetIn) {
  orchestrator_.RefuseRegistrations(true);
  ASSERT_NO_FATAL_FAILURE(StartRegistered());
  ASSERT_TRUE(Wait([&] { return orchestrator_.registrations().size() >= 3; }));
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
  EXPECT_TRUE(orchestrator_.heartbeats().empty());
  orchestrator_.RefuseRegistrations(false);
  EXPECT_TRUE(Wait([&] { return !orchestrator_.heartbeats().empty(); }));
}

TEST_F(RegistrationTest, SecondOrchestratorStandsInForTheFirst) {
  ScriptedOrchestrator second(absl::Milliseconds(600));
  OrchestratorServer second_server(second);
  ASSERT_TRUE(second_server.listens());
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--orchestrator", server_->address(), "--orchestrator",
                                       second_server.address(), "--worker-id", "worker-7"}));
  ASSERT_TRUE(Wait([&] { return !orchestrator_.heartbeats().empty(); }));
  EXPECT_TRUE(second.registrations().empty());
  server_ = nullptr;
  EXPECT_TRUE(Wait([&] { return !second.heartbeats().empty(); }));
  // The worker's end must not wait for an orchestrator that is gone.
  ASSERT_TRUE(worker().Terminate(Bound(absl::Seconds(10))).ok());
  EXPECT_EQ(second.deregistrations().size(), 1u);
}

TEST_F(RegistrationTest, DeregistersOnTermination) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered());
  ASSERT_TRUE(Wait([&] { return !orchestrator_.heartbeats().empty(); }));
  const std::string instance = client().Status().instance_id();
  const absl::StatusOr<ProcessEnd> end = worker().Terminate(Bound(absl::Seconds(10)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 0);
  const std::vector<v1::DeregisterRequest> deregistrations = orchestrator_.deregistrations();
  ASSERT_EQ(deregistrations.size(), 1u);
  EXPECT_EQ(deregistrations[0].lease_id(), "lease-1");
  EXPECT_EQ(deregistrations[0].worker_id(), "worker-7");
  EXPECT_EQ(deregistrations[0].instance_id(), instance);
}

TEST_F(RegistrationTest, TerminationDoesNotWaitForAnOrchestratorThatIsAway) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered());
  ASSERT_TRUE(Wait([&] { return !orchestrator_.heartbeats().empty(); }));
  server_ = nullptr;
  const absl::StatusOr<ProcessEnd> end = worker().Terminate(Bound(absl::Seconds(10)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 0);
}

// The worker reports the drain to the orchestrator before it ends.
TEST_F(RegistrationTest, OrchestratorSeesTheDrain) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered({"--drain-timeout", "300s"}));
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  GenerateCall call(stub(), EndlessRequest("running"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  worker().Signal(SIGTERM);
  EXPECT_TRUE(Wait([&] {
    return orchestrator_.heartbeats().back().status().state() == v1::WORKER_STATE_DRAINING;
  }));
  EXPECT_TRUE(orchestrator_.deregistrations().empty()) << "it still serves";
  ASSERT_TRUE(client().Cancel("running").ok());
  ASSERT_TRUE(worker().WaitForEnd(Bound(absl::Seconds(10))).ok());
  EXPECT_EQ(orchestrator_.deregistrations().size(), 1u);
}

v1::Directive LoadDirective(const std::string& id, const std::string& model) {
  v1::Directive directive;
  directive.set_id(id);
  directive.mutable_load()->set_model(model);
  return directive;
}

TEST_F(RegistrationTest, CarriesDirectivesOutInTheirOrder) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered());
  v1::Directive unload;
  unload.set_id("2");
  unload.mutable_unload();
  // One directive has a path that the Load call would refuse, too.
  orchestrator_.SetDirectives(
      "worker-7", {LoadDirective("1", "nano.gguf"), unload, LoadDirective("3", "../nano.gguf"),
                   LoadDirective("4", "nano.gguf")});
  ASSERT_TRUE(Wait(
      [&] { return orchestrator_.outcome("4").state() == v1::DirectiveOutcome::STATE_SUCCEEDED; }));
  EXPECT_EQ(orchestrator_.outcome("1").state(), v1::DirectiveOutcome::STATE_SUCCEEDED);
  EXPECT_EQ(orchestrator_.outcome("2").state(), v1::DirectiveOutcome::STATE_SUCCEEDED);
  EXPECT_EQ(orchestrator_.outcome("3").state(), v1::DirectiveOutcome::STATE_FAILED);
  EXPECT_EQ(orchestrator_.outcome("3").error().code(),
            static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_TRUE(
      Wait([&] { return orchestrator_.status("worker-7").state() == v1::WORKER_STATE_READY; }));
  // Directives are repeated in every reply, yet a model unloaded by hand stays unloaded.
  ASSERT_TRUE(client().Unload(false).ok());
  const size_t heard = orchestrator_.heartbeats().size();
  ASSERT_TRUE(Wait([&] { return orchestrator_.heartbeats().size() > heard + 3; }));
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_IDLE);
}

TEST_F(RegistrationTest, DrainDirectiveLetsRequestsFinishAndThenExits) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered());
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  v1::GenerateRequest request = EndlessRequest("running");
  request.mutable_stop()->set_max_tokens(300);
  GenerateCall call(stub(), request, absl::Seconds(120));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  v1::Directive drain;
  drain.set_id("drain");
  drain.mutable_drain()->mutable_timeout()->set_seconds(240);
  drain.mutable_drain()->set_exit(true);
  orchestrator_.SetDirectives("worker-7", {drain});
  EXPECT_TRUE(IsComplete(call.Finish()));
  const absl::StatusOr<ProcessEnd> end = worker().WaitForEnd(Bound(absl::Seconds(20)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 0);
  EXPECT_EQ(orchestrator_.deregistrations().size(), 1u);
  EXPECT_EQ(orchestrator_.outcome("drain").state(), v1::DirectiveOutcome::STATE_SUCCEEDED);
}

TEST_F(RegistrationTest, OfTwoWithOneIdentityTheFirstIsFencedAndFinishesWhatItRuns) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered());
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  v1::GenerateRequest request = EndlessRequest("running");
  request.mutable_stop()->set_max_tokens(1000);
  GenerateCall call(stub(), request, absl::Seconds(120));
  ASSERT_TRUE(call.ReadUntilTokens(1));

  WorkerOptions options;
  options.model_dir = models().path().string();
  options.args = {"--orchestrator", server_->address(), "--worker-id", "worker-7"};
  absl::StatusOr<std::unique_ptr<WorkerProcess>> second = WorkerProcess::Start(options);
  ASSERT_TRUE(second.ok()) << second.status();
  WorkerClient second_client((*second)->address());
  const std::string second_instance = second_client.Status().instance_id();

  ASSERT_TRUE(client().WaitForStatus([&](const v1::WorkerStatus& status) {
    return absl::StrContains(status.reason(), second_instance);
  }));
  EXPECT_TRUE(IsError(client().Generate(TextRequest("Hello", 3)).error,
                      grpc::StatusCode::UNAVAILABLE, "DRAINING"));
  EXPECT_TRUE(IsComplete(call.Finish()));
  EXPECT_TRUE(client().WaitForState(v1::WORKER_STATE_DRAINED));

  // The first worker sends no more heartbeats, and the second keeps the identity.
  const std::string first_instance = client().Status().instance_id();
  const auto last_of_first = [&] {
    size_t last = 0;
    const auto heartbeats = orchestrator_.heartbeats();
    for (size_t i = 0; i < heartbeats.size(); ++i) {
      if (heartbeats[i].status().instance_id() == first_instance) last = i;
    }
    return last;
  };
  const size_t fenced_at = last_of_first();
  const size_t registrations = orchestrator_.registrations().size();
  ASSERT_TRUE(Wait([&] { return orchestrator_.heartbeats().size() > fenced_at + 5; }));
  EXPECT_EQ(last_of_first(), fenced_at);
  EXPECT_EQ(orchestrator_.registrations().size(), registrations);
  EXPECT_EQ(orchestrator_.status("worker-7").instance_id(), second_instance);
  ASSERT_TRUE(worker().Running());
  // The end of the first worker does not remove the second's entry.
  ASSERT_TRUE(worker().Terminate(Bound(absl::Seconds(10))).ok());
  EXPECT_TRUE(orchestrator_.deregistrations().empty());
}

// The orchestrator is slow, flaps, restarts without state, is away, and grants absurd leases.
// Running streams do not notice, and in the end the worker is registered again.
TEST_F(RegistrationTest, NoActionOfAnOrchestratorChangesAStream) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered());
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  v1::GenerateRequest request = EndlessRequest("running");
  request.mutable_stop()->set_max_tokens(200);
  // No request id, because an id is free again only a moment after its stream has ended.
  request.clear_request_id();
  const Generation expected = client().Generate(request);
  ASSERT_TRUE(IsComplete(expected));
  std::atomic<bool> stop = false;
  std::atomic<int> streams = 0;
  int wrong = 0;
  std::thread user([&] {
    WorkerClient own(worker().address());
    for (; !stop; ++streams) {
      const Generation generation = own.Generate(request);
      if (!IsComplete(generation) || generation.ids != expected.ids) ++wrong;
    }
  });

  const auto rest = [] { absl::SleepFor(absl::Milliseconds(300)); };
  orchestrator_.ReplyAfter(absl::Seconds(2));
  EXPECT_TRUE(Wait([&] { return orchestrator_.abandoned() > 0; }));
  orchestrator_.ReplyAfter(absl::ZeroDuration());
  const int port = server_->port();
  for (int i = 0; i < 5; ++i) {
    server_ = nullptr;
    rest();
    orchestrator_.ForgetLeases();
    server_ = std::make_unique<OrchestratorServer>(orchestrator_, port);
    EXPECT_TRUE(server_->listens());
    rest();
  }
  orchestrator_.RefuseRegistrations(true);
  orchestrator_.ForgetLeases();
  rest();
  orchestrator_.RefuseRegistrations(false);
  for (const absl::Duration ttl : {absl::ZeroDuration(), -absl::Hours(1), absl::Nanoseconds(1),
                                   absl::Hours(24 * 365 * 9000)}) {
    orchestrator_.SetTtl(ttl);
    orchestrator_.ForgetLeases();
    rest();
  }
  // On a slow machine a single stream may have outlasted all of that.
  EXPECT_TRUE(Wait([&] { return streams > 1; }));
  stop = true;
  user.join();
  EXPECT_EQ(wrong, 0);
  // A lease of zero length does not make the worker flood the orchestrator with calls.
  EXPECT_LT(orchestrator_.heartbeats().size() + orchestrator_.registrations().size(), 300u);

  // The worker may believe that the last lease lasts for years, but still reports a change of
  // state.
  orchestrator_.SetTtl(absl::Milliseconds(600));
  ASSERT_TRUE(client().Unload(false).ok());
  const size_t before = orchestrator_.heartbeats().size();
  EXPECT_TRUE(Wait([&] { return orchestrator_.heartbeats().size() > before + 3; }));
  EXPECT_EQ(orchestrator_.status("worker-7").state(), v1::WORKER_STATE_IDLE);
}

// The network to the orchestrator drops everything for some leases; connections open at that time
// never carry anything again.
TEST_F(RegistrationTest, APartitionIsNotSeenInAStreamAndTheLeaseComesBack) {
  Relay way;
  way.SetTarget(server_->address());
  ASSERT_NO_FATAL_FAILURE(
      StartWorker({"--orchestrator", way.address(), "--worker-id", "worker-7"}));
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  ASSERT_TRUE(Wait([&] { return !orchestrator_.heartbeats().empty(); }));
  v1::GenerateRequest request = EndlessRequest("running");
  request.mutable_stop()->set_max_tokens(400);
  const Generation expected = client().Generate(request);
  ASSERT_TRUE(IsComplete(expected));
  for (int i = 0; i < 3; ++i) {
    request.set_request_id(absl::StrCat("running", i));
    GenerateCall call(stub(), request, absl::Seconds(120));
    ASSERT_TRUE(call.ReadUntilTokens(1));
    way.Cut();
    // Waits until messages in flight have arrived.
    absl::SleepFor(Bound(absl::Milliseconds(50)));
    const size_t heard = orchestrator_.heartbeats().size() + orchestrator_.registrations().size();
    // Longer than a lease, so that the orchestrator considers the worker gone.
    absl::SleepFor(absl::Seconds(1.5));
    orchestrator_.ForgetLeases();
    EXPECT_EQ(orchestrator_.heartbeats().size() + orchestrator_.registrations().size(), heard);
    const std::string lease = orchestrator_.lease_id();
    way.Restore();
    const Generation& generation = call.Finish();
    ASSERT_TRUE(IsComplete(generation));
    EXPECT_EQ(generation.ids, expected.ids);
    EXPECT_EQ(generation.text, expected.text);
    ASSERT_TRUE(Wait([&] { return orchestrator_.lease_id() != lease; })) << "it is not back";
    const size_t then = orchestrator_.heartbeats().size();
    ASSERT_TRUE(Wait([&] { return orchestrator_.heartbeats().size() > then + 1; }));
    EXPECT_EQ(orchestrator_.status("worker-7").state(), v1::WORKER_STATE_READY);
  }
}

TEST_F(RegistrationTest, HeartbeatsMeasureRatesAndNameNoGpuOnACpu) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered());
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  GenerateCall call(stub(), EndlessRequest("running"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  ASSERT_TRUE(Wait([&] {
    call.ReadUntilTokens(call.so_far().ids.size() + 10);
    return orchestrator_.status("worker-7").rates().generated_tokens_per_second() > 0;
  }));
  // Prompts that share no cached prefix.
  const auto ask = [&](uint32_t first) {
    std::vector<uint32_t> prompt;
    for (uint32_t i = 0; i < 64; ++i) prompt.push_back(first + i);
    return client().Generate(TokenRequest(prompt, 1));
  };
  const auto prompt_rate = [&] {
    return orchestrator_.status("worker-7").rates().prompt_tokens_per_second();
  };
  for (uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(IsComplete(ask(10 * i)));
  // 512 tokens within a window of about 10 s.
  ASSERT_TRUE(Wait([&] { return prompt_rate() > 20; }));
  // The next heartbeat reports that the last of these requests has ended.
  ASSERT_TRUE(
      Wait([&] { return orchestrator_.status("worker-7").queue().running_requests() == 1; }));
  const v1::WorkerStatus status = orchestrator_.status("worker-7");
  EXPECT_LT(status.kv_blocks().free(), status.kv_blocks().total());
  EXPECT_EQ(status.device().backend(), "cpu");
  EXPECT_FALSE(status.device().has_gpu());
  EXPECT_EQ(status.model().digest().substr(0, 12), "sha256-tree:");
}

TEST_F(RegistrationTest, ServesAloneWithoutAnOrchestrator) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
  EXPECT_TRUE(orchestrator_.registrations().empty());
}

}  // namespace
}  // namespace orcd::testing
