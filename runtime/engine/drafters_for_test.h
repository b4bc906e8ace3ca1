// Drafters made up for tests, which check that they are asked as the interface says.
#ifndef ORCD_RUNTIME_ENGINE_DRAFTERS_FOR_TEST_H_
#define ORCD_RUNTIME_ENGINE_DRAFTERS_FOR_TEST_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "runtime/engine/drafter.h"

namespace orcd {

// Guesses what a function says, which may give too many tokens.
class FunctionDrafter : public Drafter {
 public:
  using Function = std::function<std::vector<int32_t>(const DraftRequest& request)>;

  explicit FunctionDrafter(Function guess) : guess_(std::move(guess)) {}

  absl::StatusOr<std::vector<std::vector<int32_t>>> Draft(
      std::span<const DraftRequest> requests) override {
    EXPECT_FALSE(requests.empty());
    EXPECT_FALSE(failed_) << "asked after a failure";
    ++calls;
    if (!fail_with.ok()) {
      failed_ = true;
      return fail_with;
    }
    std::set<int> slots;
    std::vector<std::vector<int32_t>> guesses;
    for (const DraftRequest& request : requests) {
      EXPECT_TRUE(slots.insert(request.slot).second) << "slot " << request.slot << " twice";
      EXPECT_GE(request.count, 1);
      EXPECT_FALSE(request.tokens.empty());
      std::vector<int32_t>& before = known_[request.slot];
      EXPECT_LE(before.size(), request.tokens.size());
      EXPECT_TRUE(std::equal(before.begin(), before.end(), request.tokens.begin()))
          << "other tokens in slot " << request.slot;
      before.assign(request.tokens.begin(), request.tokens.end());
      asked += request.count;
      guesses.push_back(guess_(request));
    }
    return guesses;
  }

  void Leave(int slot) override {
    EXPECT_FALSE(failed_) << "told after a failure";
    known_.erase(slot);
  }

  // Number of slots whose sequences have not left.
  size_t slots() const { return known_.size(); }

  absl::Status fail_with;
  int calls = 0;
  int64_t asked = 0;

 private:
  const Function guess_;
  // The tokens of each slot's last request.
  std::map<int, std::vector<int32_t>> known_;
  bool failed_ = false;
};

// Knows some texts, and goes on as the one does that begins with a sequence's tokens. Any thread
// may add texts.
class KnownTexts {
 public:
  void Add(std::vector<int32_t> text) {
    std::lock_guard lock(mutex_);
    texts_.push_back(std::move(text));
  }

  std::vector<int32_t> GoOn(std::span<const int32_t> tokens, int count) const {
    std::lock_guard lock(mutex_);
    for (const std::vector<int32_t>& text : texts_) {
      if (text.size() <= tokens.size()) continue;
      if (!std::equal(tokens.begin(), tokens.end(), text.begin())) continue;
      const auto begin = text.begin() + static_cast<int64_t>(tokens.size());
      const auto left = text.end() - begin;
      return {begin, begin + std::min<int64_t>(count, left)};
    }
    return {};
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::vector<int32_t>> texts_;
};

// Ways to guess.
enum class Guessing {
  // Tokens by chance.
  kRandom,
  // The tokens that come, as far as they are known.
  kRight,
  // The same with a wrong token here and there, too few tokens, too many, or none.
  kMixed,
};

inline FunctionDrafter::Function GuessFunction(Guessing guessing,
                                               std::shared_ptr<const KnownTexts> texts, int vocab,
                                               uint64_t seed) {
  auto random = std::make_shared<std::mt19937>(static_cast<uint32_t>(seed));
  return [guessing, texts = std::move(texts), random, vocab](const DraftRequest& request) {
    const auto below = [&](int n) { return static_cast<int>((*random)() % n); };
    std::vector<int32_t> guess;
    if (guessing != Guessing::kRandom) guess = texts->GoOn(request.tokens, request.count);
    if (guessing == Guessing::kRight) return guess;
    if (guessing == Guessing::kMixed && below(8) == 0) guess.clear();
    // Also ids that no vocabulary has.
    const int size = below(4) == 0 ? below(request.count + 4) : request.count;
    const int known = static_cast<int>(guess.size());
    guess.resize(size);
    for (int i = 0; i < size; ++i) {
      const bool wrong = i >= known || below(6) == 0;
      if (wrong) guess[i] = below(40) == 0 ? below(3) * vocab - 1 : below(vocab);
    }
    return guess;
  };
}

inline std::unique_ptr<FunctionDrafter> MakeGuesser(Guessing guessing,
                                                    std::shared_ptr<const KnownTexts> texts,
                                                    int vocab, uint64_t seed) {
  return std::make_unique<FunctionDrafter>(GuessFunction(guessing, std::move(texts), vocab, seed));
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_DRAFTERS_FOR_TEST_H_
