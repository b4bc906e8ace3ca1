// Random simulations of the scheduler, one for each seed, compared with a naive model that guesses
// nothing: no token lost or sent twice, no block leaked, no request starved, no bound exceeded.
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/engine/block_drafter.h"
#include "runtime/engine/constraint_for_test.h"
#include "runtime/engine/drafters_for_test.h"
#include "runtime/engine/scheduler_harness_for_test.h"
#include "testing/sanitized.h"

namespace orcd {
namespace {

// Counts the events of all runs, so that a simulation in which nothing happens is noticed.
struct Encounters {
  int64_t completed = 0;
  int64_t cancelled = 0;
  int64_t expired = 0;
  int64_t unreachable = 0;
  int64_t cached_tokens = 0;
  int64_t preemptions = 0;
  int64_t gaps_checked = 0;
  int64_t poisoned = 0;
  // Requests whose constraint could not be made, or failed later.
  int64_t refused_rules = 0;
  int64_t failed_rules = 0;
  // Times that a request left the queue before one that ranked before it and had no constraint yet.
  int64_t passed = 0;
  int64_t forced_tokens = 0;
  int64_t masks_given = 0;
  // As FakeBackend counts them.
  int64_t parts_after_returns = 0;
  int64_t starts_after_a_window = 0;
  // Guesses; those of requests with constraints; and runs in which the drafter failed.
  int64_t drafts = 0;
  int64_t right_drafts = 0;
  int64_t drafts_under_rules = 0;
  int64_t drafter_failures = 0;
  // As FakeBackend counts them.
  int64_t predictions_asked = 0;
  int64_t predictions_made = 0;
  // Checkpoints of recurrent states, and tokens of the sequences that began with one.
  int64_t checkpoints = 0;
  int64_t checkpoint_hits = 0;
  int64_t checkpoint_tokens = 0;
};

enum class Windows { kNone, kSome };
// Models without and with a recurrent state.
enum class States { kNone, kSome };
enum class Rules { kNone, kSome };
// A drafter guesses, or the backend predicts.
enum class Guessers { kDrafter, kBackend };

// One run, determined entirely by its seed.
class Simulation : public SchedulerHarness {
 public:
  // One in `poison_one_in` parts of steps gives keys and values that are not finite; 0: none. With
  // Rules::kSome, half of the requests have constraints, and some have penalties. With `guessing`,
  // most requests' tokens are guessed.
  Simulation(uint64_t seed, std::shared_ptr<const Model> model, Windows windows,
             int poison_one_in = 0, Rules rules = Rules::kNone,
             std::optional<Guessing> guessing = std::nullopt, States states = States::kNone,
             Guessers guessers = Guessers::kDrafter)
      : random_(seed), poison_(static_cast<uint32_t>(seed)), rules_(rules) {
    model_ = std::move(model);
    BackendInfo info;
    info.max_seqs = 1 + Below(6);
    info.max_step_tokens = info.max_seqs + Below(20);
    info.block_tokens = 1 + Below(6);
    info.kv_blocks = (24 + Below(120)) / info.block_tokens;
    info.max_in_flight = 1 + Below(2);
    info.prompt_logprobs = true;
    if (rules == Rules::kSome) info.late_masks = Below(2) == 0;
    const int context = 16 + Below(std::min(info.kv_blocks * info.block_tokens - 16, 40) + 1);
    if (windows == Windows::kSome) {
      window_ = 1 + Below(20);
      // From what one sequence needs to more than can be used.
      const auto blocks_for = [&](int tokens) {
        return (tokens + info.block_tokens - 1) / info.block_tokens;
      };
      info.window_blocks = std::min(blocks_for(window_ - 1) + 1, blocks_for(context));
      if (Below(2) == 0) info.window_blocks += Below(info.kv_blocks + 1);
    }
    if (guessing) Guess(*guessing, seed, guessers, info);
    if (states == States::kSome) {
      info.recurrent = true;
      info.state_cells = Below(4) == 0 ? Below(3) : Below(30);
      checkpoint_tokens_ = 1 + Below(20);
    }
    Make(info, context);
    if (predicts_) {
      backend_->predicts = [this](const std::vector<int32_t>& context, int count) {
        return predicts_({.slot = 0, .tokens = context, .count = count});
      };
    }
    shares_ = Below(4) > 0;
    if (poison_one_in > 0) {
      backend_->poisons = [this, poison_one_in](const StepSequence&) {
        return poison_() % static_cast<uint32_t>(poison_one_in) == 0;
      };
    }
    // A request that leaves the queue ranks before all that wait, so no request is passed over
    // forever.
    on_left_queue_ = [this](const std::string& id) {
      if (sinks_[id]->started == 0) return;
      const absl::Time rank = asked_.at(id).rank;
      for (const auto& [other, asked] : asked_) {
        if (other == id || left_queue_.contains(other) || asked.rank >= rank) continue;
        if (sinks_[other]->finished) continue;
        ++passed_;
        EXPECT_TRUE(pending_.contains(other)) << id << " was served before " << other;
      }
    };
  }

