#include "runtime/constraint/compile_pool.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/constraint/constraint_errors.h"
#include "runtime/constraint/rule_error.h"
#include "runtime/text/small_vocabulary_for_test.h"
#include "testing/event.h"
#include "testing/eventually.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kEnd = 256;

// Rules that are refused, and their reasons.
struct RefusedRule {
  const char* text;
  const char* reason;
};
constexpr RefusedRule kRefused[] = {{"bad", "CONSTRAINT_UNSUPPORTED"},
                                    {"unreadable", "CONSTRAINT_INVALID"},
                                    {"impossible", "CONSTRAINT_UNSATISFIABLE"},
                                    {"vast", "CONSTRAINT_TOO_LARGE"}};

// Allows everything.
class Anything final : public Constraint {
 public:
  explicit Anything(std::shared_ptr<const void> held) : held_(std::move(held)) {}
  bool NeedsTokens(int) const override { return false; }
  TokenMask Mask(int) override { return {}; }
  void Accept(int32_t) override {}
  void Rollback(int) override {}
  bool Ended() const override { return false; }
  std::span<const int32_t> Forced() override { return {}; }
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  const std::shared_ptr<const void> held_;
};

class AnythingRule final : public CompiledRule {
 public:
  AnythingRule(size_t bytes, std::shared_ptr<const std::atomic<bool>> fails,
               std::function<void()> on_free)
      : bytes_(bytes), fails_(std::move(fails)), on_free_(std::move(on_free)) {}
  ~AnythingRule() override {
    if (on_free_) on_free_();
  }
  size_t bytes() const override { return bytes_; }
  absl::Status refusal() const override {
    return *fails_ ? RuleTooLarge("f", "failed too often") : absl::OkStatus();
  }
  std::unique_ptr<Constraint> Make(std::shared_ptr<const void> held) const override {
    return std::make_unique<Anything>(std::move(held));
  }

 private:
  const size_t bytes_;
  const std::shared_ptr<const std::atomic<bool>> fails_;
  const std::function<void()> on_free_;
};

class TimesObserver final : public ConstraintObserver {
 public:
  void OnCompiled(absl::Duration took) override {
    ++compiled;
    EXPECT_GE(took, absl::ZeroDuration());
  }
  void OnMask(absl::Duration) override {}

  std::atomic<int> compiled = 0;
};

class CompilePoolTest : public ::testing::Test {
 protected:
  CompilePoolTest() {
    EXPECT_EQ(vocabulary_.Add("<end>", TokenType::kControl), kEnd);
    Vocabulary view = vocabulary_.View();
    view.eos_id = kEnd;
    auto tokenizer = Tokenizer::Create(view);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    limits_.threads = 1;
  }
  ~CompilePoolTest() override {
    gate_.Notify();
    free_gate_.Notify();
    pool_ = nullptr;
  }

  void Start() {
    pool_ = std::make_unique<CompilePool>(
        *tokenizer_, limits_, observer_,
        [this](const ConstraintSpec& spec) -> absl::StatusOr<std::shared_ptr<const CompiledRule>> {
          const std::string& text = std::get<RegexRule>(spec.rule).expression;
          {
            std::lock_guard lock(mutex_);
            compiled_.push_back(text);
          }
          if (text.starts_with("block")) {
            blocked_.Notify();
            EXPECT_TRUE(gate_.WaitFor(absl::Seconds(60)));
          }
          if (text.ends_with("full")) return ConstraintLimitReached("constraints:memory", "full");
          for (const auto& [refused, reason] : kRefused) {
            if (text == refused) {
              return MakeError(absl::StatusCode::kInvalidArgument, text, {.reason = reason});
            }
          }
          if (text == "slow") {
            const absl::Time end = absl::Now() + absl::Milliseconds(100);
            while (absl::Now() < end) {
            }
          }
          std::function<void()> on_free;
          if (text.ends_with("freed slowly")) {
            on_free = [this] {
              freeing_.Notify();
              EXPECT_TRUE(free_gate_.WaitFor(absl::Seconds(60)));
            };
          }
          return std::make_shared<AnythingRule>(rule_bytes_, fails_, std::move(on_free));
        });
  }
  static ConstraintSpec Regex(std::string text) {
    return {.rule = RegexRule{std::move(text)}, .start = {}};
  }
  std::shared_ptr<PendingConstraint> Compile(const ConstraintSpec& spec, int samples = 1) {
    auto pending = pool_->Compile(spec, samples);
    EXPECT_TRUE(pending.ok()) << pending.status();
    return pending.ok() ? *std::move(pending) : nullptr;
  }
  std::shared_ptr<PendingConstraint> CompileNow(const ConstraintSpec& spec, int samples = 1) {
    auto pending = Compile(spec, samples);
    Event ready;
    pending->OnReady([&] { ready.Notify(); });
    EXPECT_TRUE(ready.WaitFor(absl::Seconds(20)));
    EXPECT_TRUE(pending->ready());
    return pending;
  }
  // Waits until the only thread is busy with a rule.
  std::shared_ptr<PendingConstraint> Block() {
    auto pending = Compile(Regex("block"));
    EXPECT_TRUE(blocked_.WaitFor(absl::Seconds(20)));
    return pending;
  }
  std::vector<std::string> compiled() {
    std::lock_guard lock(mutex_);
    return compiled_;
  }

