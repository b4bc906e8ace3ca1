// Addresses of the intermediate results of recurrent layers.
#ifndef ORCD_CUDA_DELTA_BUFFERS_H_
#define ORCD_CUDA_DELTA_BUFFERS_H_

#include <cstdint>

#include "cuda/device_memory.h"
#include "cuda/in_flight.h"
#include "runtime/model/spec.h"

namespace orcd::cuda {

// Floats that all recurrent layers together keep of a draft (DeltaDrafts::draft_floats).
int64_t DraftFloats(const ModelSpec& spec);

// Null if no layer is recurrent. Sizes are for the layer that needs most.
struct DeltaBuffers {
  DeltaBuffers() = default;
  // For steps of up to `tokens` tokens and `max_drafts` drafts. `rows` has RowBytes, which nothing
  // else uses while a layer's delta net runs, or is null.
  DeltaBuffers(const ModelSpec& spec, int tokens, int max_drafts, uint8_t* rows, Carver& carver);

  // Bytes of all but `drafts`.
  static int64_t RowBytes(const ModelSpec& spec, int tokens);

  // As in DeltaArgs.
  float* convolved = nullptr;
  float* factors = nullptr;
  float* o = nullptr;
  // DeltaDrafts::data of each step in flight.
  float* drafts[kMaxInFlight] = {};

 private:
  void TakeRows(const ModelSpec& spec, int tokens, Carver& carver);
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_DELTA_BUFFERS_H_