  void Run(Encounters& met) {
    const int requests = 5 + Below(25);
    for (int i = 0; i < requests; ++i) {
      Arrive(absl::StrCat("r", i));
      for (int steps = Below(6); steps > 0; --steps) {
        if (Below(3) == 0) PrepareOne();
        AdvanceAndCheck();
      }
      if (Below(6) == 0) CancelOne(absl::StrCat("r", Below(i + 1)));
      if (guesser_ != nullptr && Below(200) == 0) {
        guesser_->fail_with = absl::InternalError("the drafter has failed");
      }
      // Occasionally all requests complete.
      if (Below(12) == 0) RunToEnd();
      if (Below(12) == 0) now_ += absl::Seconds(Below(20));
    }
    while (!pending_.empty()) PrepareOne();
    ASSERT_NO_FATAL_FAILURE(RunToEnd());
    Check(met);
  }

 private:
  struct Asked {
    std::vector<Expected> samples;
    std::vector<int32_t> prompt;
    bool prompt_logprobs = false;
    bool speculate = true;
    absl::Time rank;
    bool cancelled = false;
    absl::Time deadline;
    // Codes of the errors with which the request may end because of its constraint.
    absl::StatusCode refused = absl::StatusCode::kOk;
    absl::StatusCode fails = absl::StatusCode::kOk;
  };

  int Below(int n) { return static_cast<int>(random_() % n); }

  void Guess(Guessing guessing, uint64_t seed, Guessers guessers, BackendInfo& info) {
    info.max_drafts = 1 + Below(16);
    if (Below(2) == 0) fixed_drafts_ = 1 + Below(16);
    texts_ = std::make_shared<KnownTexts>();
    if (guessers == Guessers::kBackend) {
      info.max_predictions = 1 + Below(16);
      predicts_ = GuessFunction(guessing, texts_, model_->spec().vocab, seed);
      drafter_ = std::make_unique<BlockDrafter>(info.max_seqs);
    } else {
      auto guesser = MakeGuesser(guessing, texts_, model_->spec().vocab, seed);
      guesser_ = guesser.get();
      drafter_ = std::move(guesser);
    }
    // From drafts that cost nothing to drafts that cost a step.
    const int slope = Below(4) == 0 ? 1000 : Below(100);
    step_time_ = [slope](int tokens) {
      return absl::Milliseconds(1) + absl::Microseconds(slope) * (tokens - 1);
    };
  }

