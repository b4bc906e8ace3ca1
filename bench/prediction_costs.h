// Measures what predictions of the model's own block cost a backend's steps.
#ifndef ORCD_BENCH_PREDICTION_COSTS_H_
#define ORCD_BENCH_PREDICTION_COSTS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/backend/backend.h"
#include "runtime/base/error.h"
#include "runtime/sampling/params.h"

namespace orcd {

// Sequences on one backend, which it advances together.
class PredictingStreams {
 public:
  PredictingStreams(Backend& backend, int streams, int vocab)
      : backend_(backend), streams_(streams), vocab_(vocab) {
    params_.temperature = 0;
    const int blocks = backend.info().kv_blocks / streams;
    for (int i = 0; i < streams; ++i) {
      blocks_.emplace_back(blocks);
      std::iota(blocks_.back().begin(), blocks_.back().end(), i * blocks);
    }
  }

  // Positions for which there is room.
  int room() const {
    return static_cast<int>(blocks_.front().size()) * backend_.info().block_tokens;
  }

  absl::Status RunPrompts(int tokens) {
    std::vector<int32_t> prompt(tokens);
    for (int i = 0; i < tokens; ++i) prompt[i] = static_cast<int32_t>(i * 617 % vocab_);
    for (int stream = 0; stream < streams_; ++stream) {
      const int step = backend_.info().max_step_tokens;
      for (int first = 0; first < tokens; first += step) {
        StepSequence seq = Part(stream, first);
        if (first == 0) seq.start_params = &params_;
        if (first == 0) seq.start_history = prompt;
        seq.start_prompt_tokens = tokens;
        seq.tokens = std::span(prompt).subspan(first, std::min(step, tokens - first));
        seq.sample = first + step >= tokens;
        StepBatch batch;
        batch.seqs = {seq};
        ORCD_RETURN_IF_ERROR(Run(batch).status());
      }
    }
    position_ = tokens;
    return absl::OkStatus();
  }

  struct Times {
    double step = 0;
    double predictions = 0;
  };
  // Adds the seconds of one step with so many predictions for each sequence.
  absl::Status Advance(int predictions, Times& times) {
    static constexpr int32_t kFollow[] = {kPreviousSample};
    StepBatch batch;
    for (int stream = 0; stream < streams_; ++stream) {
      StepSequence seq = Part(stream, position_);
      seq.tokens = kFollow;
      seq.sample = true;
      seq.predictions = predictions;
      batch.seqs.push_back(seq);
    }
    ++position_;
    const auto begin = std::chrono::steady_clock::now();
    ORCD_ASSIGN_OR_RETURN(const StepResult result, Run(batch));
    times.step += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    times.predictions += result.prediction_seconds;
    return absl::OkStatus();
  }

 private:
  StepSequence Part(int stream, int position) const {
    StepSequence seq;
    seq.slot = stream;
    seq.start_position = position;
    seq.blocks = blocks_[stream];
    if (backend_.info().window_blocks > 0) seq.window_blocks = seq.blocks;
    return seq;
  }
  absl::StatusOr<StepResult> Run(const StepBatch& batch) {
    ORCD_RETURN_IF_ERROR(backend_.Launch(batch));
    return backend_.Wait();
  }

  Backend& backend_;
  const int streams_;
  const int vocab_;
  SamplingParams params_;
  std::vector<std::vector<int32_t>> blocks_;
  int position_ = 0;
};

// Prints the mean duration of steps with and without predictions, in turns: of `plain`, for which
// no block was loaded, and of `predicting`.
inline absl::Status MeasurePredictions(Backend& plain, Backend& predicting, int streams, int prompt,
                                       int steps, int vocab) {
  constexpr int kCounts[] = {0, 1, 2, 4};
  PredictingStreams without(plain, streams, vocab);
  PredictingStreams with(predicting, streams, vocab);
  const int needed = prompt + steps * static_cast<int>(std::size(kCounts)) + kCounts[3];
  if (std::min(without.room(), with.room()) < needed) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the KV cache holds fewer than ", needed, " tokens a stream"));
  }
  ORCD_RETURN_IF_ERROR(without.RunPrompts(prompt));
  ORCD_RETURN_IF_ERROR(with.RunPrompts(prompt));
  PredictingStreams::Times of_plain;
  PredictingStreams::Times times[std::size(kCounts)];
  for (int step = 0; step < steps; ++step) {
    ORCD_RETURN_IF_ERROR(without.Advance(0, of_plain));
    for (size_t i = 0; i < std::size(kCounts); ++i) {
      ORCD_RETURN_IF_ERROR(with.Advance(kCounts[i], times[i]));
    }
  }
  std::printf("%d streams, no block loaded: %.3f ms a step\n", streams,
              of_plain.step / steps * 1e3);
  for (size_t i = 0; i < std::size(kCounts); ++i) {
    std::printf("%d streams, %d predictions each: %.3f ms a step, of which predictions %.3f ms\n",
                streams, kCounts[i], times[i].step / steps * 1e3,
                times[i].predictions / steps * 1e3);
  }
  return absl::OkStatus();
}

}  // namespace orcd

#endif  // ORCD_BENCH_PREDICTION_COSTS_H_
