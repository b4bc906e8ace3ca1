// Draws tokens from logits on the GPU: what runtime/sampling/sampler.h says, token for token.
#ifndef ORCD_CUDA_KERNELS_SAMPLE_H_
#define ORCD_CUDA_KERNELS_SAMPLE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/step.h"
#include "runtime/sampling/params.h"

namespace orcd::cuda {

// Largest vocabulary: a row of logits is held in the shared memory of eight multiprocessors.
inline constexpr int kMaxSampledVocab = 8 * 36000;

// How one row's token is drawn; sampling parameters as the kernel uses them.
struct DrawEntry {
  // Of the row's sequence, in StepTables::sequences.
  int32_t sequence;
  int32_t slot;
  // Index of the token that is drawn.
  int32_t position;
  // kOctaveScale of the temperature; 0: greedy.
  float octave_scale;
  int32_t top_k;
  float typical_p;
  float top_p;
  // SamplingParams::min_p_distance; -infinity: off.
  float min_p_distance;
  // kOctaveScale of the filters' temperature.
  float filter_scale;
  // min_p comes before typical_p and top_p.
  int32_t min_p_first;
  float repetition_penalty;
  float frequency_penalty;
  float presence_penalty;
  int32_t has_penalties;
  // Frequency and presence penalties count the sequence's tokens from this position on; the
  // repetition penalty sees all of them.
  int32_t first_counted;
  // In SampleArgs::biases and ::forbidden.
  int32_t first_bias;
  int32_t biases;
  int32_t first_forbidden;
  int32_t forbidden;
  // -1: none.
  int32_t logprobs;
  // Where the result goes in SampleArgs::results, and what tells that it is complete.
  int32_t result;
  uint32_t step;
  uint32_t seed_low;
  uint32_t seed_high;
};

struct LogitBias {
  int32_t token;
  float bias;
};

// What a draw gave; SampledToken without ownership.
struct DrawResult {
  // DrawEntry::step once all else is written: the host watches it.
  uint32_t step;
  int32_t token;
  int32_t finite;
  float logprob;
  int32_t top_count;
  int32_t top_tokens[kMaxTopLogprobs];
  float top_logprobs[kMaxTopLogprobs];
};

struct SampleArgs {
  StepTables step;
  const DrawEntry* draws = nullptr;  // [rows]
  const LogitBias* biases = nullptr;
  const int32_t* forbidden = nullptr;
  // The tokens that stand in the KV blocks, [block][block_tokens].
  const int32_t* block_token_ids = nullptr;
  int block_tokens = 0;
  const int32_t* not_finite = nullptr;  // [slots] whether a sequence's keys or values were not
  const float* logits = nullptr;        // [rows, vocab]
  int vocab = 0;
  int rows = 0;
  DrawResult* results = nullptr;   // in host memory
  int32_t* last_sample = nullptr;  // [slots]
};

cudaError_t LaunchSample(const SampleArgs& args, cudaStream_t stream);

// Raises the kernel's limits; once a device.
cudaError_t PrepareSampleKernel(int vocab);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SAMPLE_H_