  void Arrive(const std::string& id) {
    // Only a few prefixes, so that many requests share one.
    std::mt19937 beginning(1 + Below(3));
    std::vector<int32_t> prompt(1 + Below(max_context_ - 2));
    for (int32_t& token : prompt) token = static_cast<int32_t>(beginning() % vocab_);
    for (size_t i = Below(static_cast<int>(prompt.size()) + 1); i < prompt.size(); ++i) {
      prompt[i] = Below(vocab_);
    }
    GenerationRequest request = Request(id, prompt);
    request.sampling.seed = random_();
    request.stop.max_tokens = 1 + Below(30);
    request.stop.min_tokens = Below(request.stop.max_tokens + 1);
    request.stop.ignore_eog = Below(2) == 0;
    for (int s = 0; s < 5; ++s) request.stop.ids.push_back(Below(vocab_));
    request.priority = Below(2 * kMaxPriority + 1) - kMaxPriority;
    request.prefix_cache = shares_ && Below(5) > 0;
    if (Below(5) == 0) request.cache_salt = "tenant";
    if (shares_ && Below(5) == 0) request.samples = 2 + Below(4);
    if (Below(6) == 0) request.prompt_logprobs = 0;
    if (Below(5) == 0) request.deadline = now_ + absl::Milliseconds(1 + Below(60));

    Asked& asked = asked_[id];
    if (rules_ == Rules::kSome && Below(4) == 0) request.sampling.presence_penalty = 1;
    if (rules_ == Rules::kSome && Below(2) == 0) Constrain(request, asked);
    if (request.samples == 1 && Below(5) == 0) Resume(request);
    if (texts_ != nullptr) request.speculate = Below(8) > 0;
    asked.speculate = request.speculate;
    for (int s = 0; s < request.samples; ++s) {
      asked.samples.push_back(Naive(request, s));
      if (texts_ != nullptr) texts_->Add(Whole(request, asked.samples.back()));
    }
    if (request.constraint != nullptr) request.constraint = rules_of_.at(id);
    asked.prompt = std::move(prompt);
    asked.prompt_logprobs = request.prompt_logprobs >= 0;
    asked.rank = now_ - absl::Seconds(5) * request.priority;
    asked.deadline = request.deadline;
    scheduler_->Add(std::move(request), now_);
  }

  static std::vector<int32_t> Whole(const GenerationRequest& request, const Expected& expected) {
    std::vector<int32_t> whole = request.prompt;
    whole.insert(whole.end(), request.resume.begin(), request.resume.end());
    whole.insert(whole.end(), expected.tokens.begin(), expected.tokens.end());
    return whole;
  }

  // Gives the request a rule, which is ready at once or later, or never.
  void Constrain(GenerationRequest& request, Asked& asked) {
    RandomRule::Options options = {.seed = random_(),
                                   .vocab = vocab_,
                                   .end = model_->tokenizer().eos_id(),
                                   .forces = Below(8) > 0};
    const auto whole = PendingRandomRule(options);
    request.constraint = whole;
    if (Below(10) == 0) {
      options.fails_after = Below(10);
      asked.fails = absl::StatusCode::kResourceExhausted;
    }
    const auto pending = PendingRandomRule(options);
    if (Below(8) == 0) asked.refused = absl::StatusCode::kUnimplemented;
    rules_of_[request.id] = pending;
    if (Below(3) == 0) {
      Become(*pending, asked);
    } else {
      pending_.insert(request.id);
    }
  }

  static void Become(PendingForTest& pending, const Asked& asked) {
    pending.Become(asked.refused == absl::StatusCode::kOk
                       ? absl::OkStatus()
                       : absl::Status(asked.refused, "the rule is refused"));
  }

  // One of the constraints that are being prepared becomes ready.
  void PrepareOne() {
    if (pending_.empty()) return;
    const auto chosen = std::next(pending_.begin(), Below(static_cast<int>(pending_.size())));
    const std::string id = pending_.extract(chosen).value();
    Become(*rules_of_.at(id), asked_.at(id));
    scheduler_->OnConstraintReady(id, now_);
  }

  // Resumes the request as if another worker had failed in the middle of it.
  void Resume(GenerationRequest& request) {
    const Expected whole = Naive(request);
    if (whole.tokens.size() < 2) return;
    request.resume = whole.tokens;
    request.resume.resize(1 + Below(static_cast<int>(whole.tokens.size()) - 1));
  }

