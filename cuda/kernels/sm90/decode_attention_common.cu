// Instances of decode_attention_kernel.cuh for heads of 64 and 128 values and any rule.
#include "cuda/kernels/sm90/decode_attention_kernel.cuh"

namespace orcd::cuda::decode {

cudaError_t LaunchCommon(const DecodeAttentionArgs& args, int sms, cudaStream_t stream) {
  switch (args.qkv.head_dim) {
    case 64:
      return LaunchHeads<64, false>(args, sms, stream);
    case 128:
      return LaunchHeads<128, false>(args, sms, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t PrepareCommon() {
  return AnyError({PrepareHeads<64, false>(), PrepareHeads<128, false>()});
}

}  // namespace orcd::cuda::decode
