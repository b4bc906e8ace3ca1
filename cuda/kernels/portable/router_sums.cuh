// The order in which kernels put together the sums of a router's product (router.cu).
#ifndef ORCD_CUDA_KERNELS_PORTABLE_ROUTER_SUMS_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_ROUTER_SUMS_CUH_

#include <cstdint>

#include "cuda/kernels/common/experts.h"

namespace orcd::cuda {

inline constexpr int kRouterClasses = 32;
inline constexpr int kRouterGroups = 8;
inline constexpr int kGroupClasses = kRouterClasses / kRouterGroups;

// The sum of all columns, in every lane, of the sums of 32 classes, of which each lane has one.
__device__ __forceinline__ float SumOfClasses(float of_class) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float group = 0;
#pragma unroll
  for (int c = 0; c < kGroupClasses; ++c) {
    group += __shfl_sync(~0u, of_class, lane / kGroupClasses * kGroupClasses + c);
  }
  float sum = 0;
#pragma unroll
  for (int g = 0; g < kRouterGroups; ++g) sum += __shfl_sync(~0u, group, g * kGroupClasses);
  return sum;
}

// The logit of the sum of all columns.
__device__ __forceinline__ float LogitOf(const RouterArgs& args, int output, float sum) {
  return args.bias != nullptr && output < args.count ? sum + args.bias[output] : sum;
}
__device__ __forceinline__ void StoreLogit(const RouterArgs& args, int token, int output,
                                           float sum) {
  args.logits[int64_t{token} * args.outputs + output] = LogitOf(args, output, sum);
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_PORTABLE_ROUTER_SUMS_CUH_