  void CancelOne(const std::string& id) {
    asked_.at(id).cancelled = true;
    ++cancels_;
    const bool was_removed = removed_.contains(id);
    scheduler_->Cancel(std::span(&id, 1), FinishReason::kCancelled,
                       [&, id, was_removed](int found) {
                         ++released_;
                         EXPECT_EQ(found, was_removed ? 0 : 1);
                         EXPECT_TRUE(removed_.contains(id)) << "notified before it was removed";
                       });
    EXPECT_TRUE(sinks_[id]->finished);
  }

  void AdvanceAndCheck() {
    Advance();
    EXPECT_LE(scheduler_->running(), info_.max_seqs);
    EXPECT_GE(scheduler_->blocks().free(), 0);
    EXPECT_GE(scheduler_->window_blocks().free(), 0);
    for (const auto& [id, asked] : asked_) {
      if (sinks_[id]->finished || asked.deadline > now_) continue;
      // The deadline is noticed when the next step is planned.
      EXPECT_LE(++overdue_[id], info_.max_in_flight + 1) << id;
    }
  }

  void Check(Encounters& met) {
    for (const auto& [id, asked] : asked_) CheckOne(id, asked, met);
    EXPECT_EQ(released_, cancels_);
    EXPECT_EQ(removed_.size(), asked_.size());
    EXPECT_EQ(left_queue_.size(), asked_.size());
    EXPECT_EQ(scheduler_->blocks().free(), info_.kv_blocks) << "blocks leaked";
    EXPECT_EQ(scheduler_->window_blocks().free(), info_.window_blocks) << "blocks leaked";
    EXPECT_EQ(scheduler_->states().held(), 0) << "cells leaked";
    EXPECT_LE(scheduler_->states().named(), info_.state_cells);
    met.parts_after_returns += backend_->parts_after_returns;
    met.starts_after_a_window += backend_->starts_after_a_window;
    EXPECT_EQ(scheduler_->running() + scheduler_->waiting(), 0);
    EXPECT_EQ(scheduler_->awaiting_constraints(), 0);
    met.passed += passed_;
    met.forced_tokens += scheduler_->counts().forced_tokens;
    met.masks_given += backend_->masks_given;
    EXPECT_EQ(scheduler_->counts().finished_requests, static_cast<int64_t>(asked_.size()));
    met.preemptions += scheduler_->counts().preemptions;
    met.cached_tokens += scheduler_->counts().cached_prompt_tokens;
    met.checkpoints += scheduler_->counts().saved_checkpoints;
    met.checkpoint_hits += scheduler_->counts().checkpoint_hits;
    met.checkpoint_tokens += scheduler_->counts().checkpoint_tokens;
    CheckGuesses(met);
    // Without preemptions or turns, every decoding request gets a token in each step. Tokens that
    // are forced come several at once, and take their time to run. With two steps in flight, a
    // sequence whose tokens are guessed misses one.
    if (texts_ != nullptr && info_.max_in_flight > 1) return;
    if (shares_ || rules_ == Rules::kSome || scheduler_->counts().preemptions > 0) return;
    for (const auto& [id, sink] : sinks_) {
      EXPECT_LE(sink->longest_gap, 1) << id;
      ++met.gaps_checked;
    }
  }

  void CheckGuesses(Encounters& met) {
    if (texts_ == nullptr) return;
    const SchedulerCounts& counts = scheduler_->counts();
    int64_t drafts = 0;
    int64_t right = 0;
    for (const auto& [id, asked] : asked_) {
      const FinishedEvent& end = *sinks_[id]->finished;
      drafts += end.draft_tokens;
      right += end.accepted_draft_tokens;
      EXPECT_LE(end.accepted_draft_tokens, end.draft_tokens) << id;
      EXPECT_LE(end.accepted_draft_tokens, end.generated_tokens) << id;
      if (!asked.speculate) {
        EXPECT_EQ(end.draft_tokens, 0) << id;
      }
      if (rules_of_.contains(id)) met.drafts_under_rules += end.draft_tokens;
    }
    EXPECT_EQ(counts.draft_tokens, drafts);
    EXPECT_EQ(counts.accepted_draft_tokens, right);
    // Those of requests that have ended meanwhile do not count.
    EXPECT_LE(drafts, backend_->drafts_seen);
    EXPECT_LE(right, backend_->drafts_right);
    met.drafts += drafts;
    met.right_drafts += right;
    met.predictions_asked += backend_->predictions_asked;
    met.predictions_made += backend_->predictions_made;
    if (guesser_ == nullptr) return;
    if (drafter_failure_.ok()) {
      EXPECT_EQ(guesser_->slots(), 0u) << "the drafter was not told that all have left";
    } else {
      ++met.drafter_failures;
    }
  }

