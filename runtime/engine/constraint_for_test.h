// Constraints made up for tests, and a pending one that becomes ready when the test says so.
#ifndef ORCD_RUNTIME_ENGINE_CONSTRAINT_FOR_TEST_H_
#define ORCD_RUNTIME_ENGINE_CONSTRAINT_FOR_TEST_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "runtime/sampling/constraint.h"

namespace orcd {

// A rule whose masks, forced runs and end are made up from its seed and the tokens accepted. One
// thread at a time.
class RandomRule : public Constraint {
 public:
  struct Options {
    uint64_t seed = 0;
    int vocab = 0;
    // The end token.
    int32_t end = 0;
    // If false, Forced gives nothing; the masks are the same.
    bool forces = true;
    // status() is an error once this many tokens were accepted; -1: never.
    int fails_after = -1;
  };

  explicit RandomRule(const Options& options) : options_(options) { Restart(); }

  bool NeedsTokens(int ahead) const override { return ahead > 0; }

  TokenMask Mask(int ahead) override {
    EXPECT_EQ(ahead, 0) << "a mask depends on every token before it";
    words_.assign(TokenMask::WordsFor(options_.vocab), 0);
    const auto allow = [this](int32_t token) { words_[token / 32] |= 1u << token % 32; };
    if (!run_.empty()) {
      allow(run_.front());
    } else if (ended_) {
      allow(options_.end);
    } else {
      for (int32_t token = 0; token < options_.vocab; ++token) {
        if (AllowsFreely(token)) allow(token);
      }
    }
    for (int bit = options_.vocab; bit % 32 != 0; ++bit) words_.back() |= 1u << bit % 32;
    return {words_};
  }

  void Accept(int32_t token) override {
    const bool allowed = !run_.empty() ? token == run_.front()
                         : ended_      ? token == options_.end
                                       : AllowsFreely(token);
    if (!allowed) {
      Fail(absl::InvalidArgumentError("the rule does not allow that"));
      return;
    }
    accepted_.push_back(token);
    hash_ = Mix(hash_, static_cast<uint64_t>(token));
    if (!run_.empty()) run_.erase(run_.begin());
    if (run_.empty()) Decide();
    FailIfDue();
  }

  void Rollback(int count) override {
    std::vector<int32_t> kept = accepted_;
    kept.resize(kept.size() - count);
    Restart();
    for (const int32_t token : kept) Accept(token);
  }

  bool Ended() const override { return run_.empty() && ended_; }
  std::span<const int32_t> Forced() override {
    return options_.forces ? std::span<const int32_t>(run_) : std::span<const int32_t>();
  }
  absl::Status status() const override { return status_; }

 private:
  static uint64_t Mix(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ b) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93;
    return x ^ (x >> 32);
  }

  void Restart() {
    accepted_.clear();
    run_.clear();
    hash_ = Mix(options_.seed, 1);
    Decide();
    FailIfDue();
  }

  // Chooses the next state's kind: in a quarter of the states a run, rarely the end alone or also
  // the end.
  void Decide() {
    const uint64_t kind = hash_ % 16;
    ended_ = kind == 4 && accepted_.size() > 2;
    may_end_ = kind == 5;
    const uint64_t length = kind < 4 ? 1 + (hash_ >> 8) % 7 : 0;
    for (uint64_t i = 0; i < length; ++i) run_.push_back(TextToken(Mix(hash_, i + 100)));
  }

  // Any token but the end.
  int32_t TextToken(uint64_t hash) const {
    const auto token = static_cast<int32_t>(hash % options_.vocab);
    return token == options_.end ? (token + 1) % options_.vocab : token;
  }

  bool AllowsFreely(int32_t token) const {
    if (token == options_.end) return may_end_;
    return token == TextToken(hash_ >> 16) ||
           Mix(hash_, static_cast<uint64_t>(token) + 7) % 16 == 0;
  }

  void FailIfDue() {
    if (static_cast<int>(accepted_.size()) != options_.fails_after) return;
    Fail(absl::ResourceExhaustedError("the rule takes too long"));
  }

  void Fail(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

  const Options options_;
  std::vector<int32_t> accepted_;
  uint64_t hash_ = 0;
  std::vector<int32_t> run_;
  bool ended_ = false;
  bool may_end_ = false;
  std::vector<uint32_t> words_;
  absl::Status status_;
};

// A rule that says for each position which tokens may stand there; after the last the end alone.
class ScriptedRule : public Constraint {
 public:
  // Every list has tokens, none of which is `end`. A list of one is forced.
  ScriptedRule(std::vector<std::vector<int32_t>> script, int vocab, int32_t end)
      : script_(std::move(script)), vocab_(vocab), end_(end) {}

  bool NeedsTokens(int) const override { return false; }
  TokenMask Mask(int ahead) override {
    const size_t position = accepted_ + static_cast<size_t>(ahead);
    std::vector<int32_t> allowed = {end_};
    if (position < script_.size()) allowed = script_[position];
    words_.assign(TokenMask::WordsFor(vocab_), 0);
    for (const int32_t token : allowed) words_[token / 32] |= 1u << token % 32;
    for (int bit = vocab_; bit % 32 != 0; ++bit) words_.back() |= 1u << bit % 32;
    return {words_};
  }
  void Accept(int32_t token) override {
    const bool allowed = accepted_ < script_.size()
                             ? std::ranges::count(script_[accepted_], token) > 0
                             : token == end_;
    if (!allowed) status_ = absl::InvalidArgumentError("the script has other tokens there");
    ++accepted_;
  }
  void Rollback(int count) override { accepted_ -= count; }
  bool Ended() const override { return accepted_ >= script_.size(); }
  std::span<const int32_t> Forced() override {
    forced_.clear();
    for (size_t i = accepted_; i < script_.size() && script_[i].size() == 1; ++i) {
      forced_.push_back(script_[i][0]);
    }
    return forced_;
  }
  absl::Status status() const override { return status_; }

 private:
  const std::vector<std::vector<int32_t>> script_;
  const int vocab_;
  const int32_t end_;
  size_t accepted_ = 0;
  std::vector<uint32_t> words_;
  std::vector<int32_t> forced_;
  absl::Status status_;
};

// Any thread may call.
class PendingForTest : public PendingConstraint {
 public:
  explicit PendingForTest(std::function<std::unique_ptr<Constraint>()> make)
      : make_(std::move(make)) {}

  // Ready from now on, if `status` is an error without a constraint.
  void Become(const absl::Status& status = absl::OkStatus()) {
    std::function<void()> ready;
    {
      std::lock_guard lock(mutex_);
      status_ = status;
      ready = std::exchange(on_ready_, nullptr);
    }
    if (ready) ready();
  }

  void OnReady(std::function<void()> ready) override {
    {
      std::lock_guard lock(mutex_);
      if (!status_) {
        on_ready_ = std::move(ready);
        return;
      }
    }
    ready();
  }
  bool ready() const override {
    std::lock_guard lock(mutex_);
    return status_.has_value();
  }
  absl::Status status() const override {
    std::lock_guard lock(mutex_);
    return *status_;
  }
  std::unique_ptr<Constraint> Make() override { return make_(); }

 private:
  const std::function<std::unique_ptr<Constraint>()> make_;
  mutable std::mutex mutex_;
  std::optional<absl::Status> status_;
  std::function<void()> on_ready_;
};

inline std::shared_ptr<PendingForTest> PendingRandomRule(const RandomRule::Options& options) {
  return std::make_shared<PendingForTest>(
      [options] { return std::make_unique<RandomRule>(options); });
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_CONSTRAINT_FOR_TEST_H_
