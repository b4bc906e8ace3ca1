// A worker in its own network namespace, whose links go down. registration_test and failover_test
// cut connections on loopback and run anywhere; here the kernel drops packets.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "integration_tests/scripted_orchestrator.h"
#include "integration_tests/test_models.h"
#include "integration_tests/worker_client.h"
#include "integration_tests/worker_process.h"

namespace orcd::testing {
namespace {

constexpr absl::Duration kTtl = absl::Milliseconds(600);

bool Run(const std::string& command) {
  return std::system(absl::StrCat(command, " > /dev/null 2>&1").c_str()) == 0;
}

// A network namespace with two links to the test's namespace: one for clients, one for
// orchestrators.
class Namespace {
 public:
  Namespace() : name_(absl::StrCat("orcd-", ::getpid())) {
    exists_ = Run("ip netns add " + name_);
    exists_ = exists_ && Run(absl::StrCat("ip -n ", name_, " link set lo up")) &&
              AddLink(client_link(), "213") && AddLink(orchestrator_link(), "214");
  }
  // Deleting the namespace deletes its links.
  ~Namespace() { Run("ip netns del " + name_); }

  Namespace(const Namespace&) = delete;
  Namespace& operator=(const Namespace&) = delete;

  bool exists() const { return exists_; }
  const std::string& name() const { return name_; }
  // The worker's address on the client link, and the test's address on the orchestrator link.
  std::string worker_host() const { return Address("213", 2); }
  std::string orchestrator_host() const { return Address("214", 1); }
  std::string client_link() const { return absl::StrCat("oc", ::getpid()); }
  std::string orchestrator_link() const { return absl::StrCat("oo", ::getpid()); }

  // Sets the state of the link's end in the test's namespace, so that packets from the worker have
  // a route but arrive nowhere.
  static void Set(const std::string& link, const char* state) {
    EXPECT_TRUE(Run(absl::StrCat("ip link set ", link, " ", state)));
  }

 private:
  static std::string Address(const std::string& net, int host) {
    return absl::StrCat("10.", net, ".", ::getpid() % 250, ".", host);
  }
  bool AddLink(const std::string& link, const std::string& net) const {
    const std::string peer = link + "p";
    return Run(absl::StrCat("ip link add ", link, " type veth peer name ", peer, " netns ",
                            name_)) &&
           Run(absl::StrCat("ip addr add ", Address(net, 1), "/24 dev ", link)) &&
           Run(absl::StrCat("ip link set ", link, " up")) &&
           Run(absl::StrCat("ip -n ", name_, " addr add ", Address(net, 2), "/24 dev ", peer)) &&
           Run(absl::StrCat("ip -n ", name_, " link set ", peer, " up"));
  }

  const std::string name_;
  bool exists_ = false;
};

class PartitionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!space_.exists()) {
      GTEST_SKIP() << "no network namespace can be made here (it takes root and iproute2): that "
                      "links go down is not tested, cuts on loopback are";
    }
    WriteNanoModel(models_.File("nano.gguf"));
    server_ = std::make_unique<OrchestratorServer>(orchestrator_, 0,
                                                   grpc::InsecureServerCredentials(), "0.0.0.0");
    ASSERT_TRUE(server_->listens());
    WorkerOptions options;
    options.model_dir = models_.path().string();
    options.network_namespace = space_.name();
    options.listen = space_.worker_host() + ":0";
    options.args = {
        "--orchestrator", absl::StrCat(space_.orchestrator_host(), ":", server_->port()),
        "--worker-id",    "a",
        "--model",        "nano.gguf",
        "--backend",      "null",
        "--null-step",    "5ms"};
    absl::StatusOr<std::unique_ptr<WorkerProcess>> worker = WorkerProcess::Start(options);
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    ASSERT_TRUE(Wait([&] { return orchestrator_.status("a").state() == v1::WORKER_STATE_READY; }));
    EXPECT_EQ(orchestrator_.address("a"), worker_->address());
  }

  static v1::GenerateRequest Stream(uint32_t tokens) {
    v1::GenerateRequest request = TokenRequest({1, 2, 3}, tokens);
    request.mutable_sampling()->set_seed(7);
    request.mutable_stop()->set_ignore_eog(true);
    return request;
  }

  Namespace space_;
  TempDir models_;
  ScriptedOrchestrator orchestrator_{kTtl};
  std::unique_ptr<OrchestratorServer> server_;
  std::unique_ptr<WorkerProcess> worker_;
};

TEST_F(PartitionTest, StreamsGoOnWithoutTheOrchestratorAndTheWorkerComesBackToIt) {
  WorkerClient client(worker_->address());
  const Generation expected = client.Generate(Stream(800));
  ASSERT_TRUE(IsComplete(expected));
  GenerateCall call(client.stub(), Stream(800), absl::Seconds(120));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  space_.Set(space_.orchestrator_link(), "down");
  // Waits until messages in flight have arrived.
  absl::SleepFor(Bound(absl::Milliseconds(50)));
  const size_t heard = orchestrator_.heartbeats().size();
  absl::SleepFor(3 * kTtl);
  EXPECT_EQ(orchestrator_.heartbeats().size(), heard) << "it was not cut off";
  orchestrator_.ForgetLeases();
  const size_t registrations = orchestrator_.registrations().size();
  space_.Set(space_.orchestrator_link(), "up");
  const Generation& generation = call.Finish();
  ASSERT_TRUE(IsComplete(generation));
  EXPECT_EQ(generation.ids, expected.ids);
  EXPECT_EQ(generation.text, expected.text);
  ASSERT_TRUE(Wait([&] { return orchestrator_.registrations().size() > registrations; }));
  ASSERT_TRUE(Wait([&] { return orchestrator_.heartbeats().size() > heard + 2; }));
  EXPECT_EQ(orchestrator_.status("a").state(), v1::WORKER_STATE_READY);
  EXPECT_TRUE(worker_->Terminate(Bound(absl::Seconds(20))).ok());
}

// A link that is down for a moment breaks no stream: TCP retransmits the lost packets.
TEST_F(PartitionTest, AStreamOutlivesAShortCut) {
  WorkerClient client(worker_->address());
  const Generation expected = client.Generate(Stream(600));
  ASSERT_TRUE(IsComplete(expected));
  GenerateCall call(client.stub(), Stream(600), absl::Seconds(120));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  for (int i = 0; i < 3; ++i) {
    space_.Set(space_.client_link(), "down");
    absl::SleepFor(absl::Milliseconds(400));
    space_.Set(space_.client_link(), "up");
    absl::SleepFor(absl::Milliseconds(100));
  }
  const Generation& generation = call.Finish();
  ASSERT_TRUE(IsComplete(generation));
  EXPECT_EQ(generation.ids, expected.ids);
  EXPECT_EQ(generation.text, expected.text);
  EXPECT_TRUE(Wait([&] { return client.Status().queue().running_requests() == 0; }));
  EXPECT_TRUE(worker_->Terminate(Bound(absl::Seconds(20))).ok());
}

}  // namespace
}  // namespace orcd::testing