  SmallVocabulary vocabulary_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  ConstraintLimits limits_;
  size_t rule_bytes_ = 1000;
  const std::shared_ptr<std::atomic<bool>> fails_ = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<TimesObserver> observer_ = std::make_shared<TimesObserver>();
  Event blocked_;
  Event gate_;
  Event freeing_;
  Event free_gate_;
  std::mutex mutex_;
  std::vector<std::string> compiled_;
  std::unique_ptr<CompilePool> pool_;
};

TEST_F(CompilePoolTest, CompilesOnceAndKeeps) {
  Start();
  for (int i = 0; i < 3; ++i) {
    const auto pending = CompileNow(Regex("a"));
    EXPECT_TRUE(pending->status().ok()) << pending->status();
    EXPECT_NE(pending->Make(), nullptr);
  }
  EXPECT_THAT(compiled(), ElementsAre("a"));
  EXPECT_EQ(pool_->stats().compiled, 1);
  EXPECT_EQ(pool_->stats().cache_hits, 2);
  EXPECT_GE(pool_->stats().cache_bytes, 1000u);
  EXPECT_EQ(observer_->compiled, 1);
}

TEST_F(CompilePoolTest, CompilesRulesInFlightOnce) {
  Start();
  const auto blocking = Block();
  const auto first = Compile(Regex("a"));
  const auto second = Compile(Regex("a"));
  const auto third = Compile(Regex("block"));
  EXPECT_FALSE(first->ready() || second->ready() || third->ready());
  gate_.Notify();
  EXPECT_TRUE(Eventually([&] { return first->ready() && second->ready() && third->ready(); }));
  EXPECT_THAT(compiled(), ElementsAre("block", "a"));
}

TEST_F(CompilePoolTest, DoesNotBeginWhatNobodyWaitsFor) {
  Start();
  const auto blocking = Block();
  auto dropped = Compile(Regex("dropped"));
  auto shared = Compile(Regex("shared"));
  const auto kept = Compile(Regex("shared"));
  bool called = false;
  dropped->OnReady([&] { called = true; });
  dropped = nullptr;
  shared = nullptr;
  auto again = Compile(Regex("again"));
  again = nullptr;
  again = Compile(Regex("again"));
  gate_.Notify();
  EXPECT_TRUE(Eventually([&] { return kept->ready() && again->ready(); }));
  EXPECT_THAT(compiled(), ElementsAre("block", "shared", "again"));
  EXPECT_FALSE(called);
}

TEST_F(CompilePoolTest, BoundsTheQueue) {
  limits_.max_waiting = 2;
  Start();
  const auto blocking = Block();
  auto a = Compile(Regex("a"));
  const auto b = Compile(Regex("b"));
  const auto refused = pool_->Compile(Regex("c"), 1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(refused.status()).reason, "CONSTRAINT_LIMIT");
  EXPECT_EQ(GetErrorDetails(refused.status()).subject, "constraints:waiting");
  EXPECT_EQ(pool_->stats().refused_busy, 1);
  EXPECT_TRUE(pool_->Compile(Regex("a"), 1).ok()) << "it waits already";
  a = nullptr;
  EXPECT_TRUE(pool_->Compile(Regex("c"), 1).ok()) << "nobody waits for a any longer";
}

