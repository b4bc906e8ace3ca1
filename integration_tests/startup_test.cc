// The worker's configuration at start, and its exit if it cannot start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using ::testing::HasSubstr;

class StartupTest : public WorkerTest {
 protected:
  // The error of a worker that fails to start with these flags.
  static std::string WhyNot(std::vector<std::string> args, std::string listen = "127.0.0.1:0") {
    WorkerOptions options;
    options.args = std::move(args);
    options.listen = std::move(listen);
    const absl::StatusOr<std::unique_ptr<WorkerProcess>> worker = WorkerProcess::Start(options);
    EXPECT_FALSE(worker.ok());
    return worker.status().ToString();
  }
};

TEST_F(StartupTest, BadFlagsSayWhatToChange) {
  struct Case {
    std::vector<std::string> args;
    const char* mentions;
  };
  for (const Case& bad : std::vector<Case>{{{"--no-such-flag", "1"}, "no-such-flag"},
                                           {{"--max-seqs", "-1"}, "max-seqs"},
                                           {{"--max-seqs", "many"}, "max-seqs"},
                                           {{"--threads", "-1"}, "threads"},
                                           {{"--drain-timeout", "soon"}, "drain-timeout"},
                                           {{"--kv-cache-bytes", "lots"}, "kv-cache-bytes"},
                                           {{"--backend", "abacus"}, "backend"},
                                           {{"--orchestrator", "nowhere"}, "orchestrator"},
                                           {{"--config", "/no/such/file"}, "/no/such/file"}}) {
    const std::string why = WhyNot(bad.args);
    EXPECT_THAT(why, HasSubstr("exited with 2"));
    EXPECT_THAT(why, HasSubstr(bad.mentions));
  }
}

TEST_F(StartupTest, BadSettingsSayWhereTheyAre) {
  TempDir dir;
  const std::string file = dir.File("worker.toml");
  std::ofstream(file) << "worker-id = \"a#b\"\nmax-seq = 3\n";
  const std::string why = WhyNot({"--config", file});
  EXPECT_THAT(why, HasSubstr("exited with 2"));
  EXPECT_THAT(why, HasSubstr(absl::StrCat(file, ", line 2: there is no setting 'max-seq'")));
}

TEST_F(StartupTest, AModelDirThatIsNoneIsSaidSo) {
  struct Case {
    const char* dir;
    const char* why;
  };
  for (const Case& c : {Case{"/no/such/dir", "'/no/such/dir' is not there"},
                        Case{"/etc/passwd", "'/etc/passwd' is no directory"}}) {
    WorkerOptions options;
    options.model_dir = c.dir;
    const auto worker = WorkerProcess::Start(options);
    ASSERT_FALSE(worker.ok()) << c.dir;
    EXPECT_THAT(worker.status().ToString(), HasSubstr("exited with 2"));
    EXPECT_THAT(worker.status().ToString(), HasSubstr(c.why));
  }
}

TEST_F(StartupTest, TheFileMayHaveAByteOrderMarkAndHashesInQuotes) {
  TempDir dir;
  std::ofstream(dir.File("worker.toml"))
      << "\xEF\xBB\xBFworker-id = \"a#b\" # c\r\nmax-seqs = 3\r\n";
  WorkerOptions options;
  options.args = {"--config", dir.File("worker.toml")};
  options.environment = {"ORCD_MAX_WAITING=5 ", "ORCD_MAX_WAITNG=6"};
  const absl::StatusOr<std::unique_ptr<WorkerProcess>> worker = WorkerProcess::Start(options);
  ASSERT_TRUE(worker.ok()) << worker.status();
  WorkerClient client((*worker)->address());
  const v1::WorkerStatus status = client.Status();
  EXPECT_EQ(status.worker_id(), "a#b");
  EXPECT_EQ(status.queue().max_running_requests(), 3u);
  EXPECT_EQ(status.queue().max_waiting_requests(), 5u);
  EXPECT_THAT((*worker)->Log(), HasSubstr("ORCD_MAX_WAITNG is no setting and does nothing; is it "
                                          "meant to be ORCD_MAX_WAITING?"));
}

