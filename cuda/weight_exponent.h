// How far a matrix's weights are scaled down where kernels multiply with them.
#ifndef ORCD_CUDA_WEIGHT_EXPONENT_H_
#define ORCD_CUDA_WEIGHT_EXPONENT_H_

#include <cstdint>

#include "runtime/gguf/block_formats.h"

namespace orcd::cuda {

// TiledMatrix::exponent of a matrix that has `bytes` bytes of blocks at `blocks`: 0 where the type
// has no super-blocks, else the least that keeps d * scale * 2^(24 - exponent) and
// dmin * 2^(14 - exponent) within F16. Of several parts of a matrix, the largest.
int WeightExponent(TensorType type, const uint8_t* blocks, int64_t bytes);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_WEIGHT_EXPONENT_H_
