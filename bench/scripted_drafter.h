// For benches: drafters that know how often their guesses are to be right, and a backend that
// several engines use one after another.
#ifndef ORCD_BENCH_SCRIPTED_DRAFTER_H_
#define ORCD_BENCH_SCRIPTED_DRAFTER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/backend/backend.h"
#include "runtime/base/error.h"
#include "runtime/engine/drafter.h"
#include "runtime/engine/ngram_drafter.h"

namespace orcd {

// All tokens of each stream, prompt and output, as a run without guesses drew them. Their first
// tokens differ, by which a stream is recognised.
using Scripts = std::vector<std::vector<int32_t>>;

// Knows the tokens and spoils some of them: each with the same probability, which depends on its
// stream and position alone.
class ScriptedDrafter : public Drafter {
 public:
  // `acceptance`: the share of tokens that are not spoiled.
  ScriptedDrafter(std::shared_ptr<const Scripts> scripts, double acceptance, int32_t vocab)
      : scripts_(std::move(scripts)), acceptance_(acceptance), vocab_(vocab) {
    for (size_t i = 0; i < scripts_->size(); ++i) streams_[(*scripts_)[i].front()] = i;
  }

  absl::StatusOr<std::vector<std::vector<int32_t>>> Draft(
      std::span<const DraftRequest> requests) override {
    std::vector<std::vector<int32_t>> guesses(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto stream = streams_.find(requests[i].tokens.front());
      if (stream == streams_.end()) return absl::InternalError("a stream has no script");
      const std::vector<int32_t>& script = (*scripts_)[stream->second];
      const size_t known = requests[i].tokens.size();
      const size_t end = std::min(script.size(), known + static_cast<size_t>(requests[i].count));
      for (size_t p = known; p < end; ++p) {
        const bool spoilt = Uniform(stream->second, p) >= acceptance_;
        guesses[i].push_back(spoilt ? (script[p] + 1) % vocab_ : script[p]);
      }
    }
    return guesses;
  }
  void Leave(int) override {}

 private:
  // In [0, 1), by SplitMix64 of S. Vigna.
  static double Uniform(uint64_t stream, uint64_t position) {
    uint64_t z = (stream << 32) + position;
    for (int round = 0; round < 2; ++round) {
      z += 0x9e3779b97f4a7c15;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
      z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
      z ^= z >> 31;
    }
    return static_cast<double>(z >> 11) * 0x1p-53;
  }

  const std::shared_ptr<const Scripts> scripts_;
  const double acceptance_;
  const int32_t vocab_;
  // By first token.
  absl::flat_hash_map<int32_t, size_t> streams_;
};

// Looks guesses up in a text that stands in for what the streams say, as a model of random weights
// says nothing: a guess is right for a stream exactly where it is right for the text.
class StandInDrafter : public Drafter {
 public:
  // `text`: tokens that are in the place of each script's; at least as many. `slots`: as
  // BackendInfo::max_seqs.
  StandInDrafter(std::shared_ptr<const Scripts> scripts, std::vector<int32_t> text, int slots,
                 int32_t vocab)
      : scripts_(std::move(scripts)), text_(std::move(text)), vocab_(vocab), lookup_(slots) {
    for (size_t i = 0; i < scripts_->size(); ++i) streams_[(*scripts_)[i].front()] = i;
  }

  absl::StatusOr<std::vector<std::vector<int32_t>>> Draft(
      std::span<const DraftRequest> requests) override {
    std::vector<DraftRequest> of_text(requests.begin(), requests.end());
    for (DraftRequest& request : of_text) {
      request.tokens = std::span(text_).first(request.tokens.size());
    }
    ORCD_ASSIGN_OR_RETURN(std::vector<std::vector<int32_t>> guesses, lookup_.Draft(of_text));
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto stream = streams_.find(requests[i].tokens.front());
      if (stream == streams_.end()) return absl::InternalError("a stream has no script");
      const std::vector<int32_t>& script = (*scripts_)[stream->second];
      size_t p = requests[i].tokens.size();
      guesses[i].resize(std::min(guesses[i].size(), script.size() - p));
      for (int32_t& guess : guesses[i]) {
        guess = guess == text_[p] ? script[p] : (script[p] + 1) % vocab_;
        ++p;
      }
    }
    return guesses;
  }
  void Leave(int slot) override { lookup_.Leave(slot); }

 private:
  const std::shared_ptr<const Scripts> scripts_;
  const std::vector<int32_t> text_;
  const int32_t vocab_;
  NgramDrafter lookup_;
  // By first token.
  absl::flat_hash_map<int32_t, size_t> streams_;
};

// An engine owns its backend: this is one that lets go of another.
class LentBackend : public Backend {
 public:
  // `backend` is used by one engine at a time.
  explicit LentBackend(Backend& backend) : backend_(backend) {}

  const BackendInfo& info() const override { return backend_.info(); }
  absl::Status Launch(const StepBatch& batch) override { return backend_.Launch(batch); }
  absl::Status GiveMasks(std::span<const TokenMask> masks) override {
    return backend_.GiveMasks(masks);
  }
  absl::StatusOr<StepResult> Wait() override { return backend_.Wait(); }

 private:
  Backend& backend_;
};

}  // namespace orcd

#endif  // ORCD_BENCH_SCRIPTED_DRAFTER_H_