  void CheckOne(const std::string& id, const Asked& asked, Encounters& met) {
    RecordingSink& sink = *sinks_[id];
    ASSERT_TRUE(sink.finished) << id;
    const FinishedEvent& end = *sink.finished;
    const bool complete = end.status.ok() && end.reason != FinishReason::kCancelled;
    int drawn = 0;
    for (size_t i = 0; i < asked.samples.size(); ++i) {
      const Expected& want = asked.samples[i];
      const int sample = static_cast<int>(i);
      const std::vector<int32_t>& got = sample == 0 ? sink.tokens : sink.more_samples[sample];
      drawn += want.drawn;
      ASSERT_LE(got.size(), want.tokens.size()) << id << " sample " << i;
      EXPECT_TRUE(std::equal(got.begin(), got.end(), want.tokens.begin())) << id << " sample " << i;
      if (!complete) continue;
      EXPECT_EQ(got.size(), want.tokens.size()) << id << " sample " << i;
      const SampleEnd first = {.reason = end.reason,
                               .stop_string = {},
                               .stop_token = -1,
                               .generated_tokens = end.generated_tokens};
      const SampleEnd& told = asked.samples.size() == 1 ? first : end.samples.at(i);
      EXPECT_EQ(told.reason, want.reason) << id << " sample " << i;
      EXPECT_EQ(told.generated_tokens, want.drawn) << id << " sample " << i;
    }
    if (complete) {
      ++met.completed;
      EXPECT_EQ(end.generated_tokens, drawn);
      EXPECT_EQ(sink.prompt_logprobs.size(), asked.prompt_logprobs ? asked.prompt.size() - 1 : 0);
    } else if (end.status.ok()) {
      ++met.cancelled;
      // Some samples may have ended by themselves before the request was cancelled.
      EXPECT_TRUE(asked.cancelled) << id;
    } else {
      if (GetErrorDetails(end.status).reason == "NONFINITE_LOGITS") {
        EXPECT_TRUE(backend_->poisons) << id;
        ++met.poisoned;
        return;
      }
      if (asked.refused != absl::StatusCode::kOk && end.status.code() == asked.refused) {
        EXPECT_EQ(sink.started, 0);
        ++met.refused_rules;
        return;
      }
      if (asked.fails != absl::StatusCode::kOk && end.status.code() == asked.fails) {
        ++met.failed_rules;
        return;
      }
      EXPECT_EQ(end.status.code(), absl::StatusCode::kDeadlineExceeded) << end.status;
      EXPECT_LT(asked.deadline, absl::InfiniteFuture()) << id;
      ++(GetErrorDetails(end.status).reason == "DEADLINE_EXCEEDED" ? met.expired : met.unreachable);
    }
    for (size_t i = 0; i < sink.prompt_logprobs.size(); ++i) {
      const auto begin = asked.prompt.begin();
      ASSERT_EQ(sink.prompt_logprobs[i].token, asked.prompt[i + 1]);
      ASSERT_EQ(sink.prompt_logprobs[i].logprob,
                FakeBackend::Logprob({begin, begin + static_cast<int>(i) + 1}));
    }
  }

