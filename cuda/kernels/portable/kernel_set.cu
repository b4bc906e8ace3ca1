#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/portable/kernel_set.h"

namespace orcd::cuda::portable {
namespace {

constexpr int kHeadDims[] = {16, 32, 64, 80, 96, 128, 256};

cudaError_t Prepare(const DeviceTraits& device, int /*vocab*/) {
  return AnyError(
      {PrepareMatvecKernels(device), PrepareGemmKernels(device), PrepareAttentionKernels(device)});
}

bool MatvecTakes(const Product& product) { return product.tokens <= kMatvecTokens; }
bool GemmSums(const Product&) { return false; }

// Tensor cores of different generations sum differently.
constexpr KernelSet Of(const char* identity, int min_cc, int max_cc, const char* gpus) {
  return {
      .name = "portable",
      .numeric_identity = identity,
      .min_cc = min_cc,
      .max_cc = max_cc,
      .gpus = gpus,
      .head_dims = kHeadDims,
      .max_group_heads = 16,
      .max_vocab = 1 << 20,
      .fuses = false,
      .prepare = Prepare,
      .matvec = LaunchMatvec,
      .matvec_takes = MatvecTakes,
      .gemm = LaunchGemm,
      .gemm_takes = GemmTakes,
      .gemm_takes_behind = GemmTakesBehind,
      .gemm_sums = GemmSums,
      .dequantise = LaunchDequantise,
      .expert_gemm = LaunchExpertGemm,
      .route_one_token = nullptr,
      .decode_attention = LaunchDecodeAttention,
      .prefill_attention = LaunchPrefillAttention,
      .sample = LaunchSample,
  };
}

constexpr KernelSet kKernelSets[] = {
    Of("portable-80", 80, 88, "8.0 to 8.7 (A100, A10, A40, RTX 30)"),
    Of("portable-89", 89, 89, "8.9 (L4, L40S, RTX 40, RTX 6000 Ada)"),
    Of("portable-90", 90, 99, "9.0 (H100, H200, GH200)"),
    Of("portable-100", 100, 119, "10.0 to 11.0 (B200, B300, Thor)"),
    Of("portable-120", 120, 129, "12.0 and 12.1 (RTX 50, RTX PRO Blackwell)"),
    Of("portable-later", 130, 1 << 20, "later ones"),
};

}  // namespace

std::span<const KernelSet> KernelSets() { return kKernelSets; }

}  // namespace orcd::cuda::portable
