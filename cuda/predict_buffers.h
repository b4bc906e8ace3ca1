// Addresses of the intermediate results of the block that predicts tokens.
#ifndef ORCD_CUDA_PREDICT_BUFFERS_H_
#define ORCD_CUDA_PREDICT_BUFFERS_H_

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/device_memory.h"
#include "cuda/kernels/common/step.h"

namespace orcd::cuda {

// All null if there is no block.
struct PredictBuffers {
  PredictBuffers() = default;
  // For steps of up to `tokens` tokens, a multiple of 8, and `seqs` sequences and slots.
  PredictBuffers(int hidden_size, int tokens, int seqs, Carver& carver);

  float* hidden = nullptr;    // [tokens, hidden], HiddenStates::rows
  float* of_slots = nullptr;  // [slots, hidden]
  __half* pairs = nullptr;    // Activations [tokens, 2 * hidden]
  // The tables of predictions, and the last of them.
  TokenEntry* tokens = nullptr;        // [seqs]
  SequenceEntry* sequences = nullptr;  // [seqs]
  int32_t* predicted = nullptr;        // [seqs]
  // The block's keys and values are no part of a sequence's result: it marks those that are not
  // finite where nobody looks, and the sampler of predictions finds no marks.
  int32_t* not_finite = nullptr;  // [slots]
  int32_t* no_marks = nullptr;    // [seqs], zeros
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_PREDICT_BUFFERS_H_