  std::mt19937 random_;
  // Decides which keys and values are not finite.
  std::mt19937 poison_;
  const Rules rules_;
  // Null if no drafter guesses; null if the backend does not predict; null if no tokens are
  // guessed.
  FunctionDrafter* guesser_ = nullptr;
  FunctionDrafter::Function predicts_;
  std::shared_ptr<KnownTexts> texts_;
  bool shares_ = false;
  std::map<std::string, std::shared_ptr<PendingForTest>> rules_of_;
  // Requests whose constraints are being prepared.
  std::set<std::string> pending_;
  int64_t passed_ = 0;
  std::map<std::string, Asked> asked_;
  int cancels_ = 0;
  int released_ = 0;
  // Number of advances by which a request has outlived its deadline.
  std::map<std::string, int> overdue_;
};

// A sanitizer finds in fewer what it finds.
constexpr int kRuns = testing::kSanitized ? 200 : 3000;

void RunMany(Windows windows) {
  const std::shared_ptr<const Model> model = NanoModel();
  Encounters met;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Simulation(seed, model, windows).Run(met);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(met.completed, 10 * kRuns);
  EXPECT_GT(met.cancelled, kRuns / 2);
  EXPECT_GT(met.expired, kRuns / 4);
  EXPECT_GT(met.unreachable, kRuns / 10);
  EXPECT_GT(met.preemptions, kRuns);
  EXPECT_GT(met.gaps_checked, kRuns / 10);
  if (windows == Windows::kNone) {
    EXPECT_GT(met.cached_tokens, 5 * kRuns);
    return;
  }
  // Half of the runs have window blocks for one sequence and for nothing that others left.
  EXPECT_GT(met.cached_tokens, 3 * kRuns);
  EXPECT_GT(met.parts_after_returns, 10 * kRuns);
  EXPECT_GT(met.starts_after_a_window, kRuns);
}

// The output under a rule does not depend on other requests, on forced tokens, or on whether masks
// follow their steps.
TEST(SchedulerSimulationTest, ThousandsOfRunsWithConstraints) {
  const std::shared_ptr<const Model> model = NanoModel();
  Encounters met;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Windows windows = seed % 3 == 0 ? Windows::kSome : Windows::kNone;
    const int poison_one_in = seed % 5 == 0 ? 60 : 0;
    Simulation(seed, model, windows, poison_one_in, Rules::kSome).Run(met);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(met.completed, 5 * kRuns);
  EXPECT_GT(met.cancelled, kRuns / 2);
  EXPECT_GT(met.preemptions, kRuns / 2);
  EXPECT_GT(met.cached_tokens, 3 * kRuns);
  EXPECT_GT(met.poisoned, kRuns / 10);
  EXPECT_GT(met.refused_rules, kRuns / 4);
  EXPECT_GT(met.failed_rules, kRuns / 10);
  EXPECT_GT(met.passed, kRuns);
  EXPECT_GT(met.forced_tokens, 10 * kRuns);
  EXPECT_GT(met.masks_given, 5 * kRuns);
}

TEST(SchedulerSimulationTest, ThousandsOfRuns) { RunMany(Windows::kNone); }

TEST(SchedulerSimulationTest, ThousandsOfRunsWithWindows) { RunMany(Windows::kSome); }

// Guesses change no token, however many are right, and whatever else happens.
void RunGuesses(Guessing guessing, double least_right, double most_right,
                Guessers guessers = Guessers::kDrafter) {
  const std::shared_ptr<const Model> model = NanoModel();
  Encounters met;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Windows windows = seed % 3 == 0 ? Windows::kSome : Windows::kNone;
    const Rules rules = seed % 2 == 0 ? Rules::kSome : Rules::kNone;
    const int poison_one_in = seed % 5 == 0 ? 60 : 0;
    const States states =
        guessers == Guessers::kBackend && seed % 7 == 0 ? States::kSome : States::kNone;
    Simulation(seed, model, windows, poison_one_in, rules, guessing, states, guessers).Run(met);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(met.completed, 5 * kRuns);
  EXPECT_GT(met.cancelled, kRuns / 2);
  EXPECT_GT(met.preemptions, kRuns / 2);
  EXPECT_GT(met.cached_tokens, 3 * kRuns);
  EXPECT_GT(met.poisoned, kRuns / 20);
  EXPECT_GT(met.forced_tokens, kRuns);
  EXPECT_GT(met.failed_rules, kRuns / 20);
  EXPECT_GT(met.parts_after_returns, kRuns);
  if (guessers == Guessers::kDrafter) {
    EXPECT_GT(met.drafter_failures, kRuns / 50);
  } else {
    EXPECT_GT(met.predictions_made, met.predictions_asked / 2);
    EXPECT_LT(met.predictions_made, met.predictions_asked) << "there was always room";
  }
  EXPECT_GT(met.drafts, 20 * kRuns);
  // A rule forbids most tokens that come by chance.
  EXPECT_GT(met.drafts_under_rules, guessing == Guessing::kRandom ? kRuns / 10 : kRuns);
  EXPECT_GE(static_cast<double>(met.right_drafts), least_right * static_cast<double>(met.drafts));
  EXPECT_LE(static_cast<double>(met.right_drafts), most_right * static_cast<double>(met.drafts));
}

TEST(SchedulerSimulationTest, RandomGuesses) { RunGuesses(Guessing::kRandom, 0, 0.1); }

TEST(SchedulerSimulationTest, RightGuesses) { RunGuesses(Guessing::kRight, 0.7, 1); }

TEST(SchedulerSimulationTest, MixedGuesses) { RunGuesses(Guessing::kMixed, 0.1, 0.9); }

TEST(SchedulerSimulationTest, RightPredictions) {
  RunGuesses(Guessing::kRight, 0.7, 1, Guessers::kBackend);
}

TEST(SchedulerSimulationTest, MixedPredictions) {
  RunGuesses(Guessing::kMixed, 0.1, 0.9, Guessers::kBackend);
}

// Checkpoints of a recurrent state change no token, however few cells there are for them, and
// whatever else happens.
TEST(SchedulerSimulationTest, ThousandsOfRunsWithRecurrentStates) {
  const std::shared_ptr<const Model> model = NanoModel();
  Encounters met;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Windows windows = seed % 7 == 0 ? Windows::kSome : Windows::kNone;
    const Rules rules = seed % 3 == 0 ? Rules::kSome : Rules::kNone;
    const int poison_one_in = seed % 5 == 0 ? 60 : 0;
    std::optional<Guessing> guessing;
    if (seed % 2 == 0) guessing = seed % 4 == 0 ? Guessing::kMixed : Guessing::kRight;
    Simulation(seed, model, windows, poison_one_in, rules, guessing, States::kSome).Run(met);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(met.completed, 5 * kRuns);
  EXPECT_GT(met.cancelled, kRuns / 2);
  EXPECT_GT(met.preemptions, kRuns / 2);
  EXPECT_GT(met.poisoned, kRuns / 20);
  EXPECT_GT(met.forced_tokens, kRuns);
  EXPECT_GT(met.right_drafts, 5 * kRuns);
  EXPECT_GT(met.cached_tokens, 2 * kRuns);
  EXPECT_GT(met.checkpoints, 10 * kRuns);
  EXPECT_GT(met.checkpoint_hits, kRuns);
  EXPECT_GT(met.checkpoint_tokens, met.cached_tokens);
}

// A request that completes gets exactly the right tokens, whatever it shared with others.
TEST(SchedulerSimulationTest, NonFiniteNumbersReachNoOtherRequest) {
  const std::shared_ptr<const Model> model = NanoModel();
  Encounters met;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Windows windows = seed % 2 == 0 ? Windows::kNone : Windows::kSome;
    Simulation(seed, model, windows, /*poison_one_in=*/30).Run(met);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(met.poisoned, kRuns);
  EXPECT_GT(met.completed, kRuns);
  EXPECT_GT(met.cancelled, kRuns / 2);
  EXPECT_GT(met.preemptions, kRuns / 4);
  EXPECT_GT(met.cached_tokens, kRuns);
}

}  // namespace
}  // namespace orcd
