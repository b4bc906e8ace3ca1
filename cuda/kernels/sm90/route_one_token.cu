// The norm, the router and the choice of experts of a step of one token in one launch
// (RouteOneTokenArgs, experts.h), each of which takes longer to begin than to run.
//
//   Block     16 warps, as many blocks as SMs (kernel_set.h), which share the router's outputs, or
//             more where each would have more than 8, or than fit. Each block normalises the whole
//             row, as products do (matvec_prologue.cuh). The router's weights are on their way
//             before the kernel ahead has ended.
//   First     the first block's other warps write the row; then it waits for all logits, and
//             chooses. It is the same block each time, most often on the same SM, whose caches have
//             the code of the choice. Each logit comes in one word with the number of the launch,
//             so that nothing needs to be ordered. The others wait for nothing, and all run before
//             the next kernel begins.
//   Sums      of the norm as NormKernel's, of the router as LanesKernel's (router_sums.cuh), the
//             choice as ChooseOneKernel's (expert_choice.cuh).
//   Memory    the row, and rows of the router and of its input in classes, with four floats
//             between, so that eight lanes read from different banks; half of an SM's or less.
//   Floor     4 * outputs * hidden bytes, from the L2 cache.
#include <algorithm>

#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/reduce.cuh"
#include "cuda/kernels/portable/expert_tables.cuh"
#include "cuda/kernels/portable/router_sums.cuh"
#include "cuda/kernels/sm90/kernel_set.h"

namespace orcd::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
// Values of a float4, and most of them that a thread has of a row.
constexpr int kVector = 4;
constexpr int kThreadVectors = 2;
static_assert(kMaxRoutedHidden == kThreads * kThreadVectors * kVector);
// Most outputs of a block, each of a warp.
constexpr int kMostOutputs = 8;
constexpr int kMostBytes = kMaxSharedBytesOfTwo - 2048;

// A row in classes: the columns of a class one after another, and four floats between classes.
struct ClassRow {
  int class_vectors;
  // 2^16 / class_vectors, rounded up.
  int reciprocal;

  __device__ __forceinline__ explicit ClassRow(int hidden)
      : class_vectors(RouterClassCols(hidden) / kVector),
        reciprocal((1 << 16) / class_vectors + 1) {}

  static constexpr int Floats(int hidden) {
    return kRouterClasses * (RouterClassCols(hidden) + kVector);
  }
  // Place of vector i, in floats.
  __device__ __forceinline__ int Of(int i) const { return (i + (i * reciprocal >> 16)) * kVector; }
};

// Vector i of the row with what is to be added to it.
__device__ __forceinline__ float4 LoadVector(const NormArgs& norm, int i) {
  const int vectors = norm.hidden / kVector;
  const auto* const partials = reinterpret_cast<const float4*>(norm.partials) + i;
  const int64_t stride = int64_t{norm.partials_tokens} * vectors;
  const float4 residual = __ldcg(reinterpret_cast<const float4*>(norm.residual) + i);
  if (norm.splits == 0) return residual;
  float4 parts[kMaxSplits];
#pragma unroll
  for (int s = 0; s < kMaxSplits; ++s) {
    if (s < norm.splits) parts[s] = __ldcg(partials + s * stride);
  }
  float4 to = residual;
  if (norm.bias != nullptr) to = __ldg(reinterpret_cast<const float4*>(norm.bias) + i);
  float4 sum = parts[0];
#pragma unroll
  for (int s = 1; s < kMaxSplits; ++s) {
    if (s >= norm.splits) break;
    sum =
        make_float4(sum.x + parts[s].x, sum.y + parts[s].y, sum.z + parts[s].z, sum.w + parts[s].w);
  }
  sum = make_float4(fmaf(sum.x, norm.scale, to.x), fmaf(sum.y, norm.scale, to.y),
                    fmaf(sum.z, norm.scale, to.z), fmaf(sum.w, norm.scale, to.w));
  if (norm.bias == nullptr) return sum;
  // As NormKernel: the branch is rounded before it is added.
  return make_float4(sum.x + residual.x, sum.y + residual.y, sum.z + residual.z,
                     sum.w + residual.w);
}

