// The scheduler on models of which some layers have a window: their blocks are taken step by step,
// returned, shared, and run out.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/engine/prefix_hash.h"
#include "runtime/engine/scheduler_harness_for_test.h"

namespace orcd {
namespace {

constexpr int kBlockTokens = 4;
// The window before a position in the middle of a block touches three blocks.
constexpr int kWindow = 6;

class SchedulerWindowTest : public ::testing::Test, protected SchedulerHarness {
 protected:
  void MakeWithWindow(int window_blocks, int depth = 1, int max_seqs = 4) {
    window_ = kWindow;
    BackendInfo info = Info(max_seqs, /*kv_blocks=*/200, depth);
    info.window_blocks = window_blocks;
    Make(info, /*max_context=*/100);
  }

  static std::vector<int32_t> Prompt(int tokens, int first = 1) {
    std::vector<int32_t> prompt(tokens);
    std::iota(prompt.begin(), prompt.end(), first);
    return prompt;
  }

  // A request that generates exactly `tokens`.
  GenerationRequest Ask(const std::string& id, std::vector<int32_t> prompt, int tokens) {
    GenerationRequest request = Request(id, std::move(prompt));
    request.stop.ignore_eog = true;
    request.stop.max_tokens = tokens;
    return request;
  }

  // Runs a request alone; returns the number of cached tokens.
  int Run(GenerationRequest request) {
    const std::string id = request.id;
    const Expected expected = Naive(request);
    scheduler_->Add(std::move(request), now_);
    RunToEnd();
    EXPECT_EQ(sinks_[id]->tokens, expected.tokens) << id;
    return sinks_[id]->cached_prompt_tokens;
  }

  int used() const {
    return scheduler_->window_blocks().total() - scheduler_->window_blocks().free();
  }

