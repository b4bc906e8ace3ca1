#include "worker/fleet/registration.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "integration_tests/scripted_smg.h"
#include "testing/eventually.h"
#include "worker/fleet/orcd_link.h"
#include "worker/fleet/smg_link.h"

namespace orcd {
namespace {

using orcd::v1::DeregisterRequest;
using orcd::v1::DeregisterResponse;
using orcd::v1::HeartbeatRequest;
using orcd::v1::HeartbeatResponse;
using orcd::v1::RegisterRequest;
using orcd::v1::RegisterResponse;
using orcd::v1::WorkerStatus;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTestLimit(20);

// An orchestrator that records the requests it gets and answers as its fields say. It has one fixed
// port, where it can go away and come back.
class ScriptedOrchestrator final : public orcd::v1::Orchestrator::Service {
 public:
  struct Received {
    Clock::time_point at;
    HeartbeatRequest request;
  };

  ScriptedOrchestrator() { ComeBack(); }
  ~ScriptedOrchestrator() override { GoAway(); }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  void GoAway() {
    if (server_ == nullptr) return;
    {
      std::lock_guard lock(mu_);
      stopping_ = true;
    }
    changed_.notify_all();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }

  void ComeBack() {
    {
      std::lock_guard lock(mu_);
      stopping_ = false;
    }
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port_),
                             grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  // Waits until `done`, which may read the recorded requests, returns true.
  bool WaitFor(const std::function<bool()>& done) {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, kTestLimit, done);
  }
  bool WaitForRegistrations(size_t n) {
    return WaitFor([&] { return registrations.size() >= n; });
  }
  bool WaitForHeartbeats(size_t n) {
    return WaitFor([&] { return heartbeats.size() >= n; });
  }

  template <typename F>
  auto Locked(const F& f) {
    std::lock_guard lock(mu_);
    return f();
  }

  // The script. Change it under Locked once a registration runs.
  absl::Duration ttl = absl::Milliseconds(400);
  grpc::Status register_status;
  grpc::Status heartbeat_status;
  bool knows_leases = true;
  bool hangs = false;
  bool grants_nothing = false;
  // The instance that has the worker_id, if it is not the caller.
  std::string other_instance;
  // Sent with each reply.
  std::vector<orcd::v1::Directive> directives;

  // The recorded requests. Read them under Locked while a registration runs.
  std::vector<RegisterRequest> registrations;
  std::vector<Received> heartbeats;
  std::vector<DeregisterRequest> deregistrations;

 private:
  grpc::Status Register(grpc::ServerContext*, const RegisterRequest* request,
                        RegisterResponse* response) override {
    std::unique_lock lock(mu_);
    registrations.push_back(*request);
    changed_.notify_all();
    if (HangLocked(lock) || !register_status.ok()) return register_status;
    if (!other_instance.empty()) return Superseded();
    for (const auto& directive : directives) *response->add_directives() = directive;
    if (grants_nothing) return grpc::Status::OK;
    response->set_lease_id(LeaseId(registrations.size()));
    SetTtl(response->mutable_lease_ttl());
    knows_leases = true;
    return grpc::Status::OK;
  }

  grpc::Status Heartbeat(grpc::ServerContext*, const HeartbeatRequest* request,
                         HeartbeatResponse* response) override {
    std::unique_lock lock(mu_);
    heartbeats.push_back({Clock::now(), *request});
    changed_.notify_all();
    if (HangLocked(lock) || !heartbeat_status.ok()) return heartbeat_status;
    if (!other_instance.empty()) return Superseded();
    if (!knows_leases) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such lease");
    for (const auto& directive : directives) *response->add_directives() = directive;
    SetTtl(response->mutable_lease_ttl());
    return grpc::Status::OK;
  }

  grpc::Status Deregister(grpc::ServerContext*, const DeregisterRequest* request,
                          DeregisterResponse*) override {
    std::unique_lock lock(mu_);
    deregistrations.push_back(*request);
    changed_.notify_all();
    HangLocked(lock);
    return grpc::Status::OK;
  }

