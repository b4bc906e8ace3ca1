// Exact dequantisation of blocks to F32.
#ifndef ORCD_RUNTIME_GGUF_DEQUANTIZE_H_
#define ORCD_RUNTIME_GGUF_DEQUANTIZE_H_

#include <cstddef>
#include <cstdint>

#include "runtime/gguf/block_formats.h"

namespace orcd {

// Writes the `count` weights that start at `src` to `dst`. `count` is a multiple of the type's
// block; `src` holds count / block_weights * block_bytes bytes and needs no alignment.
void Dequantize(TensorType type, const std::byte* src, int64_t count, float* dst);

// Converts IEEE half precision exactly.
float HalfToFloat(uint16_t half);
// Rounds to nearest, ties to even; overflows to infinity.
uint16_t FloatToHalf(float value);
float BFloat16ToFloat(uint16_t value);

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_DEQUANTIZE_H_
