// A set of kernels for one or several generations of GPUs: what a step launches beside the kernels
// of step.h, which run on any GPU, and what it takes of a model. A set is a constant in its folder
// and a row of a table (cuda/device.cc).
#ifndef ORCD_CUDA_KERNELS_COMMON_KERNEL_SET_H_
#define ORCD_CUDA_KERNELS_COMMON_KERNEL_SET_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "cuda/kernels/common/attention.h"
#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/sample.h"

namespace orcd::cuda {

// A GPU as kernels see it.
struct DeviceTraits {
  // Compute capability, 10 * major + minor.
  int cc = 0;
  int sms = 0;
  // Bytes of shared memory that a block may have, and that an SM has; bytes of L2 cache.
  int smem_block = 0;
  int smem_sm = 0;
  int l2 = 0;
  // Programmatic dependent launch; clusters of blocks; bulk copies; wgmma and setmaxnreg.
  bool pdl = false;
  bool clusters = false;
  bool tma = false;
  bool wgmma = false;
};

// Launches are asynchronous on `stream`. The pointers are never null but where they say so.
struct KernelSet {
  const char* name;
  // Sets of one identity compute the same bits. Tensor cores of different generations sum
  // differently, so a set for several generations has a row, and an identity, for each.
  const char* numeric_identity;
  // Compute capabilities of its GPUs, both included, and the same for messages, with names of GPUs.
  int min_cc;
  int max_cc;
  const char* gpus;

  // Head sizes, most query heads per kv head, and largest vocabulary of the models that it takes.
  std::span<const int> head_dims;
  int max_group_heads;
  int max_vocab;

  // True if products of one token take NormArgs for their input, and products of many tokens have
  // the epilogues AddToResidual and StoreQkv. Otherwise kernels of step.h do that before and after,
  // with the same bits.
  bool fuses;

  // Raises the kernels' shared-memory limits; call once per device. `vocab` is the sampler's.
  cudaError_t (*prepare)(const DeviceTraits& device, int vocab);

  // Product that matvec_takes; `x` is padded to 8 tokens. Any formats. Bound by reading the
  // weights. It and `gemm` return cudaErrorInvalidValue if there is no such kernel.
  cudaError_t (*matvec)(const MatmulArgs& args, const DeviceTraits& device, cudaStream_t stream);
  // True of up to kMatvecTokens tokens, if there is room for their `x`.
  bool (*matvec_takes)(const Product& product);
  // Product that `matvec` does not take, of formats that gemm_takes and gemm_takes_behind allow.
  cudaError_t (*gemm)(const MatmulArgs& args, const DeviceTraits& device, cudaStream_t stream);
  // True if `gemm` takes weights of the format for this many tokens; always for kF16. Other weights
  // must first be dequantised to F16.
  bool (*gemm_takes)(TileFormat format, int tokens);
  // True if one `gemm` takes a matrix of `format` after one of `before` in MatmulArgs::matrices.
  bool (*gemm_takes_behind)(TileFormat before, TileFormat format);
  // True if `gemm` of no more than kMaxPartialsTokens tokens is faster when it adds the partials
  // itself (StoreF32::sum), and supports that.
  bool (*gemm_sums)(const Product& product);
  // Dequantises row tiles [first_tile, first_tile + tiles) of a product's matrices, which have one
  // format, to format kF16 at `out`, tile after tile. kF16 tiles are copied, and must come from one
  // matrix.
  cudaError_t (*dequantise)(const Product& product, int first_tile, int tiles, uint8_t* out,
                            cudaStream_t stream);

  // Products of experts, of any format.
  cudaError_t (*expert_gemm)(const ExpertMatmulArgs& args, const DeviceTraits& device,
                             cudaStream_t stream);

  // For RoutesOneToken; null if the set does not fuse.
  cudaError_t (*route_one_token)(const RouteOneTokenArgs& args, const DeviceTraits& device,
                                 cudaStream_t stream);

  cudaError_t (*decode_attention)(const DecodeAttentionArgs& args, const DeviceTraits& device,
                                  cudaStream_t stream);
  cudaError_t (*prefill_attention)(const PrefillAttentionArgs& args, const DeviceTraits& device,
                                   cudaStream_t stream);
  cudaError_t (*sample)(const SampleArgs& args, const DeviceTraits& device, cudaStream_t stream);
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_KERNEL_SET_H_
