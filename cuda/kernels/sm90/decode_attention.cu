// Entry points of decode attention (decode_attention_kernel.cuh).
#include "cuda/kernels/sm90/decode_attention_kernel.cuh"
#include "cuda/kernels/sm90/kernel_set.h"

namespace orcd::cuda {

cudaError_t sm90::PrepareDecodeAttentionKernels() {
  return AnyError({decode::PreparePlain(), decode::PrepareCommon(), decode::PrepareRare()});
}

cudaError_t sm90::LaunchDecodeAttention(const DecodeAttentionArgs& args, const DeviceTraits& device,
                                        cudaStream_t stream) {
  if (args.q == nullptr && (args.sees_step || !DecodeMakesRows(args.qkv))) {
    return cudaErrorInvalidValue;
  }
  const int head_dim = args.qkv.head_dim;
  if (args.q == nullptr && IsPlain(args.qkv) && IsPlain(args.rule, head_dim)) {
    return decode::LaunchPlain(args, device.sms, stream);
  }
  return head_dim == 64 || head_dim == 128 ? decode::LaunchCommon(args, device.sms, stream)
                                           : decode::LaunchRare(args, device.sms, stream);
}

}  // namespace orcd::cuda