  // Names of the full blocks of a prompt without a salt.
  std::vector<BlockHash> NamesOf(const std::vector<int32_t>& prompt) const {
    std::vector<BlockHash> names;
    BlockHash parent = PrefixRoot(model_->digest(), "");
    for (size_t i = 0; i + kBlockTokens <= prompt.size(); i += kBlockTokens) {
      parent = NextBlockHash(parent, std::span(prompt).subspan(i, kBlockTokens));
      names.push_back(parent);
    }
    return names;
  }
};

TEST_F(SchedulerWindowTest, ASequenceHoldsNoMoreThanItsWindowAndItsSteps) {
  for (const bool prefix_cache : {true, false}) {
    for (const int depth : {1, 2}) {
      MakeWithWindow(50, depth);
      GenerationRequest request = Ask("a", Prompt(40), 40);
      request.prefix_cache = prefix_cache;
      const Expected expected = Naive(request);
      scheduler_->Add(std::move(request), now_);
      int most = 0;
      while (Advance()) {
        most = std::max(most, used());
        if (sinks_["a"]->tokens.size() > 3 && !sinks_["a"]->finished) {
          EXPECT_LE(used(), 3 + 1) << "it decodes";
          EXPECT_GE(used(), 2);
        }
      }
      // Prompts run in steps of 12 tokens.
      EXPECT_LE(most, 3 + depth * 12 / kBlockTokens);
      EXPECT_EQ(sinks_["a"]->tokens, expected.tokens);
      EXPECT_GT(backend_->parts_after_returns, 40);
      EXPECT_EQ(used(), 0);
      EXPECT_EQ(scheduler_->window_blocks().named() > 0, prefix_cache);
    }
  }
}

TEST_F(SchedulerWindowTest, ALongPromptThatWasSeenIsCachedUpToItsLastBlock) {
  // As many as the prompt and its answer have blocks, and fewer.
  for (const int window_blocks : {30, 7}) {
    for (const int depth : {1, 2}) {
      MakeWithWindow(window_blocks, depth);
      const std::vector<int32_t> prompt = Prompt(70);
      EXPECT_EQ(Run(Ask("first", prompt, 1)), 0);
      EXPECT_EQ(Run(Ask("again", prompt, 8)), 68);
      EXPECT_EQ(backend_->starts_after_a_window, 1);
      // Generated tokens can be the beginning of a prompt like any other.
      std::vector<int32_t> turn = prompt;
      const auto& answer = sinks_["again"]->tokens;
      turn.insert(turn.end(), answer.begin(), answer.end());
      EXPECT_EQ(Run(Ask("next", turn, 3)), 76);
      EXPECT_EQ(used(), 0);
      EXPECT_EQ(scheduler_->blocks().free(), 200);
    }
  }
}

TEST_F(SchedulerWindowTest, ATenantSharesWithItselfAlone) {
  MakeWithWindow(50);
  const auto cached = [&](const std::string& id, const std::string& salt, bool use_cache) {
    GenerationRequest request = Ask(id, Prompt(30), 1);
    request.cache_salt = salt;
    request.prefix_cache = use_cache;
    return Run(std::move(request));
  };
  EXPECT_EQ(cached("private", "", false), 0);
  EXPECT_EQ(cached("a", "", true), 0);
  EXPECT_EQ(cached("b", "", true), 28);
  EXPECT_EQ(cached("c", "", false), 0);
  EXPECT_EQ(cached("d", "tenant", true), 0);
  EXPECT_EQ(cached("e", "tenant", true), 28);
}

// A prompt whose last window is gone begins after an earlier one that is still there.
TEST_F(SchedulerWindowTest, AReclaimedWindowBlockOnlyShortensWhatIsShared) {
  MakeWithWindow(20);
  const std::vector<int32_t> prompt = Prompt(50);
  const std::vector<BlockHash> names = NamesOf(prompt);
  Run(Ask("first", prompt, 1));
  // Another prompt branches off after 26 tokens; the window before its sixth block's end is used
  // again.
  std::vector<int32_t> branch = Prompt(26);
  branch.insert(branch.end(), 14, 77);
  EXPECT_EQ(Run(Ask("branch", branch, 1)), 24);
  const BlockPool& windows = scheduler_->window_blocks();
  ASSERT_TRUE(windows.Contains(names[11]));
  for (int i = 0; windows.Contains(names[11]) || windows.Contains(names[10]); ++i) {
    ASSERT_LT(i, 30);
    Run(Ask(absl::StrCat("other", i), Prompt(5, 100 + 10 * i), 1));
  }
  ASSERT_TRUE(windows.Contains(names[4]) && windows.Contains(names[5]));
  for (const BlockHash& name : names) EXPECT_TRUE(scheduler_->blocks().Contains(name));
  EXPECT_EQ(Run(Ask("again", prompt, 5)), 24);
  EXPECT_EQ(Run(Ask("once more", prompt, 5)), 48) << "what was computed again is found again";
  // Nothing is shared once no window is left.
  for (int i = 0; i < 40; ++i) Run(Ask(absl::StrCat("last", i), Prompt(5, 500 + 10 * i), 1));
  EXPECT_EQ(Run(Ask("from the beginning", prompt, 5)), 0);
}

TEST_F(SchedulerWindowTest, SamplesShareThePrompt) {
  MakeWithWindow(50, 2);
  GenerationRequest request = Ask("a", Prompt(30), 12);
  request.samples = 3;
  std::vector<Expected> expected;
  for (int i = 0; i < 3; ++i) expected.push_back(Naive(request, i));
  scheduler_->Add(std::move(request), now_);
  RunToEnd();
  EXPECT_EQ(sinks_["a"]->tokens, expected[0].tokens);
  for (int i = 1; i < 3; ++i) EXPECT_EQ(sinks_["a"]->more_samples[i], expected[i].tokens);
  EXPECT_EQ(backend_->starts_after_a_window, 2);
  EXPECT_EQ(used(), 0);
}

TEST_F(SchedulerWindowTest, ARequestWaitsForTheBlocksOfItsWindow) {
  MakeWithWindow(3);
  scheduler_->Add(Ask("a", Prompt(30), 10), now_);
  Advance();
  scheduler_->Add(Ask("b", Prompt(30, 200), 10), now_);
  while (!sinks_["a"]->finished) {
    EXPECT_EQ(scheduler_->running(), 1);
    ASSERT_TRUE(Advance());
  }
  RunToEnd();
  EXPECT_EQ(sinks_["b"]->tokens.size(), 10u);
  EXPECT_EQ(scheduler_->counts().preemptions, 0);
}

TEST_F(SchedulerWindowTest, WhoLacksAWindowBlockHasTheLastPreempted) {
  for (const int depth : {1, 2}) {
    MakeWithWindow(5, depth);
    std::map<std::string, Expected> expected;
    for (int i = 0; i < 4; ++i) {
      // Each fits as it arrives, and then needs three blocks.
      GenerationRequest request = Ask(absl::StrCat("r", i), Prompt(2, 50 * i), 30);
      expected[request.id] = Naive(request);
      scheduler_->Add(std::move(request), now_);
    }
    RunToEnd();
    for (const auto& [id, want] : expected) EXPECT_EQ(sinks_[id]->tokens, want.tokens) << id;
    EXPECT_GT(scheduler_->counts().preemptions, 0);
    EXPECT_EQ(used(), 0);
    EXPECT_EQ(scheduler_->blocks().free(), 200);
  }
}

class CountingObserver : public BlockObserver {
 public:
  void OnStored(const FindableBlock&) override { ++stored; }
  void OnRemoved(const BlockHash&) override { --stored; }
  void OnListed() override {}
  void OnEnded() override {}

  int stored = 0;
};

TEST_F(SchedulerWindowTest, AnObserverHearsOfWholeBlocksAlone) {
  MakeWithWindow(7);
  auto observer = std::make_shared<CountingObserver>();
  scheduler_->ObserveBlocks(observer);
  Run(Ask("a", Prompt(50), 4));
  EXPECT_EQ(observer->stored, 53 / kBlockTokens);
  EXPECT_EQ(scheduler_->blocks().named(), 53 / kBlockTokens);
  EXPECT_LE(scheduler_->window_blocks().named(), 7);
}

}  // namespace
}  // namespace orcd