TEST_F(StartupTest, ServesOnIpv6) {
  for (const char* host : {"[::1]", "[::]"}) {
    WorkerOptions options;
    options.listen = absl::StrCat(host, ":0");
    options.args = {"--health-listen", absl::StrCat(host, ":0")};
    const absl::StatusOr<std::unique_ptr<WorkerProcess>> worker = WorkerProcess::Start(options);
    ASSERT_TRUE(worker.ok()) << worker.status();
    for (const std::string& address : {(*worker)->address(), (*worker)->SideAddress("health")}) {
      EXPECT_THAT(address, ::testing::StartsWith(absl::StrCat(host, ":")));
      const std::string port = address.substr(address.rfind(':'));
      grpc::health::v1::HealthCheckResponse::ServingStatus liveness;
      ASSERT_TRUE(WorkerClient("[::1]" + port).Check("liveness", &liveness).ok());
      EXPECT_EQ(liveness, grpc::health::v1::HealthCheckResponse::SERVING);
      // [::] also accepts IPv4 connections.
      if (std::string(host) == "[::]") {
        EXPECT_TRUE(WorkerClient("127.0.0.1" + port).Check("liveness", &liveness).ok());
      }
    }
  }
}

TEST_F(StartupTest, TakenPortIsSaidSo) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  const std::string why = WhyNot({}, worker().address());
  EXPECT_THAT(why, HasSubstr("exited with 3"));
  EXPECT_THAT(why, HasSubstr(worker().address()));
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_IDLE) << "the first was harmed";
}

TEST_F(StartupTest, FlagsComeBeforeVariablesBeforeTheFile) {
  TempDir dir;
  std::ofstream(dir.File("worker.toml")) << "max-seqs = 3\nmax-waiting = 4\nworker-id = \"file\"\n";
  WorkerOptions options;
  options.args = {"--config", dir.File("worker.toml"), "--worker-id", "flag"};
  options.environment = {"ORCD_MAX_WAITING=5", "ORCD_WORKER_ID=variable"};
  const absl::StatusOr<std::unique_ptr<WorkerProcess>> worker = WorkerProcess::Start(options);
  ASSERT_TRUE(worker.ok()) << worker.status();
  WorkerClient client((*worker)->address());
  const v1::WorkerStatus status = client.Status();
  EXPECT_EQ(status.queue().max_running_requests(), 3u);
  EXPECT_EQ(status.queue().max_waiting_requests(), 5u);
  EXPECT_EQ(status.worker_id(), "flag");
}

TEST_F(StartupTest, ModelOfTheFlagIsLoaded) {
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--model", "nano.gguf", "--model-id", "first"}));
  ASSERT_TRUE(client().WaitForState(v1::WORKER_STATE_READY));
  EXPECT_EQ(client().Status().model().model_id(), "first");
  EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
  grpc::health::v1::HealthCheckResponse::ServingStatus startup;
  ASSERT_TRUE(client().Check("startup", &startup).ok());
  EXPECT_EQ(startup, grpc::health::v1::HealthCheckResponse::SERVING);
}

TEST_F(StartupTest, ModelOfTheFlagThatCannotBeLoadedEndsTheWorker) {
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--model", "missing.gguf"}));
  const absl::StatusOr<ProcessEnd> end = worker().WaitForEnd(Bound(absl::Seconds(20)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 4);
  EXPECT_THAT(worker().Log(), HasSubstr("missing.gguf"));
}

// Prompts do not reach the log.
TEST_F(StartupTest, LogHoldsNoPrompts) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--log-level", "debug", "--log-format", "json"}));
  ASSERT_TRUE(IsComplete(client().Generate(ChatRequest("xyzzy-secret", 5))));
  v1::GenerateRequest bad = TextRequest("xyzzy-secret", 5);
  bad.mutable_sampling()->set_top_p(7);
  EXPECT_FALSE(client().Generate(bad).error.ok());
  EXPECT_THAT(worker().Log(), HasSubstr("\"msg\""));
  EXPECT_THAT(worker().Log(), ::testing::Not(HasSubstr("xyzzy")));
}

}  // namespace
}  // namespace orcd::testing
