// Parts that the kernels of LaunchGemm and LaunchExpertGemm share: their arguments, and entry
// points of their translation units.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_GEMM_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_GEMM_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/kernel_set.h"
#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/portable/swiglu.cuh"

namespace orcd::cuda::portable::gemm {

// A dense product, or the products of experts (ExpertMatmulArgs). The matrices have one format.
struct Params : Product {
  Activations x = {};
  StoreF32 store = {};
  // Null data: `store` is the epilogue.
  SwiGlu swiglu = {};
  // Row tiles of the result; of one expert's.
  int row_tiles = 0;
  // Rows that StoreF32 writes, and PartialsTokens.
  int rows = 0;
  int partials_tokens = 0;
  // Null: the product is dense. Otherwise the one matrix is expert 0's, the list has entries of at
  // most `tile_rows` rows, and `bias` is what SwiGlu adds, or null.
  const ExpertTile* expert_tiles = nullptr;
  int max_expert_tiles = 0;
  int tile_rows = 0;
  const float* bias = nullptr;
};

// Bytes of 64 columns of `tokens` tokens.
constexpr int XBytes(int tokens) { return tokens * kActivationCols * 2; }
// Bytes of a row tile's 64 columns in F16.
inline constexpr int kF16TileBytes = UnitBytes(TileFormat::kF16);

// A unit of the SwiGLU epilogue, of sums that are multiplied by `factor` before the bias is added.
// A bias of -0 changes no sum, nor a zero's sign.
__device__ __forceinline__ __half Unit(const Params& args, float gate, float up, float factor,
                                       float gate_bias, float up_bias) {
  return SwiGluUnit(fmaf(gate, factor, gate_bias), fmaf(up, factor, up_bias), 1,
                    args.swiglu.activation);
}

// One translation unit each (gemm_….cu). Launches return cudaErrorInvalidValue for other formats.
//
// F16 weights and more tokens than kFewTokens, or sums of partials.
cudaError_t LaunchOfF16(const Params& args, const DeviceTraits& device, cudaStream_t stream);
cudaError_t PrepareOfF16(const DeviceTraits& device);
// Any number of tokens, dense or of experts, without sums of several partials.
cudaError_t LaunchOfBlocks(const Params& args, const DeviceTraits& device, cudaStream_t stream);
cudaError_t PrepareOfBlocks(const DeviceTraits& device);
cudaError_t LaunchOfRareBlocks(const Params& args, const DeviceTraits& device, cudaStream_t stream);
cudaError_t PrepareOfRareBlocks(const DeviceTraits& device);
cudaError_t LaunchOfSuperBlocks(const Params& args, const DeviceTraits& device,
                                cudaStream_t stream);
cudaError_t PrepareOfSuperBlocks(const DeviceTraits& device);
cudaError_t LaunchOfLevelBooks(const Params& args, const DeviceTraits& device, cudaStream_t stream);
cudaError_t PrepareOfLevelBooks(const DeviceTraits& device);
cudaError_t LaunchOfGroupBooks(const Params& args, const DeviceTraits& device, cudaStream_t stream);
cudaError_t PrepareOfGroupBooks(const DeviceTraits& device);

// Most tokens of a block of the kernel in gemm_formats.cuh.
inline constexpr int kFewTokens = 64;

}  // namespace orcd::cuda::portable::gemm

#endif  // ORCD_CUDA_KERNELS_PORTABLE_GEMM_CUH_