  bool HangLocked(std::unique_lock<std::mutex>& lock) {
    if (!hangs) return false;
    changed_.wait(lock, [&] { return stopping_ || !hangs; });
    return true;
  }

  grpc::Status Superseded() const {
    google::rpc::ErrorInfo info;
    info.set_domain("orcd");
    info.set_reason("SUPERSEDED");
    (*info.mutable_metadata())["instance_id"] = other_instance;
    google::rpc::Status rpc;
    rpc.set_code(static_cast<int>(grpc::StatusCode::ABORTED));
    rpc.add_details()->PackFrom(info);
    return grpc::Status(grpc::StatusCode::ABORTED, "another has it", rpc.SerializeAsString());
  }

  static std::string LeaseId(size_t n) { return "lease-" + std::to_string(n); }
  void SetTtl(google::protobuf::Duration* out) const {
    out->set_seconds(absl::ToInt64Seconds(ttl));
    out->set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(ttl % absl::Seconds(1))));
  }

  std::mutex mu_;
  std::condition_variable changed_;
  bool stopping_ = false;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class RegistrationTest : public ::testing::Test {
 protected:
  std::unique_ptr<Registration> NewRegistration(std::vector<std::string> orchestrators) {
    Registration::Options options;
    options.rpc_timeout = absl::Seconds(2);
    options.backoff = {.initial = absl::Milliseconds(40), .max = absl::Milliseconds(320)};
    for (std::string& address : orchestrators) {
      if (absl::StartsWith(address, "http://")) {
        SmgLink::Options link;
        link.orchestrator = std::move(address);
        link.address = "10.1.2.3:50051";
        link.ttl = absl::Seconds(1);
        options.orchestrators.push_back(std::make_unique<SmgLink>(std::move(link)));
        continue;
      }
      OrcdLink::Options link;
      link.orchestrator = std::move(address);
      link.address = "10.1.2.3:50051";
      link.capabilities.add_architectures("qwen2");
      link.capabilities.add_tensor_types("Q4_K");
      link.retry_after = options.backoff.initial;
      options.orchestrators.push_back(std::make_unique<OrcdLink>(std::move(link)));
    }
    options.directives.load = [this](const orcd::v1::LoadRequest& request, Directives::Done done) {
      ++loads_;
      done(request.model() == "bad" ? absl::NotFoundError("no such model") : absl::OkStatus());
    };
    options.on_superseded = [this](const std::string& instance) {
      std::lock_guard lock(mu_);
      superseded_by_.push_back(instance);
    };
    options.on_heartbeat = [this](std::string_view result) {
      std::lock_guard lock(mu_);
      results_.emplace_back(result);
    };
    return std::make_unique<Registration>(
        std::move(options),
        [this] {
          WorkerStatus status;
          status.set_worker_id("worker-a");
          status.set_instance_id("instance-1");
          status.set_state(state_.load());
          return status;
        },
        &logger_);
  }

  const Logger logger_{LogFormat::kText, LogLevel::kError};
  std::atomic<orcd::v1::WorkerState> state_ = orcd::v1::WORKER_STATE_IDLE;
  std::atomic<int> loads_ = 0;
  // Guards the members below.
  std::mutex mu_;
  std::vector<std::string> superseded_by_;
  std::vector<std::string> results_;
};

TEST_F(RegistrationTest, RegistersWithStatusAddressAndCapabilities) {
  ScriptedOrchestrator orchestrator;
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  ASSERT_TRUE(orchestrator.WaitForRegistrations(1));
  const RegisterRequest request =
      orchestrator.Locked([&] { return orchestrator.registrations.at(0); });
  EXPECT_EQ(request.status().worker_id(), "worker-a");
  EXPECT_EQ(request.status().instance_id(), "instance-1");
  EXPECT_EQ(request.status().state(), orcd::v1::WORKER_STATE_IDLE);
  EXPECT_EQ(request.address(), "10.1.2.3:50051");
  EXPECT_THAT(request.capabilities().architectures(), ElementsAre("qwen2"));
  EXPECT_THAT(request.capabilities().tensor_types(), ElementsAre("Q4_K"));
}

