// Instances of decode_attention_kernel.cuh for products and rules that are IsPlain.
#include "cuda/kernels/sm90/decode_attention_kernel.cuh"

namespace orcd::cuda::decode {

cudaError_t LaunchPlain(const DecodeAttentionArgs& args, int sms, cudaStream_t stream) {
  switch (args.qkv.head_dim) {
    case 64:
      return LaunchHeads<64, true>(args, sms, stream);
    case 128:
      return LaunchHeads<128, true>(args, sms, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t PreparePlain() {
  return AnyError({PrepareHeads<64, true>(), PrepareHeads<128, true>()});
}

}  // namespace orcd::cuda::decode
