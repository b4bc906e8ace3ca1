// Several workers of one orchestrator: clients resume streams elsewhere when a worker fails.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "integration_tests/relay.h"
#include "integration_tests/scripted_orchestrator.h"
#include "integration_tests/test_models.h"
#include "integration_tests/worker_client.h"
#include "integration_tests/worker_process.h"

namespace orcd::testing {
namespace {

// Long enough for a stream to be cut before its end in any build.
constexpr uint32_t kTokens = kSanitized ? 150 : 1200;
constexpr absl::Duration kTtl = absl::Milliseconds(600);

// The stream of a seed: kTokens tokens.
v1::GenerateRequest Stream(uint64_t seed) {
  v1::GenerateRequest request =
      TokenRequest({1, 2, 3, static_cast<uint32_t>(seed % 100 + 4)}, kTokens);
  request.mutable_stop()->set_ignore_eog(true);
  // The worker holds back text that may begin this stop string, wherever the stream is cut.
  request.mutable_stop()->add_strings("this is in no vocabulary");
  request.mutable_sampling()->set_seed(seed);
  request.mutable_sampling()->set_temperature(1.2F);
  return request;
}

// A client's part of a stream, received from any number of workers.
class Received {
 public:
  // Appends the tokens from one worker.
  void Add(const Generation& part) {
    deltas_.insert(deltas_.end(), part.deltas.begin(), part.deltas.end());
    is_whole_ = part.error.ok() && part.finished.has_value();
    // Text that was held back comes with the end. Without the end, the last token is requested
    // again.
    while (!is_whole_ && ids().size() >= kTokens) deltas_.pop_back();
  }
  // Requests the tokens that are still missing.
  v1::GenerateRequest Rest(uint64_t seed) const {
    v1::GenerateRequest request = Stream(seed);
    const std::vector<uint32_t> known = ids();
    request.mutable_resume_token_ids()->Add(known.begin(), known.end());
    return request;
  }

  bool is_whole() const { return is_whole_; }
  std::vector<uint32_t> ids() const {
    std::vector<uint32_t> ids;
    for (const v1::GenerateDelta& delta : deltas_) {
      ids.insert(ids.end(), delta.token_ids().begin(), delta.token_ids().end());
    }
    return ids;
  }
  std::string text() const {
    std::string text;
    for (const v1::GenerateDelta& delta : deltas_) text += delta.text();
    return text;
  }

 private:
  std::vector<v1::GenerateDelta> deltas_;
  bool is_whole_ = false;
};

class FailoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteNanoModel(models_.File("nano.gguf"));
    server_ = std::make_unique<OrchestratorServer>(orchestrator_);
    ASSERT_TRUE(server_->listens());
  }

  // Starts a worker and waits until it has registered and loaded its model.
  std::unique_ptr<WorkerProcess> Start(const std::string& worker_id,
                                       const std::vector<std::string>& args = {}) {
    // `front` is the worker's advertised address; `back` relays its calls to the orchestrator.
    Relay& front = Way(fronts_, worker_id);
    Relay& back = Way(backs_, worker_id);
    back.SetTarget(server_->address());
    WorkerOptions options;
    options.model_dir = models_.path().string();
    options.args = {"--orchestrator",
                    back.address(),
                    "--advertise-address",
                    front.address(),
                    "--worker-id",
                    worker_id,
                    "--model",
                    "nano.gguf",
                    "--kv-cache-bytes",
                    "32MiB",
                    "--threads",
                    "1",
                    "--drain-timeout",
                    "5s"};
    options.args.insert(options.args.end(), args.begin(), args.end());
    absl::StatusOr<std::unique_ptr<WorkerProcess>> worker = WorkerProcess::Start(options);
    EXPECT_TRUE(worker.ok()) << worker.status();
    if (!worker.ok()) return nullptr;
    front.SetTarget((*worker)->address());
    WorkerClient client((*worker)->address());
    const std::string instance = client.Status().instance_id();
    EXPECT_TRUE(Wait([&] {
      const v1::WorkerStatus status = orchestrator_.status(worker_id);
      return status.instance_id() == instance && status.state() == v1::WORKER_STATE_READY;
    })) << (*worker)->Log();
    return *std::move(worker);
  }

