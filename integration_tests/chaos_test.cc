// Ten thousand requests against the real binary, many of which the client ends early in every
// possible way. Each request ends in exactly one way, nothing is left behind, and the worker stays
// ready.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "integration_tests/many_call.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

constexpr int kRequests = kSanitized ? 600 : 10'000;
constexpr int kThreads = 16;
constexpr int kManyAtOnce = 12;

// Compares the ids of equal requests: one sequence must be a prefix of the other.
class Oracle {
 public:
  // `whole` is true if nothing ended the request early.
  void Check(int kind, const std::vector<uint32_t>& ids, bool whole) {
    std::lock_guard lock(mutex_);
    std::vector<uint32_t>& known = known_[kind];
    const size_t common = std::min(known.size(), ids.size());
    EXPECT_TRUE(std::equal(ids.begin(), ids.begin() + static_cast<int>(common), known.begin()))
        << "two of kind " << kind << " were told different things";
    if (ids.size() > known.size()) known = ids;
    if (!whole) return;
    const auto [length, is_new] = whole_.try_emplace(kind, ids.size());
    EXPECT_TRUE(is_new || length->second == ids.size()) << "kind " << kind;
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<uint32_t>> known_;
  std::map<int, size_t> whole_;
};

class ChaosTest : public WorkerTest {
 protected:
  using Random = std::mt19937;
  static int Below(Random& random, int n) { return static_cast<int>(random() % n); }

  // Returns one of a few kinds of requests, some of which share prefixes. A kind always gives the
  // same ids.
  static v1::GenerateRequest RequestOf(int kind, const std::string& id) {
    Random random(kind);
    Random beginning(kind % 4);
    std::vector<uint32_t> ids(1 + Below(random, 80));
    for (uint32_t& token : ids) token = beginning() % 200;
    ids.back() = random() % 200;
    v1::GenerateRequest request = TokenRequest(ids, 1 + Below(random, 60));
    request.set_request_id(id);
    request.mutable_sampling()->set_seed(kind);
    request.mutable_stop()->set_ignore_eog(true);
    request.set_priority(Below(random, 21) - 10);
    return request;
  }

  // Checks that the request ended in a permitted way. `by_itself` is true if the client did not end
  // it. The worker may refuse a request because too many wait or because it could not end in time.
  void CheckEnd(const RpcError& error, bool by_itself, const std::string& what) {
    if (error.ok()) {
      ++complete_;
      return;
    }
    const bool refused = error.reason == "QUEUE_FULL";
    EXPECT_TRUE(!refused || error.retry_delay.has_value());
    ++(refused ? refused_ : ended_);
    if (refused || error.code == grpc::StatusCode::CANCELLED ||
        error.code == grpc::StatusCode::DEADLINE_EXCEEDED) {
      EXPECT_TRUE(refused || !by_itself) << what << ": " << error;
      return;
    }
    ADD_FAILURE() << what << ": " << error;
  }

  void OneByOne(int thread, int count) {
    Random random(1000 + thread);
    for (int i = 0; i < count; ++i) {
      const int kind = Below(random, 60);
      const std::string id = absl::StrCat("one-", thread, "-", i);
      const int fate = Below(random, 10);
      const bool is_late = fate == 0;
      GenerateCall call(stub(), RequestOf(kind, id),
                        is_late ? absl::Milliseconds(1 + Below(random, 20)) : absl::Seconds(60));
      const size_t wanted = Below(random, 30);
      if (fate == 1 || fate == 2) call.ReadUntilTokens(wanted);
      if (fate == 1) call.HangUp();
      EXPECT_TRUE(fate != 2 || client().Cancel(id).ok());
      // Stops reading for a while.
      if (fate == 3) absl::SleepFor(absl::Milliseconds(Below(random, 30)));
      const Generation& generation = call.Finish();
      EXPECT_EQ(generation.violation, "");
      CheckEnd(generation.error, fate > 2, id);
      oracle_.Check(kind, generation.ids, generation.error.ok());
    }
  }

  void ManyTogether(int thread, int count) {
    Random random(2000 + thread);
    for (int sent = 0; sent < count;) {
      const int batch = std::min(1 + Below(random, kManyAtOnce), count - sent);
      // Now and then the client hangs up the whole call.
      const bool hangs_up = Below(random, 8) == 0;
      ManyCall call(stub());
      std::map<std::string, std::pair<int, bool>> asked;
      for (int i = 0; i < batch; ++i, ++sent) {
        const int kind = Below(random, 60);
        const std::string id = absl::StrCat("many-", thread, "-", sent);
        const int fate = Below(random, 6);
        asked[id] = {kind, fate > 1 && !hangs_up};
        EXPECT_TRUE(
            call.Generate(RequestOf(kind, id), fate == 0 ? absl::Milliseconds(1 + Below(random, 20))
                                                         : absl::Seconds(60)));
        EXPECT_TRUE(fate != 1 || call.Cancel(id));
        if (Below(random, 4) == 0) call.Read();
      }
      if (Below(random, 6) == 0) absl::SleepFor(absl::Milliseconds(Below(random, 30)));
      if (hangs_up) {
        call.HangUp();
      } else {
        call.CloseRequests();
      }
      const RpcError end = call.Finish();
      EXPECT_EQ(end.code, hangs_up ? grpc::StatusCode::CANCELLED : grpc::StatusCode::OK) << end;
      for (const auto& [id, ask] : asked) {
        ManyGeneration& generation = call.by_id()[id];
        EXPECT_EQ(generation.violation, "") << id;
        EXPECT_TRUE(generation.end || hangs_up) << id << " has no end";
        if (generation.end) CheckEnd(generation.error(), ask.second, id);
        oracle_.Check(ask.first, generation.ids[0],
                      generation.end.has_value() && generation.error().ok());
      }
    }
  }

  Oracle oracle_;
  std::atomic<int> complete_ = 0;
  std::atomic<int> refused_ = 0;
  std::atomic<int> ended_ = 0;
};

TEST_F(ChaosTest, EveryRequestEndsInOneWayAndNothingIsLeft) {
  // The cache holds some 500 tokens, and 16 sequences want 140 each. If clients are slow, steps are
  // slow too and fewer requests may wait, so that the queue still fills up.
  const std::string step = kSanitized ? "2ms" : "200us";
  const std::string waiting = kSanitized ? "2" : "20";
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--backend", "null", "--null-step", step, "--max-seqs", "16",
                                       "--max-waiting", waiting, "--block-tokens", "4",
                                       "--kv-cache-bytes", "4096", "--log-level", "warning"}));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread] {
      const int count = kRequests / kThreads;
      if (thread % 2 == 0) {
        OneByOne(thread, count);
      } else {
        ManyTogether(thread, count);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_TRUE(client().WaitForQuiet());
  const v1::WorkerStatus status = client().Status();
  EXPECT_EQ(status.state(), v1::WORKER_STATE_READY);
  EXPECT_EQ(status.kv_blocks().free(), status.kv_blocks().total());
  EXPECT_GT(status.queue().preemptions(), 0u) << "KV was to run out";
  EXPECT_GT(status.queue().cached_prompt_tokens(), 0u);
  EXPECT_GT(complete_, kRequests / 4);
  EXPECT_GT(refused_, 0) << "the queue was to be full";
  EXPECT_GT(ended_, kRequests / 20);
  RecordProperty("complete", complete_);
  RecordProperty("refused", refused_);
  RecordProperty("ended", ended_);
}

}  // namespace
}  // namespace orcd::testing
