// Addresses of the intermediate results of layers with experts.
#ifndef ORCD_CUDA_EXPERT_BUFFERS_H_
#define ORCD_CUDA_EXPERT_BUFFERS_H_

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/device_memory.h"
#include "cuda/device_weights.h"
#include "cuda/kernels/common/experts.h"
#include "runtime/backend/expert_load.h"
#include "runtime/model/spec.h"

namespace orcd::cuda {

// Rows of DeviceExperts::router.
constexpr int RouterOutputs(const ExpertsSpec& spec) {
  return spec.count + (spec.shared_ffn > 0 && spec.shared_gated ? 1 : 0);
}

// Null if no layer has experts. Sizes are for the layer that needs most; x and `out` alias each
// other, as do `inputs` and y.
struct ExpertBuffers {
  ExpertBuffers() = default;
  // For steps of up to `tokens` tokens. `rows` has RowBytes, which nothing else uses while a
  // layer's FFN runs, or is null.
  ExpertBuffers(const ModelSpec& spec, const DeviceWeights& weights, int tokens, uint8_t* rows,
                Carver& carver);

  // Bytes of `inputs` and y, and of the gated rows of experts, [MaxExpertRows, ffn].
  static int64_t RowBytes(const ModelSpec& spec, const DeviceWeights& weights, int tokens);
  static int64_t GatedBytes(const ModelSpec& spec, const DeviceWeights& weights, int tokens);

  float* x = nullptr;        // RouterArgs::x
  float* logits = nullptr;   // RouterArgs::logits
  ExpertTables tables = {};  // shared_weights: null if no layer has a gated shared expert apart
  __half* inputs = nullptr;  // Activations [MaxExpertRows, hidden]
  float* y = nullptr;        // [MaxExpertRows, hidden]
  float* out = nullptr;      // CombineExpertsArgs::out
  ExpertLoad* load = nullptr;
  uint64_t* passed = nullptr;  // RouteOneTokenArgs::passed
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_EXPERT_BUFFERS_H_