// Makes the router's input, in classes, in `x`. `scratch` gets the row, and a float for every 32 of
// NormThreads. Returns the norm's factor.
__device__ __forceinline__ float Normalise(const NormArgs& norm, const ClassRow& classes,
                                           float* scratch, float* x) {
  const int vectors = norm.hidden / kVector;
  const int threads = NormThreads(norm.hidden);
  auto* const row = reinterpret_cast<float4*>(scratch);
  float* const sums = scratch + norm.hidden;
  const auto* const weight = reinterpret_cast<const float4*>(norm.weight);
  float4 weights[kThreadVectors];
#pragma unroll
  for (int v = 0; v < kThreadVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * kThreads;
    if (i < vectors) weights[v] = __ldg(weight + i);
  }
  WaitForDependency();
#pragma unroll
  for (int v = 0; v < kThreadVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * kThreads;
    if (i < vectors) row[i] = LoadVector(norm, i);
  }
  __syncthreads();
  SumSquares(row, vectors, threads, static_cast<int>(threadIdx.x / 32), kWarps, sums);
  __syncthreads();
  const float scale = RmsScale(SumOfWarps(sums, threads / 32), norm.hidden, norm.eps);
#pragma unroll
  for (int v = 0; v < kThreadVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * kThreads;
    if (i >= vectors) break;
    *reinterpret_cast<float4*>(x + classes.Of(i)) = ScaledBy(row[i], scale, weights[v]);
  }
  return scale;
}

// Writes the residual and `out`; a thread of `threads`.
__device__ __forceinline__ void StoreRow(const NormArgs& norm, const float* scratch, float scale,
                                         int thread, int threads) {
  const auto* const row = reinterpret_cast<const float4*>(scratch);
  const auto* const weight = reinterpret_cast<const float4*>(norm.weight);
  for (int i = thread; i < norm.hidden / kVector; i += threads) {
    reinterpret_cast<float4*>(norm.new_residual)[i] = row[i];
    *reinterpret_cast<uint2*>(norm.out.data + norm.out.Index(0, i * kVector)) =
        Normed(row[i], scale, __ldg(weight + i));
  }
}

// A lane's class of the product of two rows in classes, of which `vectors` are there.
__device__ __forceinline__ float ClassSum(const float* weights, const float* x,
                                          const ClassRow& classes, int vectors) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int count = min(classes.class_vectors, vectors - lane * classes.class_vectors);
  const int first = lane * (classes.class_vectors + 1);
  const float4* const a = reinterpret_cast<const float4*>(weights) + first;
  const float4* const b = reinterpret_cast<const float4*>(x) + first;
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
    const float4 w = a[i];
    const float4 value = b[i];
    sum = fmaf(w.x, value.x, sum);
    sum = fmaf(w.y, value.y, sum);
    sum = fmaf(w.z, value.z, sum);
    sum = fmaf(w.w, value.w, sum);
  }
  return sum;
}

// A logit beside the number of its launch.
__device__ __forceinline__ uint64_t Pass(uint32_t launch, float logit) {
  return uint64_t{launch} << 32 | __float_as_uint(logit);
}
__device__ __forceinline__ float Await(const volatile uint64_t& passed, uint32_t launch) {
  uint64_t word;
  do {
    word = passed;
  } while (static_cast<uint32_t>(word >> 32) != launch);
  return __uint_as_float(static_cast<uint32_t>(word));
}

