// Steps for tests of a whole backend.
#ifndef ORCD_RUNTIME_BACKEND_STEPS_FOR_TEST_H_
#define ORCD_RUNTIME_BACKEND_STEPS_FOR_TEST_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/backend/backend.h"

namespace orcd {

// Tokens that look random and are in any vocabulary of at least 1000.
inline std::vector<int32_t> TestTokens(int count, int seed = 0) {
  std::vector<int32_t> tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = (i * 617 + seed * 331 + 7) % 1000;
  return tokens;
}

inline std::vector<int32_t> BlockRange(int32_t first, int count) {
  std::vector<int32_t> blocks(count);
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

// Keeps the logits that steps report, row after row.
class LogitsTap : public ActivationTap {
 public:
  void OnActivation(TapPoint point, int, std::span<const float> values, int64_t, int64_t) override {
    if (point == TapPoint::kLogits) logits_.insert(logits_.end(), values.begin(), values.end());
  }
  const std::vector<float>& logits() const { return logits_; }

 private:
  std::vector<float> logits_;
};

// Keeps what the head takes.
class HiddenTap : public ActivationTap {
 public:
  void OnActivation(TapPoint point, int, std::span<const float> values, int64_t, int64_t) override {
    if (point == TapPoint::kOutputNorm) hidden.insert(hidden.end(), values.begin(), values.end());
  }
  std::vector<float> hidden;
};

inline const SamplingParams& Greedy() {
  static const SamplingParams params = [] {
    SamplingParams greedy;
    greedy.temperature = 0;
    return greedy;
  }();
  return params;
}

// A sequence's first part, in the given slot; the caller changes fields as it needs.
inline StepSequence StartSequence(int slot, std::span<const int32_t> tokens,
                                  std::span<const int32_t> blocks,
                                  const SamplingParams& params = Greedy()) {
  StepSequence seq;
  seq.slot = slot;
  seq.start_params = &params;
  seq.start_history = tokens;
  seq.start_prompt_tokens = static_cast<int32_t>(tokens.size());
  seq.tokens = tokens;
  seq.blocks = blocks;
  return seq;
}

inline StepSequence ContinueSequence(int slot, int position, std::span<const int32_t> tokens,
                                     std::span<const int32_t> blocks) {
  StepSequence seq;
  seq.slot = slot;
  seq.start_position = position;
  seq.tokens = tokens;
  seq.blocks = blocks;
  return seq;
}

// Gives sequences without window blocks, if the model has windows, those with the ids of their
// other blocks.
inline std::vector<StepSequence> WithWindowBlocks(const Backend& backend,
                                                  std::vector<StepSequence> seqs) {
  if (backend.info().window_blocks == 0) return seqs;
  for (StepSequence& seq : seqs) {
    if (seq.window_blocks.empty()) seq.window_blocks = seq.blocks;
  }
  return seqs;
}

// The window blocks are those of WithWindowBlocks.
inline StepResult RunStep(Backend& backend, std::vector<StepSequence> seqs,
                          ActivationTap* tap = nullptr) {
  StepBatch batch;
  batch.seqs = WithWindowBlocks(backend, std::move(seqs));
  batch.tap = tap;
  const absl::Status launched = backend.Launch(batch);
  EXPECT_TRUE(launched.ok()) << launched;
  if (!launched.ok()) return {};
  auto result = backend.Wait();
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : StepResult();
}

// The tokens that a step drew, in the order of the batch.
inline std::vector<SampledToken> SamplesOf(const StepResult& result) {
  std::vector<SampledToken> samples;
  for (const PartResult& part : result.parts) {
    samples.insert(samples.end(), part.samples.begin(), part.samples.end());
  }
  return samples;
}

// PartResult::finite of each sequence.
inline std::vector<bool> FiniteOf(const StepResult& result) {
  std::vector<bool> finite;
  for (const PartResult& part : result.parts) finite.push_back(part.finite);
  return finite;
}

// Logits after each token of a sequence that runs in steps of `chunk` tokens.
inline std::vector<float> TeacherForce(Backend& backend, std::span<const int32_t> tokens,
                                       std::span<const int32_t> blocks, int chunk) {
  LogitsTap tap;
  for (size_t first = 0; first < tokens.size(); first += chunk) {
    const auto part = tokens.subspan(first, std::min<size_t>(chunk, tokens.size() - first));
    StepSequence seq = ContinueSequence(0, static_cast<int>(first), part, blocks);
    if (first == 0) seq.start_params = &Greedy();
    RunStep(backend, {seq}, &tap);
  }
  return tap.logits();
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_BACKEND_STEPS_FOR_TEST_H_
