// Samples tokens from logits on the GPU: token for token the result of runtime/sampling/sampler.h.
#ifndef ORCD_CUDA_KERNELS_COMMON_SAMPLE_H_
#define ORCD_CUDA_KERNELS_COMMON_SAMPLE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/step.h"
#include "runtime/sampling/params.h"

namespace orcd::cuda {

// Sampling parameters of one row, in the form that the kernel uses.
struct DrawEntry {
  // Index of the row's sequence in StepTables::sequences.
  int32_t sequence;
  int32_t slot;
  // Position of the token that is sampled.
  int32_t position;
  // OctaveScale() of the temperature; 0 means greedy.
  float octave_scale;
  int32_t top_k;
  float typical_p;
  float top_p;
  // SamplingParams::min_p_distance; -infinity means off.
  float min_p_distance;
  // OctaveScale() of the filters' temperature.
  float filter_scale;
  // Nonzero if min_p comes before typical_p and top_p.
  int32_t min_p_first;
  float repetition_penalty;
  float frequency_penalty;
  float presence_penalty;
  int32_t has_penalties;
  // Frequency and presence penalties count the sequence's tokens from this position on; the
  // repetition penalty sees all of them.
  int32_t first_counted;
  // Range of the row in SampleArgs::biases.
  int32_t first_bias;
  int32_t biases;
  // Row of SampleArgs::masks; -1: every token is allowed.
  int32_t mask;
  // Number of top log-probabilities; -1: no log-probabilities.
  int32_t logprobs;
  // Nonzero if log-probabilities are those of the tokens that the mask allows, renormalised.
  int32_t masked_logprobs;
  // Index of the result in SampleArgs::results, and the value of DrawResult::step that marks it as
  // complete.
  int32_t result;
  uint32_t step;
  uint32_t seed_low;
  uint32_t seed_high;
};

struct LogitBias {
  int32_t token;
  float bias;
};

// Result of one row: SampledToken without ownership.
struct DrawResult {
  // DrawEntry::step once all other fields are written; the host polls it.
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
  // [masks, ceil(vocab / 32)], each as TokenMask has it.
  const uint32_t* masks = nullptr;
  // Token ids in the KV blocks, [block][block_tokens].
  const int32_t* block_token_ids = nullptr;
  int block_tokens = 0;
  const int32_t* not_finite = nullptr;  // [slots] nonzero: keys or values were not finite
  const float* logits = nullptr;        // [rows, vocab]
  int vocab = 0;
  int rows = 0;
  DrawResult* results = nullptr;   // [results] in pinned host memory
  int32_t* last_sample = nullptr;  // [slots]
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_SAMPLE_H_