  // Generates the whole stream on one worker, undisturbed.
  static Generation Whole(const WorkerProcess& worker, uint64_t seed) {
    WorkerClient client(worker.address());
    Generation generation = client.Generate(Stream(seed));
    EXPECT_TRUE(IsComplete(generation));
    EXPECT_EQ(generation.ids.size(), kTokens);
    return generation;
  }

  using Ways = std::map<std::string, std::unique_ptr<Relay>>;
  static Relay& Way(Ways& ways, const std::string& worker_id) {
    std::unique_ptr<Relay>& way = ways[worker_id];
    if (way == nullptr) way = std::make_unique<Relay>();
    return *way;
  }

  // Makes the worker's disk full or not, by a file size limit below the length of its log.
  static void SetDiskFull(const WorkerProcess& worker, bool full) {
    rlimit limit;
    ASSERT_EQ(prlimit(worker.pid(), RLIMIT_FSIZE, nullptr, &limit), 0);
    limit.rlim_cur = full ? 1 : limit.rlim_max;
    ASSERT_EQ(prlimit(worker.pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  }

  TempDir models_;
  ScriptedOrchestrator orchestrator_{kTtl};
  std::unique_ptr<OrchestratorServer> server_;
  Ways fronts_;
  Ways backs_;
};

TEST_F(FailoverTest, StreamsOfAWorkerThatIsKilledGoOnElsewhereAsTheyWouldHave) {
  auto first = Start("a");
  auto second = Start("b");
  ASSERT_TRUE(first && second);
  EXPECT_EQ(orchestrator_.status("a").model().digest(), orchestrator_.status("b").model().digest())
      << "streams may only go on with the same model";

  constexpr int kStreams = 4;
  std::vector<Generation> expected;
  for (int i = 0; i < kStreams; ++i) expected.push_back(Whole(*second, 100 + i));

  WorkerClient to_first(first->address());
  std::vector<std::unique_ptr<GenerateCall>> calls;
  for (int i = 0; i < kStreams; ++i) {
    calls.push_back(
        std::make_unique<GenerateCall>(to_first.stub(), Stream(100 + i), absl::Seconds(60)));
    ASSERT_TRUE(calls.back()->ReadUntilTokens(1));
  }
  first->Kill();
  int cut = 0;
  for (int i = 0; i < kStreams; ++i) {
    const Generation& begun = calls[i]->Finish();
    Received received;
    received.Add(begun);
    // The client may have received the whole stream before the kill.
    if (!received.is_whole()) {
      ++cut;
      EXPECT_EQ(begun.error.code, grpc::StatusCode::UNAVAILABLE) << begun.error;
      const size_t known = received.ids().size();
      WorkerClient to_second(orchestrator_.address("b"));
      const Generation rest = to_second.Generate(received.Rest(100 + i));
      ASSERT_TRUE(IsComplete(rest));
      EXPECT_EQ(rest.ids.size(), kTokens - known) << "what was known was generated again";
      EXPECT_EQ(rest.finished->usage().prompt_tokens(), 4u);
      EXPECT_EQ(rest.reason(), v1::FINISH_REASON_MAX_TOKENS);
      received.Add(rest);
    }
    EXPECT_EQ(received.ids(), expected[i].ids) << "stream " << i;
    EXPECT_EQ(received.text(), expected[i].text) << "stream " << i;
  }
  EXPECT_GT(cut, 0) << "no stream was cut: nothing was tested";
  EXPECT_TRUE(second->Terminate(Bound(absl::Seconds(20))).ok());
}

// The time limit of a drain passes. The end of each stream says how to resume elsewhere, and a
// client that chose no seed resumes with the seed in that message.
TEST_F(FailoverTest, StreamsThatADrainEndsGoOnElsewhereAsTheyWouldHave) {
  auto first = Start("a", {"--max-seqs", "6"});
  auto second = Start("b");
  ASSERT_TRUE(first && second);
  constexpr int kStreams = 6;
  // On a slow machine, the last calls are read only after a long time spent on resuming the others.
  constexpr absl::Duration kPatience = absl::Seconds(300);
  WorkerClient to_first(first->address());
  WorkerClient to_second(second->address());
  const auto without_seed = [](int i) {
    v1::GenerateRequest request = Stream(i);
    request.mutable_sampling()->clear_seed();
    return request;
  };
  std::vector<std::unique_ptr<GenerateCall>> calls;
  for (int i = 0; i < kStreams; ++i) {
    calls.push_back(std::make_unique<GenerateCall>(to_first.stub(), without_seed(i), kPatience));
    ASSERT_TRUE(calls.back()->ReadUntilTokens(1));
  }
  // No slot is free for this request.
  GenerateCall waiting(to_first.stub(), Stream(0), kPatience);
  ASSERT_TRUE(to_first.WaitForStatus(
      [](const v1::WorkerStatus& status) { return status.queue().waiting_requests() > 0; }));
  grpc::ClientContext context;
  SetTimeout(context, kPatience);
  v1::DrainRequest drain;
  drain.mutable_timeout()->set_nanos(20'000'000);
  drain.set_exit(true);
  const auto drained = to_first.stub().Drain(&context, drain);

  int ended = 0;
  for (int i = 0; i < kStreams; ++i) {
    const Generation& begun = calls[i]->Finish();
    ASSERT_TRUE(begun.started);
    ASSERT_TRUE(begun.finished);
    EXPECT_EQ(begun.violation, "");
    v1::GenerateRequest again = without_seed(i);
    again.mutable_sampling()->set_seed(begun.started->seed());
    const Generation expected = to_second.Generate(again);
    ASSERT_TRUE(IsComplete(expected));
    if (begun.error.ok()) {
      EXPECT_EQ(begun.text, expected.text);
      continue;
    }
    ++ended;
    EXPECT_TRUE(IsError(begun.error, grpc::StatusCode::UNAVAILABLE, "DRAINED"));
    EXPECT_TRUE(
        absl::StrContains(begun.error.message, absl::StrCat("after ", begun.ids.size(), " tokens")))
        << begun.error;
    EXPECT_TRUE(absl::StrContains(begun.error.message,
                                  absl::StrCat("sampling.seed ", begun.started->seed(), " ")))
        << begun.error;
    EXPECT_EQ(begun.reason(), v1::FINISH_REASON_DRAINED);
    EXPECT_EQ(begun.finished->usage().generated_tokens(), begun.ids.size());
    EXPECT_EQ(begun.finished->model_digest(), orchestrator_.status("b").model().digest());

    again.mutable_resume_token_ids()->Add(begun.ids.begin(), begun.ids.end());
    const Generation rest = to_second.Generate(again);
    ASSERT_TRUE(IsComplete(rest));
    EXPECT_EQ(begun.ids.size() + rest.ids.size(), kTokens);
    EXPECT_EQ(begun.text + rest.text, expected.text) << "ended after " << begun.ids.size();
  }
  EXPECT_GT(ended, 0) << "no stream was ended: nothing was tested";
  const Generation& never_begun = waiting.Finish();
  EXPECT_TRUE(IsError(never_begun.error, grpc::StatusCode::UNAVAILABLE, "DRAINED"));
  EXPECT_TRUE(absl::StrContains(never_begun.error.message, "before its first token"));
  EXPECT_FALSE(never_begun.started);
  const absl::StatusOr<ProcessEnd> end = first->WaitForEnd(Bound(absl::Seconds(20)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 0);
}

// If the disk of the worker's log is full, no client and no orchestrator notices, and the log says
// afterwards how much is missing.
TEST_F(FailoverTest, AFullDiskIsNotSeenInAStreamOrALease) {
  auto worker = Start("a");
  ASSERT_TRUE(worker);
  const Generation expected = Whole(*worker, 1);
  const size_t registrations = orchestrator_.registrations().size();
  ASSERT_NO_FATAL_FAILURE(SetDiskFull(*worker, true));
  const std::string log = worker->Log();
  const size_t heard = orchestrator_.heartbeats().size();
  WorkerClient client(worker->address());
  for (int i = 0; i < (kSanitized ? 4 : 20); ++i) {
    const Generation generation = client.Generate(Stream(1));
    ASSERT_TRUE(IsComplete(generation));
    EXPECT_EQ(generation.text, expected.text);
  }
  // Unloads and loads work too.
  ASSERT_TRUE(client.Unload(false).ok());
  ASSERT_TRUE(client.Load("nano.gguf").loaded);
  EXPECT_TRUE(Wait([&] { return orchestrator_.heartbeats().size() > heard + 3; }));
  EXPECT_EQ(worker->Log(), log) << "the disk was not full: nothing was tested";
  ASSERT_NO_FATAL_FAILURE(SetDiskFull(*worker, false));
  EXPECT_TRUE(IsComplete(client.Generate(Stream(2))));
  EXPECT_TRUE(WaitUntil([&] { return absl::StrContains(worker->Log(), "log lines are missing"); },
                        Bound(absl::Seconds(10))));
  EXPECT_EQ(orchestrator_.registrations().size(), registrations);
  const absl::StatusOr<ProcessEnd> end = worker->Terminate(Bound(absl::Seconds(20)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 0);
}

// A worker that cannot print its address is useless, so it must fail to start.
TEST_F(FailoverTest, ADiskThatIsFullAtTheStartIsSaid) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  // The worker inherits the test's limit.
  const rlimit none = {.rlim_cur = 4, .rlim_max = before.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const absl::Status status = WorkerProcess::Start({}).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(absl::StrContains(status.message(), "exited with 2")) << status;
}

// Random events, seeded: a failure names the seed, which repeats the events in the same order. Each
// stream reaches its last token with the tokens and the text of an undisturbed run, no worker ends
// unless the test ends it, and in the end each worker is registered at the orchestrator.
TEST_F(FailoverTest, StreamsEndAsUndisturbedWhateverHappensToWorkers) {
  const uint64_t seed = 20260101;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  constexpr int kWorkers = 3;
  constexpr int kUsers = 3;
  constexpr int kEvents = 32;
  const auto name = [](int i) { return std::string(1, static_cast<char>('a' + i)); };
  std::vector<std::unique_ptr<WorkerProcess>> workers;
  for (int i = 0; i < kWorkers; ++i) workers.push_back(Start(name(i)));
  std::map<uint64_t, Generation> expected;
  for (int i = 0; i < 10; ++i) expected[i] = Whole(*workers[0], i);

  std::atomic<bool> stop = false;
  std::atomic<int> streams = 0;
  std::atomic<int> resumed = 0;
  std::atomic<int> wrong = 0;
  std::atomic<int> lost = 0;
  std::vector<std::thread> users;
  for (int user = 0; user < kUsers; ++user) {
    users.emplace_back([&, user] {
      std::mt19937_64 choice(user);
      while (!stop) {
        const uint64_t stream = choice() % expected.size();
        Received received;
        const absl::Time give_up = absl::Now() + Bound(absl::Seconds(60));
        while (!received.is_whole() && absl::Now() < give_up) {
          const bool is_begun = !received.ids().empty();
          WorkerClient client(orchestrator_.address(name(static_cast<int>(choice() % kWorkers))));
          // If a worker hangs, the client leaves it for another.
          GenerateCall call(client.stub(), received.Rest(stream), Bound(absl::Seconds(2)));
          const Generation& part = call.Finish();
          if (is_begun && !part.ids.empty()) ++resumed;
          received.Add(part);
          if (part.ids.empty()) absl::SleepFor(absl::Milliseconds(20));
        }
        ++streams;
        if (!received.is_whole()) {
          ++lost;
        } else if (received.ids() != expected[stream].ids ||
                   received.text() != expected[stream].text) {
          ++wrong;
        }
      }
    });
  }

  std::map<std::string, int> events;
  const int port = server_->port();
  for (int i = 0; i < kEvents; ++i) {
    const int victim = static_cast<int>(random() % kWorkers);
    switch (random() % 9) {
      case 0:
        ++events["worker killed"];
        workers[victim]->Kill();
        workers[victim] = Start(name(victim));
        break;
      case 1:
        ++events["worker stopped for a while"];
        workers[victim]->Pause();
        absl::SleepFor(kTtl * 2);
        workers[victim]->Resume();
        break;
      case 2:
        ++events["worker drained and started again"];
        EXPECT_TRUE(workers[victim]->Terminate(Bound(absl::Seconds(20))).ok());
        workers[victim] = Start(name(victim));
        break;
      case 3:
        ++events["orchestrator away, then back with nothing"];
        server_ = nullptr;
        absl::SleepFor(kTtl * 2);
        orchestrator_.ForgetLeases();
        server_ = std::make_unique<OrchestratorServer>(orchestrator_, port);
        ASSERT_TRUE(server_->listens());
        break;
      case 4:
        ++events["model file replaced"];
        WriteNanoModel(models_.File("next.gguf"));
        std::filesystem::rename(models_.File("next.gguf"), models_.File("nano.gguf"));
        break;
      case 5:
        ++events["worker cut off from its clients"];
        fronts_[name(victim)]->Cut();
        absl::SleepFor(kTtl);
        fronts_[name(victim)]->Restore();
        break;
      case 6:
        ++events["worker cut off from its orchestrator"];
        backs_[name(victim)]->Cut();
        absl::SleepFor(kTtl * 2);
        backs_[name(victim)]->Restore();
        break;
      case 7:
        ++events["orchestrator slower than a lease lasts"];
        orchestrator_.ReplyAfter(kTtl * 2);
        absl::SleepFor(kTtl * 2);
        orchestrator_.ReplyAfter(absl::ZeroDuration());
        break;
      case 8:
        ++events["disk full"];
        ASSERT_NO_FATAL_FAILURE(SetDiskFull(*workers[victim], true));
        absl::SleepFor(kTtl);
        ASSERT_NO_FATAL_FAILURE(SetDiskFull(*workers[victim], false));
        break;
    }
    EXPECT_TRUE(workers[victim]->Running()) << "nobody ended it";
    absl::SleepFor(absl::Milliseconds(100));
  }
  // On a slow machine the events may all have missed the streams.
  for (int i = 0; resumed == 0 && i < 200; ++i) {
    const auto& front = fronts_[name(i % kWorkers)];
    front->Cut();
    absl::SleepFor(absl::Milliseconds(20));
    front->Restore();
    absl::SleepFor(absl::Milliseconds(100));
  }
  // A slow machine has finished fewer streams by now.
  EXPECT_TRUE(WaitUntil([&] { return streams > 20; }, Bound(absl::Seconds(120))));
  stop = true;
  for (std::thread& user : users) user.join();

  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(lost, 0);
  EXPECT_GT(resumed, 0) << "no stream was cut: nothing was tested";
  for (int i = 0; i < kWorkers; ++i) {
    EXPECT_TRUE(
        Wait([&] { return orchestrator_.status(name(i)).state() == v1::WORKER_STATE_READY; }));
  }
  for (const auto& [event, count] : events) RecordProperty(event, count);
  std::cerr << streams << " streams, " << resumed << " of their parts resumed\n";
  for (const auto& [event, count] : events) std::cerr << "  " << count << " × " << event << "\n";
  for (auto& worker : workers) EXPECT_TRUE(worker->Terminate(Bound(absl::Seconds(20))).ok());
}

}  // namespace
}  // namespace orcd::testing
