// Layout in VRAM of the right-hand sides of matrix products: F16, in the core matrices of 8 tokens
// by 8 columns that tensor cores take, so that a tile of tokens by 64 columns is contiguous.
#ifndef ORCD_CUDA_KERNELS_COMMON_ACTIVATIONS_H_
#define ORCD_CUDA_KERNELS_COMMON_ACTIVATIONS_H_

#include <cuda_fp16.h>

#include <cstdint>

namespace orcd::cuda {

// Columns of a tile; columns are padded with zeros to a multiple of it.
inline constexpr int kActivationCols = 64;

// A view of F16 activations of up to `tokens` tokens:
// [column / 64][token / 8][column / 8 % 8][token % 8][column % 8].
struct Activations {
  __half* data = nullptr;
  // Capacity in tokens; a multiple of 8.
  int tokens = 0;

  constexpr int64_t Index(int token, int col) const {
    const int64_t core =
        (static_cast<int64_t>(col / kActivationCols) * (tokens / 8) + token / 8) * 8 +
        col % kActivationCols / 8;
    return core * 64 + token % 8 * 8 + col % 8;
  }
};

constexpr int64_t ActivationBytes(int tokens, int cols) {
  const int64_t tiles = (cols + kActivationCols - 1) / kActivationCols;
  return tiles * kActivationCols * tokens * 2;
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_ACTIVATIONS_H_
