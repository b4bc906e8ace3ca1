// SubscribeKvEvents: a client that replays the events knows which prefixes the worker's cache
// holds.

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "integration_tests/vllm_client.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using grpc::StatusCode;

constexpr size_t kBlockTokens = 16;
constexpr uint32_t kVocab = 1000;
// Same as in kv_event_feed.h.
constexpr int kMaxSubscribers = 16;

// Reconstructs the contents of the prefix cache from the events.
class Replay {
 public:
  void Apply(const vllm_wire::KvEventBatch& batch) {
    const bool load_only = batch.load().load_only();
    EXPECT_EQ(batch.sequence_number(), load_only ? last_ : last_ + 1);
    EXPECT_EQ(batch.load().sample(), ++samples_) << "every batch has the load";
    last_ = batch.sequence_number();
    EXPECT_TRUE(!load_only || batch.events().empty());
    for (const vllm_wire::KvCacheEvent& event : batch.events()) {
      if (event.has_cleared()) {
        blocks_.clear();
      } else if (event.has_stored()) {
        Store(event.stored());
      } else {
        for (const int64_t hash : event.removed().block_hashes()) {
          EXPECT_EQ(blocks_.erase(hash), 1u) << "removed and not there";
          ++removed_;
        }
      }
    }
    if (batch.has_snapshot() && batch.snapshot().index() + 1 == batch.snapshot().count()) {
      EXPECT_EQ(blocks_.size(), batch.snapshot().blocks());
      listed_ = true;
    }
  }

  bool listed() const { return listed_; }
  int removed() const { return removed_; }
  std::set<int64_t> names() const {
    std::set<int64_t> names;
    for (const auto& [hash, block] : blocks_) names.insert(hash);
    return names;
  }
  // Tokens that a request with this prompt finds in the cache. Only full blocks count, and never
  // the last token, which the worker always runs.
  uint32_t CachedTokens(const std::vector<uint32_t>& prompt) const {
    std::map<std::pair<std::optional<int64_t>, std::vector<uint32_t>>, int64_t> children;
    for (const auto& [hash, block] : blocks_) children[block] = hash;
    std::optional<int64_t> parent;
    for (size_t begin = 0;; begin += kBlockTokens) {
      if (begin + kBlockTokens >= prompt.size()) return static_cast<uint32_t>(begin);
      const auto first = prompt.begin() + static_cast<ptrdiff_t>(begin);
      const auto found = children.find({parent, {first, first + kBlockTokens}});
      if (found == children.end()) return static_cast<uint32_t>(begin);
      parent = found->second;
    }
  }

 private:
  void Store(const vllm_wire::KvBlocksStored& stored) {
    std::optional<int64_t> parent;
    if (stored.has_parent_block_hash()) parent = stored.parent_block_hash();
    EXPECT_GT(stored.blocks_size(), 0);
    for (const vllm_wire::KvBlock& block : stored.blocks()) {
      EXPECT_EQ(block.block_size(), static_cast<int>(kBlockTokens));
      EXPECT_EQ(block.token_ids_size(), static_cast<int>(kBlockTokens));
      EXPECT_TRUE(!parent || blocks_.contains(*parent)) << "stored before the one before it";
      const std::vector<uint32_t> tokens(block.token_ids().begin(), block.token_ids().end());
      EXPECT_TRUE(blocks_.try_emplace(block.block_hash(), parent, tokens).second) << "stored twice";
      parent = block.block_hash();
    }
  }

  std::map<int64_t, std::pair<std::optional<int64_t>, std::vector<uint32_t>>> blocks_;
  uint64_t last_ = 0;
  uint64_t samples_ = 0;
  int removed_ = 0;
  bool listed_ = false;
};

