#include "runtime/engine/model_drafter.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/backend/steps_for_test.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/engine/nano_model_for_test.h"
#include "runtime/null/null_backend.h"
#include "testing/files.h"
#include "testing/random_model/random_model.h"
#include "testing/test_model.h"

namespace orcd {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

using Tokens = std::vector<int32_t>;

// Runs another backend; counts what it runs, and fails or spoils results when told to.
class SpyBackend : public Backend {
 public:
  // `kv_blocks`: shows so few blocks of each kind; 0: as many as there are.
  SpyBackend(std::unique_ptr<Backend> backend, int kv_blocks)
      : backend_(std::move(backend)), info_(backend_->info()) {
    if (kv_blocks == 0) return;
    info_.kv_blocks = kv_blocks;
    if (info_.window_blocks > 0) info_.window_blocks = kv_blocks;
  }
  ~SpyBackend() override { EXPECT_EQ(in_flight_, 0) << "destroyed while a step runs"; }

  const BackendInfo& info() const override { return info_; }
  absl::Status Launch(const StepBatch& batch) override {
    if (steps == fail_launch_at) return absl::InternalError("the launch failed");
    ++steps;
    int step_tokens = 0;
    for (const StepSequence& seq : batch.seqs) step_tokens += static_cast<int>(seq.tokens.size());
    tokens += step_tokens;
    most_step_tokens = std::max(most_step_tokens, step_tokens);
    ++in_flight_;
    return backend_->Launch(batch);
  }
  absl::Status GiveMasks(std::span<const TokenMask> masks) override {
    return backend_->GiveMasks(masks);
  }
  absl::StatusOr<StepResult> Wait() override {
    --in_flight_;
    if (fails_wait) return absl::InternalError("the step failed");
    absl::StatusOr<StepResult> result = backend_->Wait();
    if (result.ok() && spoil) spoil(*result);
    return result;
  }

  int steps = 0;
  int tokens = 0;
  int most_step_tokens = 0;
  int fail_launch_at = -1;
  bool fails_wait = false;
  std::function<void(StepResult&)> spoil;

