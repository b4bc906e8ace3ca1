// Instances of decode_attention_kernel.cuh for heads of other sizes.
#include "cuda/kernels/sm90/decode_attention_kernel.cuh"

namespace orcd::cuda::decode {

cudaError_t LaunchRare(const DecodeAttentionArgs& args, int sms, cudaStream_t stream) {
  switch (args.qkv.head_dim) {
    case 16:
      return LaunchHeads<16, false>(args, sms, stream);
    case 32:
      return LaunchHeads<32, false>(args, sms, stream);
    case 80:
      return LaunchHeads<80, false>(args, sms, stream);
    case 96:
      return LaunchHeads<96, false>(args, sms, stream);
    case 256:
      return LaunchHeads<256, false>(args, sms, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t PrepareRare() {
  return AnyError({PrepareHeads<16, false>(), PrepareHeads<32, false>(), PrepareHeads<80, false>(), PrepareHeads<96, false>(), PrepareHeads<256, false>()});
}

}  // namespace orcd::cuda::decode
