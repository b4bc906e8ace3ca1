// The power of two by which kernels scale a matrix's weights down while they multiply.
#ifndef ORCD_CUDA_WEIGHT_EXPONENT_H_
#define ORCD_CUDA_WEIGHT_EXPONENT_H_

#include <cstdint>

#include "runtime/gguf/block_formats.h"

namespace orcd::cuda {

// TiledMatrix::exponent of a matrix that has `bytes` bytes of blocks at `blocks`. Formats with
// super-blocks: the least that keeps d * scale * 2^(24 - exponent) and dmin * 2^(14 - exponent)
// within F16. MXFP4: the least, from 0 on, that keeps e - exponent at or below kMostE8m0. Others:
// 0. A matrix in several parts takes the largest of their exponents.
int WeightExponent(TensorType type, const uint8_t* blocks, int64_t bytes);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_WEIGHT_EXPONENT_H_