// `outputs`: those of a block.
template <int kLaneKeys>
__global__ void __launch_bounds__(kThreads, 2)
    RouteKernel(const __grid_constant__ RouteOneTokenArgs args, int outputs) {
  extern __shared__ __align__(16) float shared_floats[];
  LaunchDependents();
  const RouterArgs& router = args.router;
  const int hidden = router.hidden;
  const int vectors = hidden / kVector;
  const int row_floats = ClassRow::Floats(hidden);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const ClassRow classes(hidden);
  float* const x = shared_floats;
  float* const weights = x + row_floats;
  float* const scratch = weights + outputs * row_floats;
  const int first = static_cast<int>(blockIdx.x) * outputs;
  const int there = min(outputs, router.outputs - first);
  if (there <= 0) {
    WaitForDependency();
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) {
    const float* const from = router.weights + int64_t{first} * hidden + i * kVector;
    const uint32_t to = SharedAddress(weights + classes.Of(i));
    for (int row = 0; row < there; ++row) {
      CopyAsync(to + row * row_floats * static_cast<int>(sizeof(float)), from + row * hidden);
    }
  }
  CommitCopies();
  const float scale = Normalise(args.norm, classes, scratch, x);
  // The kernel ahead has ended.
  const auto launch = static_cast<uint32_t>(__ldcg(args.passed)) + 1;
  volatile uint64_t* const passed = args.passed + 1;
  AwaitCopies<0>();
  __syncthreads();
  if (warp < there) {
    const float sum = SumOfClasses(ClassSum(weights + warp * row_floats, x, classes, vectors));
    const int output = first + warp;
    if (lane == 0) passed[output] = Pass(launch, LogitOf(router, output, sum));
  } else if (blockIdx.x == 0 && warp >= kMostOutputs) {
    constexpr int kFirst = kMostOutputs * 32;
    StoreRow(args.norm, scratch, scale, static_cast<int>(threadIdx.x) - kFirst, kThreads - kFirst);
  }
  if (blockIdx.x != 0) return;
  OneTokenChoice choice(args.choice);
  // All have read the input, in whose place logits come.
  __syncthreads();
  float* const logits = shared_floats;
  for (int i = static_cast<int>(threadIdx.x); i < router.outputs; i += kThreads) {
    logits[i] = Await(passed[i], launch);
  }
  __syncthreads();
  // All blocks have read it.
  if (threadIdx.x == 0) *args.passed = launch;
  choice.Make<kLaneKeys>(logits, kWarps,
                         reinterpret_cast<uint64_t*>(logits + (router.outputs + 1) / 2 * 2));
}

template <int kLaneKeys>
cudaError_t LaunchRoute(const RouteOneTokenArgs& args, const DeviceTraits& device,
                        cudaStream_t stream) {
  constexpr int kFloat = sizeof(float);
  const int hidden = args.norm.hidden;
  const int row_bytes = ClassRow::Floats(hidden) * kFloat;
  const int scratch_bytes = (hidden + NormThreads(hidden) / 32) * kFloat;
  const int outputs = std::min({(args.router.outputs + device.sms - 1) / device.sms, kMostOutputs,
                                (kMostBytes - scratch_bytes) / row_bytes - 1});
  const int choice_bytes = (args.router.outputs + 1) * kFloat +
                           ChoiceKeys(args.choice.spec) * static_cast<int>(sizeof(uint64_t));
  const int bytes =
      std::max({(1 + outputs) * row_bytes + scratch_bytes, choice_bytes, kMinSharedBytesOfTwo});
  const int blocks = std::max(device.sms, (args.router.outputs + outputs - 1) / outputs);
  return LaunchInDecode(RouteKernel<kLaneKeys>, dim3(blocks), kThreads, bytes, stream, args,
                        outputs);
}

constexpr int kFewLaneKeys = 8;
constexpr int kMoreLaneKeys = 16;
static_assert(kMaxRoutedExperts == kMoreLaneKeys * 32);

}  // namespace

cudaError_t sm90::PrepareRouteKernels() {
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  return AnyError({cudaFuncSetAttribute(RouteKernel<kFewLaneKeys>, kAttribute, kMostBytes),
                   cudaFuncSetAttribute(RouteKernel<kMoreLaneKeys>, kAttribute, kMostBytes)});
}

cudaError_t sm90::LaunchRouteOneToken(const RouteOneTokenArgs& args, const DeviceTraits& device,
                                      cudaStream_t stream) {
  if (!RoutesOneToken(args.norm, args.choice.spec) || args.norm.new_residual == nullptr ||
      args.router.hidden != args.norm.hidden) {
    return cudaErrorInvalidValue;
  }
  return args.choice.spec.count <= kFewLaneKeys * 32
             ? LaunchRoute<kFewLaneKeys>(args, device, stream)
             : LaunchRoute<kMoreLaneKeys>(args, device, stream);
}

}  // namespace orcd::cuda