TEST_F(CompilePoolTest, BoundsTheLive) {
  limits_.max_live = 4;
  Start();
  auto pending = CompileNow(Regex("a"), 3);
  EXPECT_EQ(pool_->stats().live, 3);
  const auto refused = pool_->Compile(Regex("a"), 2);
  EXPECT_EQ(GetErrorDetails(refused.status()).reason, "CONSTRAINT_LIMIT");
  EXPECT_EQ(GetErrorDetails(refused.status()).subject, "constraints:live");
  std::vector<std::unique_ptr<Constraint>> constraints;
  for (int i = 0; i < 3; ++i) constraints.push_back(pending->Make());
  EXPECT_EQ(pool_->stats().live, 3) << "they were counted before";
  constraints.push_back(pending->Make());
  EXPECT_EQ(pool_->stats().live, 4);
  constraints.pop_back();
  pending = nullptr;
  EXPECT_EQ(pool_->stats().live, 3);
  pool_ = nullptr;
  constraints.clear();
}

TEST_F(CompilePoolTest, RemembersRefusals) {
  Start();
  const auto pending = CompileNow(Regex("bad"), 2);
  EXPECT_EQ(pending->status().message(), "bad");
  const auto refused = pool_->Compile(Regex("bad"), 1);
  EXPECT_EQ(refused.status(), pending->status()) << "at once";
  EXPECT_THAT(compiled(), ElementsAre("bad"));
  EXPECT_EQ(pool_->stats().refused_unsupported, 2);
  EXPECT_EQ(pool_->stats().live, 2) << "of the request that still holds its refusal";
}

TEST_F(CompilePoolTest, CountsRefusalsByReason) {
  Start();
  for (const auto& [text, reason] : kRefused) {
    EXPECT_EQ(GetErrorDetails(CompileNow(Regex(text))->status()).reason, reason);
  }
  EXPECT_EQ(pool_->stats().refused_unsupported, 1);
  EXPECT_EQ(pool_->stats().refused_invalid, 1);
  EXPECT_EQ(pool_->stats().refused_unsatisfiable, 1);
  EXPECT_EQ(pool_->stats().refused_too_large, 1);
  EXPECT_EQ(pool_->stats().refused_busy, 0);
}