TEST_F(RegistrationTest, HeartbeatsAtHalfTheLeaseWithStatusAndGrowingSequence) {
  ScriptedOrchestrator orchestrator;
  orchestrator.ttl = absl::Seconds(1);
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  ASSERT_TRUE(orchestrator.WaitForRegistrations(1));
  state_ = orcd::v1::WORKER_STATE_READY;
  ASSERT_TRUE(orchestrator.WaitForHeartbeats(4));
  registration->Stop(absl::Seconds(5));

  EXPECT_EQ(orchestrator.registrations.size(), 1u) << "the lease was lost on the way";
  for (size_t i = 0; i < orchestrator.heartbeats.size(); ++i) {
    const auto& [at, request] = orchestrator.heartbeats[i];
    EXPECT_EQ(request.lease_id(), "lease-1");
    EXPECT_EQ(request.sequence(), i + 1);
    EXPECT_EQ(request.status().state(), orcd::v1::WORKER_STATE_READY);
    EXPECT_EQ(request.status().worker_id(), "worker-a");
    if (i == 0) continue;
    const auto gap = at - orchestrator.heartbeats[i - 1].at;
    EXPECT_GT(gap, milliseconds(250)) << "heartbeat " << i;
    EXPECT_LT(gap, milliseconds(1000)) << "heartbeat " << i << " came after the lease";
  }
}

TEST_F(RegistrationTest, AChangeOfStateIsReportedAtOnce) {
  ScriptedOrchestrator orchestrator;
  orchestrator.ttl = absl::Hours(1);
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  ASSERT_TRUE(orchestrator.WaitForRegistrations(1));
  state_ = orcd::v1::WORKER_STATE_LOADING;
  const Clock::time_point changed = Clock::now();
  registration->NotifyStateChanged();
  ASSERT_TRUE(orchestrator.WaitFor([&] {
    return !orchestrator.heartbeats.empty() &&
           orchestrator.heartbeats.back().request.status().state() ==
               orcd::v1::WORKER_STATE_LOADING;
  }));
  EXPECT_LT(Clock::now() - changed, milliseconds(1000));
}

TEST_F(RegistrationTest, RegistersAgainWhenTheLeaseIsUnknown) {
  ScriptedOrchestrator orchestrator;
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  ASSERT_TRUE(orchestrator.WaitForHeartbeats(2));
  orchestrator.Locked([&] { orchestrator.knows_leases = false; });
  ASSERT_TRUE(orchestrator.WaitForRegistrations(2));
  ASSERT_TRUE(orchestrator.WaitFor(
      [&] { return orchestrator.heartbeats.back().request.lease_id() == "lease-2"; }));
  orchestrator.Locked([&] {
    EXPECT_EQ(orchestrator.heartbeats.back().request.sequence(), 1u) << "of the new lease";
  });
}

TEST_F(RegistrationTest, AnOrchestratorThatStartsLaterIsFound) {
  ScriptedOrchestrator orchestrator;
  orchestrator.GoAway();
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  std::this_thread::sleep_for(milliseconds(300));
  orchestrator.ComeBack();
  EXPECT_TRUE(orchestrator.WaitForHeartbeats(1));
}

TEST_F(RegistrationTest, AwayForLessThanTheLeaseKeepsIt) {
  ScriptedOrchestrator orchestrator;
  orchestrator.ttl = absl::Seconds(4);
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  // A heartbeat shows that the worker has the lease.
  ASSERT_TRUE(orchestrator.WaitForHeartbeats(1));
  orchestrator.GoAway();
  registration->NotifyStateChanged();
  std::this_thread::sleep_for(milliseconds(300));
  orchestrator.ComeBack();
  ASSERT_TRUE(orchestrator.WaitForHeartbeats(2));
  registration->Stop(absl::Seconds(5));
  EXPECT_EQ(orchestrator.registrations.size(), 1u);
  EXPECT_EQ(orchestrator.heartbeats.at(1).request.lease_id(), "lease-1");
}

