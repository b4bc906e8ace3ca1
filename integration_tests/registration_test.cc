// The real worker and an orchestrator that does what the test says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "integration_tests/worker_fixture.h"
#include "orcd/v1/orchestrator.grpc.pb.h"

namespace orcd::testing {
namespace {

using ::testing::Contains;

// Keeps what workers said, and grants leases unless told otherwise. Any thread may call.
class ScriptedOrchestrator final : public v1::Orchestrator::Service {
 public:
  explicit ScriptedOrchestrator(absl::Duration lease_ttl) : lease_ttl_(lease_ttl) {}

  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override {
    std::lock_guard lock(mutex_);
    registrations_.push_back(*request);
    if (refuse_registrations_) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now");
    }
    lease_id_ = absl::StrCat("lease-", registrations_.size());
    response->set_lease_id(lease_id_);
    SetTtl(response->mutable_lease_ttl());
    return grpc::Status::OK;
  }

  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override {
    std::lock_guard lock(mutex_);
    heartbeats_.push_back(*request);
    if (request->lease_id() != lease_id_) {
      return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such lease");
    }
    SetTtl(response->mutable_lease_ttl());
    return grpc::Status::OK;
  }

  grpc::Status Deregister(grpc::ServerContext*, const v1::DeregisterRequest* request,
                          v1::DeregisterResponse*) override {
    std::lock_guard lock(mutex_);
    deregistrations_.push_back(*request);
    return grpc::Status::OK;
  }

  // Every lease granted so far becomes unknown.
  void ForgetLeases() {
    std::lock_guard lock(mutex_);
    lease_id_.clear();
  }
  void RefuseRegistrations(bool refuse) {
    std::lock_guard lock(mutex_);
    refuse_registrations_ = refuse;
  }

  std::vector<v1::RegisterRequest> registrations() const {
    std::lock_guard lock(mutex_);
    return registrations_;
  }
  std::vector<v1::HeartbeatRequest> heartbeats() const {
    std::lock_guard lock(mutex_);
    return heartbeats_;
  }
  std::vector<v1::DeregisterRequest> deregistrations() const {
    std::lock_guard lock(mutex_);
    return deregistrations_;
  }
  std::string lease_id() const {
    std::lock_guard lock(mutex_);
    return lease_id_;
  }

 private:
  void SetTtl(google::protobuf::Duration* ttl) const {
    ttl->set_seconds(absl::ToInt64Seconds(lease_ttl_));
    ttl->set_nanos(
        static_cast<int32_t>(absl::ToInt64Nanoseconds(lease_ttl_ - absl::Seconds(ttl->seconds()))));
  }

  const absl::Duration lease_ttl_;
  // Guards what follows.
  mutable std::mutex mutex_;
  bool refuse_registrations_ = false;
  std::string lease_id_;
  std::vector<v1::RegisterRequest> registrations_;
  std::vector<v1::HeartbeatRequest> heartbeats_;
  std::vector<v1::DeregisterRequest> deregistrations_;
};

// A server around an orchestrator, which can go away and come back at the same address.
class OrchestratorServer {
 public:
  explicit OrchestratorServer(v1::Orchestrator::Service& service, int port = 0) : port_(port) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
  }
  ~OrchestratorServer() {
    if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
  }

  bool listens() const { return server_ != nullptr && port_ != 0; }
  int port() const { return port_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int port_;
  std::unique_ptr<grpc::Server> server_;
};

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

  template <typename Condition>
  static bool Wait(const Condition& condition) {
    return WaitUntil(condition, Bound(absl::Seconds(20)));
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
  EXPECT_THAT(request.capabilities().services(), Contains("orcd.v1.Worker"));

  // It was listening by then.
  WorkerClient at_address(request.address());
  EXPECT_EQ(at_address.Status().worker_id(), "worker-7");
}

TEST_F(RegistrationTest, AdvertisesTheAddressItWasTold) {
  ASSERT_NO_FATAL_FAILURE(StartRegistered({"--advertise-address", "worker.example:1234"}));
  EXPECT_EQ(orchestrator_.registrations().front().address(), "worker.example:1234");
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

TEST_F(RegistrationTest, ToldOfEachChangeOfState) {
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
  // Longer than a lease is.
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
  // The end of the worker must not wait for servers that end before it.
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

// The orchestrator is told of the drain before the worker is gone.
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

TEST_F(RegistrationTest, ServesAloneWithoutAnOrchestrator) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
  EXPECT_TRUE(orchestrator_.registrations().empty());
}

}  // namespace
}  // namespace orcd::testing