 private:
  const std::unique_ptr<Backend> backend_;
  BackendInfo info_;
  int in_flight_ = 0;
};

struct DraftKindOfTest {
  std::string name;
  // The draft model's.
  std::string architecture;
  BackendFactory make;
};

void PrintTo(const DraftKindOfTest& kind, std::ostream* out) { *out << kind.name; }

std::unique_ptr<Backend> MakeDraftBackend(const DraftKindOfTest& kind,
                                          const std::shared_ptr<const Model>& model,
                                          const BackendOptions& options) {
  NullLoadObserver observer;
  auto backend = kind.make(model, options, observer);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

class ModelDrafterTest : public ::testing::TestWithParam<DraftKindOfTest> {
 protected:
  static BackendOptions Options() {
    return {.max_seqs = 4,
            .max_step_tokens = 32,
            .kv_cache_bytes = 8 << 20,
            .max_context = 256,
            .block_tokens = 16,
            .threads = 1};
  }

  // `vocab` is the one of the model that verifies; -1: the draft model's.
  void Make(const BackendOptions& options = Options(), int vocab = -1, int kv_blocks = 0) {
    model_ = NanoModel({.architecture = GetParam().architecture});
    ASSERT_NE(model_, nullptr);
    auto backend = MakeDraftBackend(GetParam(), model_, options);
    ASSERT_NE(backend, nullptr);
    auto spy = std::make_unique<SpyBackend>(std::move(backend), kv_blocks);
    spy_ = spy.get();
    if (vocab < 0) vocab = model_->spec().vocab;
    drafter_ = std::make_unique<ModelDrafter>(model_, std::move(spy), vocab);
  }

  // The tokens that the model draws greedily after `tokens`, on a backend of its own.
  Tokens Continue(const Tokens& tokens, int count) const {
    const auto backend = MakeDraftBackend(GetParam(), model_,
                                          {.max_seqs = 1,
                                           .max_step_tokens = 512,
                                           .kv_cache_bytes = 8 << 20,
                                           .block_tokens = 16,
                                           .threads = 1});
    if (backend == nullptr) return {};
    const auto blocks = BlockRange(0, 20);
    StepSequence seq = StartSequence(0, tokens, blocks);
    Tokens drawn;
    for (int i = 0; i < count; ++i) {
      seq.sample = true;
      drawn.push_back(SamplesOf(RunStep(*backend, {seq})).at(0).token);
      seq = ContinueSequence(0, static_cast<int>(tokens.size()) + i, std::span(drawn).last(1),
                             blocks);
    }
    return drawn;
  }

  // The guesses for several sequences; fails the test on an error.
  std::vector<Tokens> Draft(const std::vector<DraftRequest>& requests) {
    auto guesses = drafter_->Draft(requests);
    EXPECT_TRUE(guesses.ok()) << guesses.status();
    if (!guesses.ok()) return std::vector<Tokens>(requests.size());
    EXPECT_EQ(guesses->size(), requests.size());
    return *std::move(guesses);
  }
  Tokens Draft(int slot, const Tokens& tokens, int count) {
    return Draft({{.slot = slot, .tokens = tokens, .count = count}}).front();
  }

  std::shared_ptr<const Model> model_;
  std::unique_ptr<ModelDrafter> drafter_;
  // Belongs to drafter_.
  SpyBackend* spy_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(
    Kinds, ModelDrafterTest,
    ::testing::Values(DraftKindOfTest{"Null", "qwen2", NullBackendFactory()},
                      DraftKindOfTest{"NullWindows", "gemma3", NullBackendFactory()},
                      DraftKindOfTest{"Cpu", "qwen2", CreateCpuBackend},
                      DraftKindOfTest{"NullRecurrent", "qwen3next", NullBackendFactory()},
                      DraftKindOfTest{"CpuWindows", "gemma3", CreateCpuBackend},
                      DraftKindOfTest{"CpuRecurrent", "qwen3next", CreateCpuBackend}),
    [](const auto& info) { return info.param.name; });

TEST_P(ModelDrafterTest, GuessesAreGreedyDrawsHoweverManyWereRight) {
  ASSERT_NO_FATAL_FAILURE(Make());
  std::mt19937 random(1);
  // They grow beyond gemma3's windows of 40 positions, whose blocks are returned.
  std::vector<Tokens> sequences = {TestTokens(3, 1), TestTokens(25, 2), TestTokens(7, 3)};
  for (int turn = 0; turn < 40; ++turn) {
    std::vector<DraftRequest> requests;
    std::vector<size_t> of_request;
    for (size_t i = 0; i < sequences.size(); ++i) {
      // Sequences may miss a turn.
      if (turn > 0 && random() % 5 == 0) continue;
      requests.push_back({.slot = static_cast<int>(i),
                          .tokens = sequences[i],
                          .count = static_cast<int>(1 + random() % 8)});
      of_request.push_back(i);
    }
    const std::vector<Tokens> guesses = Draft(requests);
    for (size_t r = 0; r < requests.size(); ++r) {
      const Tokens expected = Continue(sequences[of_request[r]], requests[r].count);
      ASSERT_EQ(guesses[r], expected) << "turn " << turn << ", slot " << requests[r].slot;
    }
    // Some guesses are right, then another token comes.
    for (size_t r = 0; r < requests.size(); ++r) {
      Tokens& sequence = sequences[of_request[r]];
      const size_t right = random() % (guesses[r].size() + 1);
      sequence.insert(sequence.end(), guesses[r].begin(),
                      guesses[r].begin() + static_cast<std::ptrdiff_t>(right));
      sequence.push_back(static_cast<int32_t>(random() % 1000));
    }
  }
  for (const Tokens& sequence : sequences) EXPECT_GT(sequence.size(), 80u);
}

TEST_P(ModelDrafterTest, OnlyTokensThatDoNotAgreeAreRun) {
  ASSERT_NO_FATAL_FAILURE(Make());
  Tokens sequence = TestTokens(20);
  const auto run_by = [&](int count) {
    const int before = spy_->tokens;
    const Tokens guesses = Draft(0, sequence, count);
    EXPECT_THAT(guesses, SizeIs(count));
    const int run = spy_->tokens - before;
    return std::pair(guesses, run);
  };
  auto [guesses, run] = run_by(4);
  // The last guess is not run.
  EXPECT_EQ(run, 20 + 3);
  // All four were right: the last of them and the token after it are new.
  sequence.insert(sequence.end(), guesses.begin(), guesses.end());
  sequence.push_back(5);
  std::tie(guesses, run) = run_by(4);
  EXPECT_EQ(run, 2 + 3);
  // Two were right.
  sequence.insert(sequence.end(), guesses.begin(), guesses.begin() + 2);
  sequence.push_back((guesses[2] + 1) % 1000);
  std::tie(guesses, run) = run_by(4);
  // A recurrent state goes back to the end of the tokens before.
  EXPECT_EQ(run, (spy_->info().recurrent ? 3 : 1) + 3);
  // None was.
  sequence.push_back((guesses[0] + 1) % 1000);
  std::tie(guesses, run) = run_by(1);
  EXPECT_EQ(run, 1);
  // The same again: its last token has to be run for the draw.
  const Tokens before = guesses;
  std::tie(guesses, run) = run_by(1);
  EXPECT_EQ(run, 1);
  EXPECT_EQ(guesses, before);
}

TEST_P(ModelDrafterTest, LongPromptsAreRunInStepsBesideOthers) {
  ASSERT_NO_FATAL_FAILURE(Make());
  const Tokens short_prompt = TestTokens(6, 1);
  const Tokens long_prompt = TestTokens(100, 2);
  const Tokens longer_prompt = TestTokens(160, 3);
  const auto guesses = Draft({{.slot = 0, .tokens = long_prompt, .count = 3},
                              {.slot = 1, .tokens = short_prompt, .count = 4},
                              {.slot = 2, .tokens = longer_prompt, .count = 1}});
  EXPECT_EQ(guesses[0], Continue(long_prompt, 3));
  EXPECT_EQ(guesses[1], Continue(short_prompt, 4));
  EXPECT_EQ(guesses[2], Continue(longer_prompt, 1));
  EXPECT_EQ(spy_->most_step_tokens, 32);
  // Each token once, in as few steps as there can be, and the guesses but the last of each.
  EXPECT_EQ(spy_->tokens, 266 + 2 + 3);
  EXPECT_EQ(spy_->steps, (266 + 31) / 32 + 3);
}

// As the engine asks for guesses after a long prompt, which it shows in parts.
TEST_P(ModelDrafterTest, APromptMayComeInParts) {
  ASSERT_NO_FATAL_FAILURE(Make());
  const Tokens prompt = TestTokens(150);
  for (const int known : {40, 41, 90, 150}) {
    const Tokens part(prompt.begin(), prompt.begin() + known);
    EXPECT_EQ(Draft(0, part, 2), Continue(part, 2)) << known;
  }
  // Every token once, and a guess each time.
  EXPECT_EQ(spy_->tokens, 150 + 4);
}

TEST_P(ModelDrafterTest, SequencesComeAndGo) {
  ASSERT_NO_FATAL_FAILURE(Make());
  drafter_->Leave(2);
  EXPECT_THAT(Draft({}), IsEmpty());
  const Tokens first = TestTokens(30, 1);
  EXPECT_EQ(Draft(2, first, 2), Continue(first, 2));
  drafter_->Leave(2);
  const Tokens second = TestTokens(20, 2);
  EXPECT_EQ(Draft(2, second, 2), Continue(second, 2));
  // Other sequences without Leave. The last begins like the one before, which went on from its end.
  Tokens third = TestTokens(25, 3);
  EXPECT_EQ(Draft(2, third, 2), Continue(third, 2));
  const Tokens shortened(third.begin(), third.begin() + 10);
  third.insert(third.end(), {1, 2, 3});
  EXPECT_EQ(Draft(2, third, 2), Continue(third, 2));
  EXPECT_EQ(Draft(2, shortened, 2), Continue(shortened, 2));
}

TEST_P(ModelDrafterTest, NothingIsGuessedBeyondTheContext) {
  BackendOptions options = Options();
  options.max_context = 40;
  ASSERT_NO_FATAL_FAILURE(Make(options));
  Tokens sequence = TestTokens(30);
  EXPECT_EQ(Draft(0, sequence, 8), Continue(sequence, 8));
  sequence = TestTokens(38);
  // The positions 38 and 39 are left for two guesses, and a third is drawn after them.
  EXPECT_EQ(Draft(0, sequence, 8), Continue(sequence, 3));
  sequence = TestTokens(40);
  EXPECT_EQ(Draft(0, sequence, 8), Continue(sequence, 1));
  sequence = TestTokens(41);
  EXPECT_THAT(Draft(0, sequence, 8), IsEmpty());
  const int steps = spy_->steps;
  sequence = TestTokens(50);
  EXPECT_THAT(Draft(0, sequence, 8), IsEmpty());
  EXPECT_EQ(spy_->steps, steps);
}

TEST_P(ModelDrafterTest, GuessesAreInTheVocabularyOfTheOtherModel) {
  ASSERT_NO_FATAL_FAILURE(Make());
  const Tokens sequence = TestTokens(20);
  const Tokens whole = Continue(sequence, 8);
  // A vocabulary that lacks the greatest token and those above it.
  const int32_t most = *std::ranges::max_element(whole);
  ASSERT_NO_FATAL_FAILURE(Make(Options(), most));
  const Tokens inside(whole.begin(), std::ranges::find(whole, most));
  EXPECT_EQ(Draft(0, sequence, 8), inside);
  // The guesses that were left out are in the way of nothing.
  Tokens more = sequence;
  more.insert(more.end(), {1, 2, 3});
  const Tokens after = Continue(more, 4);
  const auto outside = [&](int32_t token) { return token >= most; };
  EXPECT_EQ(Draft(0, more, 4), Tokens(after.begin(), std::ranges::find_if(after, outside)));
}

TEST_P(ModelDrafterTest, ATokenThatTheDraftModelLacksEndsTheGuesses) {
  ASSERT_NO_FATAL_FAILURE(Make());
  const int32_t lacking = model_->spec().vocab;
  Tokens sequence = TestTokens(10);
  EXPECT_THAT(Draft(0, sequence, 2), SizeIs(2));
  sequence.push_back(lacking);
  const Tokens other = TestTokens(9, 1);
  const auto guesses = Draft(
      {{.slot = 0, .tokens = sequence, .count = 2}, {.slot = 1, .tokens = other, .count = 2}});
  EXPECT_THAT(guesses[0], IsEmpty());
  EXPECT_EQ(guesses[1], Continue(other, 2));
  sequence.push_back(1);
  EXPECT_THAT(Draft(0, sequence, 2), IsEmpty());
  drafter_->Leave(0);
  EXPECT_EQ(Draft(0, other, 2), Continue(other, 2));
}

TEST_P(ModelDrafterTest, NumbersThatAreNotFiniteEndTheGuessesOfTheirSequence) {
  ASSERT_NO_FATAL_FAILURE(Make());
  // The parts of a step come in the order of their lengths.
  Tokens one = TestTokens(8, 1);
  Tokens two = TestTokens(12, 2);
  Tokens three = TestTokens(9, 3);
  // Spoils keys of the first and logits of the third sequence, in the two steps of the first call.
  spy_->spoil = [this](StepResult& result) {
    if (spy_->steps > 2) return;
    result.parts[0].finite = false;
    result.parts[1].samples[0].finite = false;
  };
  const auto draft_all = [&] {
    return Draft({{.slot = 0, .tokens = one, .count = 2},
                  {.slot = 1, .tokens = two, .count = 2},
                  {.slot = 2, .tokens = three, .count = 2}});
  };
  std::vector<Tokens> guesses = draft_all();
  EXPECT_THAT(guesses[0], IsEmpty());
  EXPECT_EQ(guesses[1], Continue(two, 2));
  EXPECT_THAT(guesses[2], IsEmpty());
  for (Tokens* sequence : {&one, &two, &three}) sequence->push_back(9);
  guesses = draft_all();
  EXPECT_THAT(guesses[0], IsEmpty());
  EXPECT_EQ(guesses[1], Continue(two, 2));
  EXPECT_THAT(guesses[2], IsEmpty());
  drafter_->Leave(0);
  EXPECT_EQ(Draft(0, one, 2), Continue(one, 2));
}

TEST_P(ModelDrafterTest, SequencesShareTheBlocksThatThereAre) {
  // Blocks of 16 tokens.
  ASSERT_NO_FATAL_FAILURE(Make(Options(), /*vocab=*/-1, /*kv_blocks=*/6));
  Tokens one = TestTokens(30, 1);
  Tokens two = TestTokens(46, 2);
  const Tokens three = TestTokens(20, 3);
  EXPECT_EQ(Draft(0, one, 2), Continue(one, 2));
  EXPECT_EQ(Draft(1, two, 2), Continue(two, 2));
  // Two blocks are wanted and one is free.
  EXPECT_THAT(Draft(2, three, 2), IsEmpty());
  // The second sequence takes the last one.
  two.insert(two.end(), {7, 7, 7});
  EXPECT_EQ(Draft(1, two, 2), Continue(two, 2));
  // The first runs out of blocks and gives up, which leaves room for the third.
  one.insert(one.end(), {7, 7, 7});
  EXPECT_THAT(Draft(0, one, 2), IsEmpty());
  EXPECT_EQ(Draft(2, three, 2), Continue(three, 2));
  one.push_back(7);
  EXPECT_THAT(Draft(0, one, 2), IsEmpty());
  // A prompt that no cache holds waits in vain and takes nothing from the others.
  EXPECT_THAT(Draft(3, TestTokens(120), 2), IsEmpty());
  two.push_back(7);
  EXPECT_EQ(Draft(1, two, 2), Continue(two, 2));
  drafter_->Leave(1);
  drafter_->Leave(0);
  EXPECT_EQ(Draft(0, one, 2), Continue(one, 2));
}

TEST_P(ModelDrafterTest, AFailedStepIsReportedAndNoStepIsLeft) {
  const Tokens sequence = TestTokens(10);
  const DraftRequest request = {.slot = 0, .tokens = sequence, .count = 6};
  for (const int at : {0, 1, 2, 5}) {
    ASSERT_NO_FATAL_FAILURE(Make());
    spy_->fail_launch_at = at;
    EXPECT_EQ(drafter_->Draft({&request, 1}).status().message(), "the launch failed");
    // The spy looks for steps in flight.
    drafter_ = nullptr;
  }
  ASSERT_NO_FATAL_FAILURE(Make());
  spy_->fails_wait = true;
  EXPECT_EQ(drafter_->Draft({&request, 1}).status().message(), "the step failed");
}

// A draft model's file is treated as that of any model: one that is only touched is read again,
// which the watchdog sees, and one that is written to ends the guesses.
TEST(ModelDrafterFileTest, AFileThatChangesIsNoticed) {
  const TempDir dir;
  const std::string path = dir.File("draft.gguf");
  ASSERT_TRUE(WriteRandomModel({.type = "F16"}, path).ok());
  NullLoadObserver observer;
  const auto model = Model::Load(path, {}, observer);
  ASSERT_TRUE(model.ok()) << model.status();
  auto backend = CreateCpuBackend(*model, {.kv_cache_bytes = 1 << 20, .threads = 1}, observer);
  ASSERT_TRUE(backend.ok()) << backend.status();
  ModelDrafter drafter(*model, *std::move(backend), (*model)->spec().vocab);
  const Tokens sequence = TestTokens(10);
  const DraftRequest request = {.slot = 0, .tokens = sequence, .count = 2};
  const absl::Time begun = SteadyNow();
  ASSERT_TRUE(drafter.Draft({&request, 1}).ok());
  EXPECT_GE(drafter.progress_at(), begun) << "each step is progress";
  EXPECT_LT((*model)->read_again_at(), begun);
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
  const auto guesses = drafter.Draft({&request, 1});
  ASSERT_TRUE(guesses.ok()) << guesses.status();
  EXPECT_THAT(guesses->front(), SizeIs(2));
  EXPECT_GE((*model)->read_again_at(), begun);
  EXPECT_GE(drafter.progress_at(), (*model)->read_again_at());
  const char other = 'x';
  Patch(path, std::filesystem::file_size(path) - 1, &other, 1);
  EXPECT_EQ(GetErrorDetails(drafter.Draft({&request, 1}).status()).reason, "FILE_CHANGED");
}

}  // namespace
}  // namespace orcd