TEST_F(RegistrationTest, AwayForLongerThanTheLeaseRegistersAnew) {
  ScriptedOrchestrator orchestrator;
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  ASSERT_TRUE(orchestrator.WaitForHeartbeats(1));
  orchestrator.GoAway();
  std::this_thread::sleep_for(milliseconds(600));
  orchestrator.ComeBack();
  ASSERT_TRUE(orchestrator.WaitForRegistrations(2));
  ASSERT_TRUE(orchestrator.WaitFor(
      [&] { return orchestrator.heartbeats.back().request.lease_id() == "lease-2"; }));
}

TEST_F(RegistrationTest, FailsOverToTheNextOrchestrator) {
  ScriptedOrchestrator first;
  ScriptedOrchestrator second;
  second.knows_leases = false;
  auto registration = NewRegistration({first.address(), second.address()});
  registration->Start();
  ASSERT_TRUE(first.WaitForHeartbeats(1));
  EXPECT_EQ(second.Locked([&] { return second.registrations.size(); }), 0u);
  first.GoAway();
  // The second orchestrator does not know the first one's lease and grants its own.
  ASSERT_TRUE(second.WaitForRegistrations(1));
  ASSERT_TRUE(second.WaitFor([&] {
    return !second.heartbeats.empty() && second.heartbeats.back().request.lease_id() == "lease-1" &&
           second.knows_leases;
  }));
  registration->Stop(absl::Seconds(5));
  EXPECT_EQ(second.deregistrations.size(), 1u);
}

TEST_F(RegistrationTest, AHangingOrchestratorIsLeftForTheNextWithinTheLease) {
  ScriptedOrchestrator first;
  ScriptedOrchestrator second;
  first.ttl = second.ttl = absl::Seconds(1);
  auto registration = NewRegistration({first.address(), second.address()});
  registration->Start();
  ASSERT_TRUE(first.WaitForHeartbeats(1));
  first.Locked([&] { first.hangs = true; });
  ASSERT_TRUE(first.WaitForHeartbeats(2));
  ASSERT_TRUE(second.WaitForHeartbeats(1));
  second.Locked([&] {
    EXPECT_EQ(second.heartbeats.front().request.lease_id(), "lease-1");
    EXPECT_EQ(second.registrations.size(), 0u) << "the lease ran out first";
  });
}

TEST_F(RegistrationTest, RefusalsAndRepliesWithoutALeaseAreRetriedWithoutAFlood) {
  ScriptedOrchestrator orchestrator;
  orchestrator.register_status = grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "who are you?");
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  ASSERT_TRUE(orchestrator.WaitForRegistrations(3));
  orchestrator.Locked([&] {
    orchestrator.register_status = grpc::Status::OK;
    orchestrator.grants_nothing = true;
    orchestrator.registrations.clear();
  });
  std::this_thread::sleep_for(milliseconds(1000));
  orchestrator.Locked([&] {
    EXPECT_GE(orchestrator.registrations.size(), 1u);
    EXPECT_LE(orchestrator.registrations.size(), 15u) << "no backoff";
    EXPECT_EQ(orchestrator.heartbeats.size(), 0u);
    orchestrator.grants_nothing = false;
  });
  EXPECT_TRUE(orchestrator.WaitForHeartbeats(1));
}

orcd::v1::Directive LoadDirective(const std::string& id, const std::string& model) {
  orcd::v1::Directive directive;
  directive.set_id(id);
  directive.mutable_load()->set_model(model);
  return directive;
}

TEST_F(RegistrationTest, DirectivesAreCarriedOutOnceAndTheirOutcomeIsReportedAtOnce) {
  ScriptedOrchestrator orchestrator;
  orchestrator.ttl = absl::Seconds(30);
  orchestrator.directives = {LoadDirective("d1", "good"), LoadDirective("d2", "bad")};
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  // Long before half of the lease is over: both directives were in the reply to Register.
  ASSERT_TRUE(orchestrator.WaitFor([&] {
    return !orchestrator.heartbeats.empty() &&
           orchestrator.heartbeats.back().request.outcomes_size() == 2;
  }));
  for (int i = 0; i < 5; ++i) {
    const size_t n = orchestrator.Locked([&] { return orchestrator.heartbeats.size(); });
    registration->NotifyStateChanged();
    ASSERT_TRUE(orchestrator.WaitForHeartbeats(n + 1));
  }
  EXPECT_EQ(loads_, 2) << "sent with every reply, and carried out once each";
  orchestrator.Locked([&] {
    std::map<std::string, orcd::v1::DirectiveOutcome> outcomes;
    for (const auto& outcome : orchestrator.heartbeats.back().request.outcomes()) {
      outcomes[outcome.id()] = outcome;
    }
    EXPECT_EQ(outcomes["d1"].state(), orcd::v1::DirectiveOutcome::STATE_SUCCEEDED);
    EXPECT_EQ(outcomes["d2"].state(), orcd::v1::DirectiveOutcome::STATE_FAILED);
    EXPECT_EQ(outcomes["d2"].error().code(), 5);
  });
}