TEST_F(CompilePoolTest, ForgetsWhatIsNoPropertyOfTheRule) {
  Start();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(CompileNow(Regex("full"))->status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_THAT(compiled(), ElementsAre("full", "full"));
  EXPECT_EQ(pool_->stats().refused_busy, 2);
}

TEST_F(CompilePoolTest, RefusesARuleThatFailedInUse) {
  Start();
  const auto before = CompileNow(Regex("a"));
  *fails_ = true;
  const auto refused = pool_->Compile(Regex("a"), 1);
  EXPECT_EQ(GetErrorDetails(refused.status()).reason, "CONSTRAINT_TOO_LARGE");
  EXPECT_EQ(pool_->stats().refused_too_large, 1);
  EXPECT_NE(before->Make(), nullptr) << "its request goes on";
  EXPECT_THAT(compiled(), ElementsAre("a"));
}

// Without progress after 50 ms.
TEST_F(CompilePoolTest, GivesUpWhatDoesNotEnd) {
  limits_.compile_time = absl::Milliseconds(10);
  Start();
  const auto stuck = CompileNow(Regex("block"), 2);
  EXPECT_EQ(stuck->status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(stuck->status()).reason, "CONSTRAINT_TOO_LARGE");
  EXPECT_THAT(std::string(stuck->status().message()), HasSubstr("did not compile in 50ms"));
  EXPECT_EQ(pool_->Compile(Regex("block"), 1).status(), stuck->status()) << "it is remembered";
  EXPECT_TRUE(CompileNow(Regex("a"))->status().ok()) << "on another thread";
  gate_.Notify();
  EXPECT_TRUE(Eventually([&] { return pool_->stats().compiled == 2; }));
  EXPECT_TRUE(CompileNow(Regex("block"))->status().ok()) << "it took no time of the processor";
  EXPECT_THAT(compiled(), ElementsAre("block", "a"));
}

TEST_F(CompilePoolTest, ForgetsAGivenUpRuleThatEndsInNoPropertyOfIt) {
  limits_.compile_time = absl::Milliseconds(10);
  Start();
  EXPECT_FALSE(CompileNow(Regex("block, full"))->status().ok());
  gate_.Notify();
  EXPECT_TRUE(Eventually([&] { return pool_->stats().compiled == 1; }));
  EXPECT_EQ(CompileNow(Regex("block, full"))->status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(compiled(), ElementsAre("block, full", "block, full"));
}

TEST_F(CompilePoolTest, WaitsForNoMemoryToBeFreed) {
  limits_.compile_time = absl::Milliseconds(10);
  limits_.cache_bytes = 0;
  Start();
  CompileNow(Regex("block, freed slowly"));
  gate_.Notify();
  EXPECT_TRUE(freeing_.WaitFor(absl::Seconds(20)));
  // Its compilation wakes up the thread that removes the other one.
  EXPECT_TRUE(CompileNow(Regex("a"))->status().ok());
  Event counted;
  std::thread counting([&] {
    for (int i = 0; i < 20; ++i) {
      pool_->stats();
      absl::SleepFor(absl::Milliseconds(10));
    }
    counted.Notify();
  });
  EXPECT_TRUE(counted.WaitFor(absl::Seconds(10)));
  free_gate_.Notify();
  counting.join();
}

TEST_F(CompilePoolTest, SaysThatNoThreadIsLeft) {
  limits_.compile_time = absl::Milliseconds(10);
  Start();
  const auto expect_busy = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(GetErrorDetails(status).reason, "CONSTRAINT_LIMIT");
    EXPECT_EQ(GetErrorDetails(status).subject, "constraints:threads");
  };
  std::vector<std::shared_ptr<PendingConstraint>> stuck;
  for (int i = 0; i < CompilePool::kMostReplaced; ++i) {
    stuck.push_back(CompileNow(Regex(absl::StrCat("block", i))));
    EXPECT_EQ(GetErrorDetails(stuck.back()->status()).reason, "CONSTRAINT_TOO_LARGE");
  }
  EXPECT_TRUE(CompileNow(Regex("a"))->status().ok()) << "on the last thread";
  stuck.push_back(Compile(Regex("block of the last thread")));
  // It waits until the thread is given up, or comes after that.
  const auto late = pool_->Compile(Regex("late"), 1);
  if (late.ok()) {
    EXPECT_TRUE(Eventually([&] { return (*late)->ready(); }));
  }
  expect_busy(late.ok() ? (*late)->status() : late.status());
  EXPECT_TRUE(Eventually([&] { return stuck.back()->ready(); }));
  expect_busy(pool_->Compile(Regex("b"), 1).status());
  EXPECT_TRUE(pool_->Compile(Regex("a"), 1).ok()) << "it is kept";

  gate_.Notify();
  EXPECT_TRUE(Eventually([&] { return pool_->stats().compiled == 5; }));
  EXPECT_TRUE(CompileNow(Regex("b"))->status().ok()) << "a thread came back";
}

TEST_F(CompilePoolTest, RefusesWhatTakesTooLong) {
  limits_.compile_time = absl::Milliseconds(20);
  Start();
  EXPECT_TRUE(CompileNow(Regex("a"))->status().ok());
  const auto pending = CompileNow(Regex("slow"));
  EXPECT_EQ(pending->status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(pending->status()).reason, "CONSTRAINT_TOO_LARGE");
  EXPECT_FALSE(pool_->Compile(Regex("slow"), 1).ok());
  EXPECT_THAT(compiled(), ElementsAre("a", "slow"));
}

TEST_F(CompilePoolTest, RefusesLongTextsBeforeTheyWait) {
  limits_.max_bytes = 10;
  Start();
  const auto refused = pool_->Compile(Regex("12345678901"), 1);
  EXPECT_EQ(GetErrorDetails(refused.status()).reason, "CONSTRAINT_TOO_LARGE");
  EXPECT_EQ(pool_->stats().refused_too_large, 1);
  EXPECT_EQ(pool_->stats().live, 0);
  EXPECT_TRUE(pool_->Compile(Regex("1234567890"), 1).ok());
}

TEST_F(CompilePoolTest, StartsAfterAToken) {
  Start();
  ConstraintSpec spec = Regex("a");
  for (const int32_t token : {-1, kEnd, kEnd + 1}) {
    spec.start = StartAfterToken{token};
    const auto refused = pool_->Compile(spec, 1);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(GetErrorDetails(refused.status()).field, "constraint.after_token");
    EXPECT_THAT(refused.status().message(), HasSubstr(absl::StrCat(token)));
  }
  for (const int32_t token : {7, 8}) {
    spec.start = StartAfterToken{token};
    const auto constraint = CompileNow(spec)->Make();
    EXPECT_FALSE(constraint->Mask(0).Allows(kEnd));
    constraint->Accept(15 - token);
    EXPECT_FALSE(constraint->Mask(0).Allows(kEnd)) << "another token does not begin the rule";
    constraint->Accept(token);
    EXPECT_TRUE(constraint->Mask(0).Allows(kEnd));
  }
  EXPECT_THAT(compiled(), ElementsAre("a")) << "the rule is the same for both";
}

TEST_F(CompilePoolTest, KeepsItsMemoryFlat) {
  limits_.cache_bytes = 1 << 20;
  rule_bytes_ = 10'000;
  Start();
  for (int i = 0; i < 500; ++i) {
    CompileNow(Regex(absl::StrCat("a", i)));
    ASSERT_LE(pool_->stats().cache_bytes, size_t{1} << 20);
  }
  EXPECT_GT(pool_->stats().cache_bytes, size_t{1} << 19);
  EXPECT_EQ(pool_->stats().live, 0);
}

TEST_F(CompilePoolTest, EndsWhatWaitsWhenItEnds) {
  Start();
  const auto blocking = Block();
  const auto waiting = Compile(Regex("a"));
  Event ready;
  waiting->OnReady([&] { ready.Notify(); });
  std::thread ending([&] { pool_ = nullptr; });
  gate_.Notify();
  ending.join();
  EXPECT_TRUE(blocking->ready());
  EXPECT_TRUE(blocking->status().ok());
  EXPECT_NE(blocking->Make(), nullptr) << "it outlives the pool";
  EXPECT_TRUE(ready.notified());
  // The thread may have taken it before it was told to end.
  if (!waiting->status().ok()) {
    EXPECT_EQ(GetErrorDetails(waiting->status()).reason, "MODEL_UNLOADED");
  }
}

TEST_F(CompilePoolTest, EndsWithoutACompilationThatDoesNotEnd) {
  Start();
  const auto blocking = Block();
  const absl::Time begin = absl::Now();
  pool_ = nullptr;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  EXPECT_FALSE(blocking->ready());
  Event ready;
  blocking->OnReady([&] { ready.Notify(); });
  gate_.Notify();
  EXPECT_TRUE(ready.WaitFor(absl::Seconds(20)));
  EXPECT_TRUE(blocking->status().ok());
}

TEST_F(CompilePoolTest, ServesManyThreads) {
  limits_.threads = 3;
  limits_.cache_bytes = 40'000;
  Start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        auto pending = pool_->Compile(Regex(absl::StrCat("a", (i * 7 + t) % 30)), 1);
        ASSERT_TRUE(pending.ok()) << pending.status();
        if (i % 3 == 0) continue;
        Event ready;
        (*pending)->OnReady([&] { ready.Notify(); });
        ASSERT_TRUE(ready.WaitFor(absl::Seconds(20)));
        const auto constraint = (*pending)->Make();
        constraint->Accept(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([&] { return pool_->stats().live == 0; }));
}

}  // namespace
}  // namespace orcd