// A subscription that a thread of its own reads.
class Follower {
 public:
  explicit Follower(vllm_wire::VllmEngine::Stub& stub) {
    SetTimeout(context_, absl::Seconds(300));
    reader_ = stub.SubscribeKvEvents(&context_, {});
    thread_ = std::thread([this] { Run(); });
  }
  ~Follower() {
    context_.TryCancel();
    if (thread_.joinable()) thread_.join();
  }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // True once the replayed contents meet the condition.
  bool WaitFor(const std::function<bool(const Replay&)>& condition) {
    const absl::Time deadline = absl::Now() + Bound(absl::Seconds(30));
    while (absl::Now() < deadline) {
      if (std::lock_guard lock(mutex_); condition(replay_)) return true;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return false;
  }
  bool WaitListed() {
    return WaitFor([](const Replay& replay) { return replay.listed(); });
  }
  Replay replay() const {
    std::lock_guard lock(mutex_);
    return replay_;
  }
  std::vector<vllm_wire::KvEventBatch> heartbeats() const {
    std::lock_guard lock(mutex_);
    return heartbeats_;
  }
  bool ended() const { return ended_; }
  // Waits for the stream's end and returns its status.
  RpcError End() {
    thread_.join();
    return DecodeError(status_);
  }

 private:
  void Run() {
    vllm_wire::KvEventBatch batch;
    while (reader_->Read(&batch)) {
      std::lock_guard lock(mutex_);
      replay_.Apply(batch);
      if (batch.load().load_only()) heartbeats_.push_back(batch);
    }
    status_ = reader_->Finish();
    ended_ = true;
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<vllm_wire::KvEventBatch>> reader_;
  mutable std::mutex mutex_;
  Replay replay_;
  std::vector<vllm_wire::KvEventBatch> heartbeats_;
  grpc::Status status_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

class KvEventsTest : public WorkerTest {
 protected:
  // Starts a worker with a cache of `blocks` blocks and a backend that costs nothing.
  void Start(int blocks, std::vector<std::string> args = {}) {
    // Same as in null_backend.cc.
    constexpr int kBytesPerToken = 8;
    const std::string bytes = std::to_string(blocks * kBlockTokens * kBytesPerToken);
    args.insert(args.end(), {"--backend", "null", "--kv-cache-bytes", bytes});
    ASSERT_NO_FATAL_FAILURE(StartLoaded(std::move(args)));
    ASSERT_EQ(client().Status().kv_blocks().total(), static_cast<uint32_t>(blocks));
    vllm_ = std::make_unique<VllmClient>(client().channel());
  }
  void TearDown() override {
    // The worker would wait for a connection that nobody uses.
    vllm_ = nullptr;
    WorkerTest::TearDown();
  }
  // The error of a stream that must not begin.
  RpcError Refused(const vllm_wire::SubscribeKvEventsRequest& request = {},
                   const std::string& token = "") {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(60));
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    auto reader = vllm_->stub().SubscribeKvEvents(&context, request);
    vllm_wire::KvEventBatch batch;
    EXPECT_FALSE(reader->Read(&batch)) << batch.DebugString();
    return DecodeError(reader->Finish());
  }

  // A prompt that shares a prefix with others.
  std::vector<uint32_t> Prompt(std::mt19937& random, size_t most) {
    std::vector<uint32_t> prompt;
    const size_t size = 1 + random() % most;
    // The length of the shared prefix is not tied to the block size.
    const uint32_t family = random() % 4;
    const size_t common = random() % (size + 1);
    for (size_t i = 0; i < size; ++i) {
      prompt.push_back(i < common ? (family * 7 + i) % kVocab : random() % kVocab);
    }
    return prompt;
  }
  static v1::GenerateRequest Request(const std::vector<uint32_t>& prompt, uint32_t tokens) {
    v1::GenerateRequest request = TokenRequest(prompt, tokens);
    request.mutable_stop()->set_ignore_eog(true);
    request.mutable_sampling()->set_seed(7);
    return request;
  }

  std::unique_ptr<VllmClient> vllm_;
};

TEST_F(KvEventsTest, TheStateAsItIsThenWhatChanges) {
  ASSERT_NO_FATAL_FAILURE(Start(64));
  std::vector<uint32_t> prompt(5 * kBlockTokens + 3, 9);
  ASSERT_TRUE(IsComplete(client().Generate(Request(prompt, 8))));
  Follower follower(vllm_->stub());
  ASSERT_TRUE(follower.WaitListed());
  EXPECT_EQ(follower.replay().names().size(), client().Status().kv_blocks().cached());
  EXPECT_EQ(follower.replay().CachedTokens(prompt), 5 * kBlockTokens);

  prompt[2 * kBlockTokens] = 10;
  EXPECT_EQ(follower.replay().CachedTokens(prompt), 2 * kBlockTokens);
  const Generation second = client().Generate(Request(prompt, 8));
  ASSERT_TRUE(IsComplete(second));
  EXPECT_EQ(second.started->cached_prompt_tokens(), 2 * kBlockTokens);
  const uint32_t cached = client().Status().kv_blocks().cached();
  EXPECT_TRUE(follower.WaitFor([&](const Replay& r) { return r.names().size() == cached; }));
  EXPECT_EQ(follower.replay().CachedTokens(prompt), 5 * kBlockTokens);
}

TEST_F(KvEventsTest, SaltedBlocksAreNotReported) {
  ASSERT_NO_FATAL_FAILURE(Start(64));
  Follower follower(vllm_->stub());
  ASSERT_TRUE(follower.WaitListed());
  const std::vector<uint32_t> prompt(5 * kBlockTokens, 9);
  v1::GenerateRequest salted = Request(prompt, 8);
  salted.mutable_cache()->set_salt("tenant");
  ASSERT_TRUE(IsComplete(client().Generate(salted)));
  v1::GenerateRequest apart = Request(prompt, 8);
  apart.set_samples(2);
  apart.mutable_cache()->set_disabled(true);
  ASSERT_TRUE(client().Generate(apart).error.ok());
  EXPECT_GT(client().Status().kv_blocks().cached(), 0u);
  // Only the blocks of this open request are announced.
  const std::vector<uint32_t> open(kBlockTokens + 1, 3);
  ASSERT_TRUE(IsComplete(client().Generate(Request(open, 1))));
  ASSERT_TRUE(follower.WaitFor([](const Replay& r) { return !r.names().empty(); }));
  EXPECT_EQ(follower.replay().names().size(), 1u);
  Follower late(vllm_->stub());
  ASSERT_TRUE(late.WaitListed());
  EXPECT_EQ(late.replay().names(), follower.replay().names());
}

// Evictions happen all the time; requests run concurrently, some with a tenant's cache salt.
TEST_F(KvEventsTest, AThousandRandomRequests) {
  constexpr int kThreads = 4;
  constexpr int kRequests = 1000;
  constexpr int kProbes = 40;
  constexpr size_t kLongest = 200;
  ASSERT_NO_FATAL_FAILURE(Start(48, {"--max-seqs", "4"}));
  Follower follower(vllm_->stub());
  ASSERT_TRUE(follower.WaitListed());
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(thread);
      for (int i = 0; i < kRequests / kThreads; ++i) {
        v1::GenerateRequest request = Request(Prompt(random, kLongest), 1 + random() % 40);
        if (random() % 4 == 0) request.mutable_cache()->set_salt("tenant");
        if (!client().Generate(request).error.ok()) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_GT(follower.replay().removed(), 500);

  std::mt19937 random(99);
  int shared = 0;
  for (int probe = 0; probe < kProbes; ++probe) {
    // A new subscriber gets the current state; the old one must arrive at the same state. Both may
    // still learn of what the last request left.
    Follower fresh(vllm_->stub());
    ASSERT_TRUE(fresh.WaitListed());
    ASSERT_TRUE(
        follower.WaitFor([&](const Replay& r) { return r.names() == fresh.replay().names(); }));
    EXPECT_LE(follower.replay().names().size(), client().Status().kv_blocks().cached());
    const std::vector<uint32_t> prompt = Prompt(random, kLongest);
    const uint32_t expected = follower.replay().CachedTokens(prompt);
    const Generation generation = client().Generate(Request(prompt, 4));
    ASSERT_TRUE(IsComplete(generation));
    EXPECT_EQ(generation.started->cached_prompt_tokens(), expected);
    if (expected > 0) ++shared;
  }
  EXPECT_GT(shared, 3);
}

TEST_F(KvEventsTest, AnIdleWorkerSaysSo) {
  ASSERT_NO_FATAL_FAILURE(Start(64, {"--max-seqs", "3"}));
  Follower follower(vllm_->stub());
  const absl::Time begun = absl::Now();
  absl::Time deadline = begun + Bound(absl::Seconds(30));
  while (follower.heartbeats().size() < 2 && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  const auto heartbeats = follower.heartbeats();
  ASSERT_GE(heartbeats.size(), 2u);
  EXPECT_GE(absl::Now() - begun, absl::Seconds(1)) << "nothing changed";
  EXPECT_EQ(heartbeats[0].load().max_running_requests(), 3u);
  EXPECT_EQ(heartbeats[0].load().running_requests(), 0u);
  EXPECT_EQ(heartbeats[0].load().token_usage(), 0);
  EXPECT_EQ(heartbeats[0].load().max_total_num_tokens(), static_cast<int>(64 * kBlockTokens));
  EXPECT_GT(heartbeats[0].timestamp(), 1.7e9);
}

TEST_F(KvEventsTest, ABusyWorkerSaysSoAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Start(64, {"--null-step", "20ms"}));
  Follower follower(vllm_->stub());
  ASSERT_TRUE(follower.WaitListed());
  GenerateCall call(stub(), EndlessRequest("busy"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilStarted());
  const absl::Time deadline = absl::Now() + Bound(absl::Seconds(30));
  const auto is_busy = [&] {
    const auto heartbeats = follower.heartbeats();
    return std::any_of(heartbeats.begin(), heartbeats.end(), [](const auto& batch) {
      return batch.load().running_requests() == 1 && batch.load().token_usage() > 0;
    });
  };
  while (!is_busy() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(is_busy());
}

TEST_F(KvEventsTest, UnloadClearsAll) {
  ASSERT_NO_FATAL_FAILURE(Start(64));
  const std::vector<uint32_t> prompt(5 * kBlockTokens, 9);
  ASSERT_TRUE(IsComplete(client().Generate(Request(prompt, 8))));
  Follower follower(vllm_->stub());
  ASSERT_TRUE(follower.WaitListed());
  EXPECT_FALSE(follower.replay().names().empty());
  EXPECT_TRUE(client().Unload(/*force=*/false).ok());
  EXPECT_TRUE(IsError(follower.End(), StatusCode::UNAVAILABLE, "UNLOADING"));
  EXPECT_TRUE(follower.replay().names().empty());
  EXPECT_TRUE(IsError(Refused(), StatusCode::FAILED_PRECONDITION, "MODEL_NOT_LOADED"));
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  Follower next(vllm_->stub());
  ASSERT_TRUE(next.WaitListed());
  EXPECT_TRUE(next.replay().names().empty());
}

TEST_F(KvEventsTest, AWorkerThatGoesEndsThem) {
  ASSERT_NO_FATAL_FAILURE(Start(64));
  Follower follower(vllm_->stub());
  ASSERT_TRUE(follower.WaitListed());
  StopWorker();
  EXPECT_TRUE(IsError(follower.End(), StatusCode::UNAVAILABLE, "DRAINING"));
}

TEST_F(KvEventsTest, PlacesAreBoundedAndThoseWhoLeaveFreeTheirs) {
  ASSERT_NO_FATAL_FAILURE(Start(64));
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(60));
    auto reader = vllm_->stub().SubscribeKvEvents(&context, {});
    vllm_wire::KvEventBatch batch;
    if (random() % 2 == 0) reader->Read(&batch);
    context.TryCancel();
    const grpc::Status status = reader->Finish();
    ASSERT_FALSE(status.ok());
  }
  std::vector<std::unique_ptr<Follower>> followers;
  const absl::Time deadline = absl::Now() + Bound(absl::Seconds(30));
  while (followers.size() < kMaxSubscribers && absl::Now() < deadline) {
    auto follower = std::make_unique<Follower>(vllm_->stub());
    // The last of the subscribers that left may still occupy its place.
    const absl::Time patience = absl::Now() + Bound(absl::Seconds(5));
    while (!follower->replay().listed() && absl::Now() < patience && !follower->ended()) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    if (follower->replay().listed()) followers.push_back(std::move(follower));
  }
  ASSERT_EQ(followers.size(), static_cast<size_t>(kMaxSubscribers));
  EXPECT_TRUE(IsError(Refused(), StatusCode::RESOURCE_EXHAUSTED, "TOO_MANY_SUBSCRIBERS"));
}

TEST_F(KvEventsTest, ASlowSubscriberGetsDataLoss) {
  // More changes than the worker keeps for a subscriber, plus the changes in flight and those
  // already batched for sending.
  constexpr int kChanges = 200'000;
  constexpr size_t kPrompt = 1000;
  ASSERT_NO_FATAL_FAILURE(Start(128, {"--max-step-tokens", "1024", "--log-level", "error"}));
  // A client whose transport reads little in advance.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 10);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto slow_stub = vllm_wire::VllmEngine::NewStub(
      grpc::CreateCustomChannel(worker().address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(60));
  auto reader = slow_stub->SubscribeKvEvents(&context, {});
  vllm_wire::KvEventBatch batch;
  ASSERT_TRUE(reader->Read(&batch));
  Follower quick(vllm_->stub());
  std::mt19937 random(1);
  // Each block is stored, and later removed for the next ones.
  for (int done = 0; done < kChanges; done += 2 * static_cast<int>(kPrompt / kBlockTokens)) {
    std::vector<uint32_t> prompt(kPrompt);
    for (uint32_t& token : prompt) token = random() % kVocab;
    ASSERT_TRUE(IsComplete(client().Generate(Request(prompt, 1))));
  }
  Replay replay;
  replay.Apply(batch);
  while (reader->Read(&batch)) replay.Apply(batch);
  EXPECT_TRUE(IsError(DecodeError(reader->Finish()), StatusCode::DATA_LOSS, "KV_EVENTS_LOST"));
  const uint32_t cached = client().Status().kv_blocks().cached();
  Follower fresh(vllm_->stub());
  EXPECT_TRUE(quick.WaitFor([&](const Replay& r) {
    const std::set<int64_t> names = r.names();
    return names.size() == cached && names == fresh.replay().names();
  })) << "others lose nothing";
}

TEST_F(KvEventsTest, NothingIsKeptOfStreamsThatEnded) {
  ASSERT_NO_FATAL_FAILURE(Start(64));
  vllm_wire::SubscribeKvEventsRequest request;
  request.set_start_sequence_number(5);
  EXPECT_TRUE(IsError(Refused(request), StatusCode::OUT_OF_RANGE, "KV_EVENTS_NOT_KEPT"));
}

TEST_F(KvEventsTest, SubscribingNeedsThePermissionForControl) {
  const std::string tokens = models().File("tokens");
  std::ofstream(tokens) << "inference reads-nobodys-prompts\ncontrol may-control-a-worker\n";
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--token-file", tokens}));
  vllm_ = std::make_unique<VllmClient>(client().channel());
  EXPECT_TRUE(IsError(Refused(), StatusCode::UNAUTHENTICATED, "UNAUTHENTICATED"));
  EXPECT_TRUE(IsError(Refused({}, "reads-nobodys-prompts"), StatusCode::PERMISSION_DENIED,
                      "PERMISSION_DENIED"));
  EXPECT_TRUE(IsError(Refused({}, "may-control-a-worker"), StatusCode::FAILED_PRECONDITION,
                      "MODEL_NOT_LOADED"));
}

}  // namespace
}  // namespace orcd::testing