TEST_F(RegistrationTest, DirectivesAreRememberedAcrossLeasesAndOrchestrators) {
  ScriptedOrchestrator first;
  ScriptedOrchestrator second;
  second.knows_leases = false;
  first.directives = second.directives = {LoadDirective("d1", "good")};
  auto registration = NewRegistration({first.address(), second.address()});
  registration->Start();
  ASSERT_TRUE(first.WaitForHeartbeats(2));
  first.Locked([&] { first.knows_leases = false; });
  ASSERT_TRUE(first.WaitForRegistrations(2));
  first.GoAway();
  ASSERT_TRUE(second.WaitForRegistrations(1));
  ASSERT_TRUE(second.WaitForHeartbeats(2));
  EXPECT_EQ(loads_, 1);
}

TEST_F(RegistrationTest, ReregistersOnRequestAndDoesNotFlood) {
  ScriptedOrchestrator orchestrator;
  orchestrator.ttl = absl::Seconds(30);
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  ASSERT_TRUE(orchestrator.WaitForRegistrations(1));
  // Put a new directive into every reply, those to Register too.
  std::atomic<bool> stop = false;
  std::thread liar([&] {
    for (int i = 0; !stop; ++i) {
      orchestrator.Locked([&] {
        orcd::v1::Directive directive;
        directive.set_id("r" + std::to_string(i));
        directive.mutable_reregister();
        orchestrator.directives = {directive};
      });
      // A reply without a new directive is then soon followed by one that has one.
      registration->NotifyStateChanged();
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  const bool again = orchestrator.WaitForRegistrations(3);
  const size_t before = orchestrator.Locked([&] { return orchestrator.registrations.size(); });
  std::this_thread::sleep_for(milliseconds(1000));
  const size_t after = orchestrator.Locked([&] { return orchestrator.registrations.size(); });
  stop = true;
  liar.join();
  EXPECT_TRUE(again);
  EXPECT_LE(after - before, 30u) << "one in 40 ms is the most there may be";
}

TEST_F(RegistrationTest, ASupersededWorkerRegistersNoMore) {
  ScriptedOrchestrator orchestrator;
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  ASSERT_TRUE(orchestrator.WaitForHeartbeats(1));
  orchestrator.Locked([&] { orchestrator.other_instance = "instance-2"; });
  ASSERT_TRUE(Eventually([&] {
    std::lock_guard lock(mu_);
    return !superseded_by_.empty();
  }));
  const auto heard = [&] {
    return orchestrator.registrations.size() + orchestrator.heartbeats.size();
  };
  const size_t before = orchestrator.Locked(heard);
  registration->NotifyStateChanged();
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_EQ(orchestrator.Locked(heard), before);
  registration->Stop(absl::Seconds(5));
  EXPECT_EQ(orchestrator.deregistrations.size(), 0u) << "the lease is another's";
  EXPECT_THAT(superseded_by_, ElementsAre("instance-2"));
  EXPECT_EQ(results_.back(), "superseded");
}

TEST_F(RegistrationTest, ASupersededWorkerLeavesWhoListsItByItsAddress) {
  ScriptedSmg smg;
  ScriptedOrchestrator orchestrator;
  ASSERT_TRUE(smg.listens());
  orchestrator.knows_leases = false;
  state_ = orcd::v1::WORKER_STATE_READY;
  auto registration = NewRegistration({smg.url(), orchestrator.address()});
  registration->Start();
  ASSERT_TRUE(Eventually([&] { return smg.urls().size() == 1; }));
  smg.AnswerAll(500, "{}");
  ASSERT_TRUE(orchestrator.WaitForRegistrations(1));
  smg.SetScript(nullptr);
  orchestrator.Locked([&] { orchestrator.other_instance = "instance-2"; });
  EXPECT_TRUE(Eventually([&] { return smg.urls().empty(); }));
  registration->Stop(absl::Seconds(5));
  EXPECT_EQ(orchestrator.deregistrations.size(), 0u) << "the lease is another's";
}

TEST_F(RegistrationTest, ASupersedingThatNamesNobodyOrTheWorkerItselfIsAFailureLikeAnother) {
  ScriptedOrchestrator orchestrator;
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  ASSERT_TRUE(orchestrator.WaitForHeartbeats(1));
  orchestrator.Locked([&] { orchestrator.other_instance = "instance-1"; });
  const size_t n = orchestrator.Locked([&] { return orchestrator.heartbeats.size(); });
  ASSERT_TRUE(orchestrator.WaitForHeartbeats(n + 2));
  orchestrator.Locked([&] {
    orchestrator.other_instance.clear();
    orchestrator.heartbeat_status = grpc::Status(grpc::StatusCode::ABORTED, "no details");
  });
  const size_t m = orchestrator.Locked([&] { return orchestrator.heartbeats.size(); });
  ASSERT_TRUE(orchestrator.WaitFor(
      [&] { return orchestrator.heartbeats.size() + orchestrator.registrations.size() > m + 3; }));
  registration->Stop(absl::Seconds(5));
  EXPECT_TRUE(superseded_by_.empty());
  EXPECT_THAT(results_, ::testing::Contains("failed"));
  EXPECT_THAT(results_, ::testing::Contains("ok"));
}

TEST_F(RegistrationTest, StopDeregisters) {
  ScriptedOrchestrator orchestrator;
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  ASSERT_TRUE(orchestrator.WaitForHeartbeats(1));
  registration->Stop(absl::Seconds(5));
  ASSERT_EQ(orchestrator.deregistrations.size(), 1u);
  EXPECT_EQ(orchestrator.deregistrations[0].lease_id(), "lease-1");
  EXPECT_EQ(orchestrator.deregistrations[0].worker_id(), "worker-a");
  EXPECT_EQ(orchestrator.deregistrations[0].instance_id(), "instance-1");
  registration->Stop(absl::Seconds(5));
  EXPECT_EQ(orchestrator.deregistrations.size(), 1u);
}

TEST_F(RegistrationTest, StopEndsACallThatHangsAndKeepsToItsGrace) {
  ScriptedOrchestrator orchestrator;
  orchestrator.hangs = true;
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  ASSERT_TRUE(orchestrator.WaitForRegistrations(1));
  const Clock::time_point start = Clock::now();
  registration->Stop(absl::Milliseconds(300));
  EXPECT_LT(Clock::now() - start, milliseconds(1500));
  // The worker may have been entered before the call was cancelled.
  EXPECT_EQ(orchestrator.Locked([&] { return orchestrator.deregistrations.size(); }), 1u);
}

TEST_F(RegistrationTest, StopWhileTheOrchestratorIsAwayIsQuick) {
  ScriptedOrchestrator orchestrator;
  orchestrator.GoAway();
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  std::this_thread::sleep_for(milliseconds(100));
  const Clock::time_point start = Clock::now();
  registration->Stop(absl::Seconds(10));
  EXPECT_LT(Clock::now() - start, milliseconds(1500));
}

TEST_F(RegistrationTest, StopWithoutStartAndDestructionWithoutStopAreFine) {
  ScriptedOrchestrator orchestrator;
  NewRegistration({orchestrator.address()})->Stop(absl::Seconds(1));
  auto registration = NewRegistration({orchestrator.address()});
  registration->Start();
  ASSERT_TRUE(orchestrator.WaitForRegistrations(1));
  registration.reset();
  EXPECT_EQ(orchestrator.deregistrations.size(), 0u);
}

}  // namespace
}  // namespace orcd
