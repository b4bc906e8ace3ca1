// Instances of prefill_attention_kernel.cuh for any rule.
#include "cuda/kernels/sm90/prefill_attention_kernel.cuh"

namespace orcd::cuda::prefill {

cudaError_t LaunchAny(const PrefillAttentionArgs& args, cudaStream_t stream) {
  switch (args.kv.head_dim) {
    case 16:
      return LaunchHeads<16, false>(args, stream);
    case 32:
      return LaunchHeads<32, false>(args, stream);
    case 64:
      return LaunchHeads<64, false>(args, stream);
    case 80:
      return LaunchHeads<80, false>(args, stream);
    case 96:
      return LaunchHeads<96, false>(args, stream);
    case 128:
      return LaunchHeads<128, false>(args, stream);
    case 256:
      return LaunchHeads<256, false>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t PrepareAny() {
  return AnyError({Prepare<16, false>(), Prepare<32, false>(), Prepare<64, false>(), Prepare<80, false>(), Prepare<96, false>(), Prepare<128, false>(), Prepare<256, false>()});
}

}  // namespace orcd::cuda::prefill
