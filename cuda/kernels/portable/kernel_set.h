// The kernels for any GPU since compute capability 8.0, as KernelSet describes them: mma.sync from
// registers, cp.async pipelines, shared memory by what the device has. They fuse nothing
// (KernelSet::fuses).
#ifndef ORCD_CUDA_KERNELS_PORTABLE_KERNEL_SET_H_
#define ORCD_CUDA_KERNELS_PORTABLE_KERNEL_SET_H_

#include <span>

#include "cuda/kernels/common/kernel_set.h"

namespace orcd::cuda {

namespace portable {

// One for each generation of GPUs, by ascending compute capability.
std::span<const KernelSet> KernelSets();

cudaError_t PrepareMatvecKernels(const DeviceTraits& device);
cudaError_t PrepareGemmKernels(const DeviceTraits& device);
cudaError_t PrepareAttentionKernels(const DeviceTraits& device);

cudaError_t LaunchMatvec(const MatmulArgs& args, const DeviceTraits& device, cudaStream_t stream);
cudaError_t LaunchGemm(const MatmulArgs& args, const DeviceTraits& device, cudaStream_t stream);
cudaError_t LaunchExpertGemm(const ExpertMatmulArgs& args, const DeviceTraits& device,
                             cudaStream_t stream);
cudaError_t LaunchDecodeAttention(const DecodeAttentionArgs& args, const DeviceTraits& device,
                                  cudaStream_t stream);
cudaError_t LaunchPrefillAttention(const PrefillAttentionArgs& args, const DeviceTraits& device,
                                   cudaStream_t stream);
cudaError_t LaunchSample(const SampleArgs& args, const DeviceTraits& device, cudaStream_t stream);

bool GemmTakes(TileFormat format, int tokens);
bool GemmTakesBehind(TileFormat before, TileFormat format);

}  // namespace portable

// For every set.
cudaError_t LaunchDequantise(const Product& product, int first_tile, int tiles, uint8_t* out,
                             cudaStream_t stream);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_PORTABLE_KERNEL_SET_H_
