// Entry points of prefill attention, and the instances of prefill_attention_kernel.cuh for rules that
// are IsPlain.
#include "cuda/kernels/sm90/kernel_set.h"
#include "cuda/kernels/sm90/prefill_attention_kernel.cuh"

namespace orcd::cuda {

cudaError_t sm90::PreparePrefillAttentionKernels() {
  return AnyError(
      {prefill::Prepare<64, true>(), prefill::Prepare<128, true>(), prefill::PrepareAny()});
}

cudaError_t sm90::LaunchPrefillAttention(const PrefillAttentionArgs& args, const DeviceTraits&,
                                         cudaStream_t stream) {
  if (!IsPlain(args.rule, args.kv.head_dim)) return prefill::LaunchAny(args, stream);
  return args.kv.head_dim == 64 ? prefill::LaunchHeads<64, true>(args, stream)
                                : prefill::LaunchHeads<128, true>(args, stream);
}

}  // namespace orcd::cuda
