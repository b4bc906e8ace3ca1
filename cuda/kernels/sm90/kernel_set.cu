#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/portable/kernel_set.h"
#include "cuda/kernels/sm90/kernel_set.h"

namespace orcd::cuda::sm90 {
namespace {

constexpr int kHeadDims[] = {16, 32, 64, 80, 96, 128, 256};
// A row of logits is held in the shared memory of eight SMs.
constexpr int kMaxVocab = 8 * 36000;

cudaError_t Prepare(const DeviceTraits&, int vocab) {
  return AnyError({PrepareMatvecKernels(), PrepareGemmKernels(), PrepareExpertGemmKernels(),
                   PrepareDecodeAttentionKernels(), PreparePrefillAttentionKernels(),
                   PrepareSampleKernel(vocab), PrepareRouteKernels()});
}

}  // namespace

const KernelSet kKernels = {
    .name = "sm90",
    .numeric_identity = "sm90",
    .min_cc = 90,
    .max_cc = 90,
    .gpus = "9.0 (H100, H200)",
    .head_dims = kHeadDims,
    .max_group_heads = 16,
    .max_vocab = kMaxVocab,
    .fuses = true,
    .prepare = Prepare,
    .matvec = LaunchMatvec,
    .matvec_takes = MatvecTakes,
    .gemm = LaunchGemm,
    .gemm_takes = GemmTakes,
    .gemm_takes_behind = GemmTakesBehind,
    .gemm_sums = GemmSums,
    .dequantise = LaunchDequantise,
    .expert_gemm = LaunchExpertGemm,
    .route_one_token = LaunchRouteOneToken,
    .decode_attention = LaunchDecodeAttention,
    .prefill_attention = LaunchPrefillAttention,
    .sample = LaunchSample,
};

}  // namespace orcd::cuda::sm90
