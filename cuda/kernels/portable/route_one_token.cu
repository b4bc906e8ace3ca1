// The norm, the router and the choice of experts of a step of one token in one launch
// (LaunchRouteOneToken, experts.h), which take longer to begin than to run.
//
//   Block     16 warps, up to 8 outputs of the router; grid: as many as have all outputs. Each
//   block
//             normalises the whole row for itself, as products do (matvec_prologue.cuh), and the
//             first writes it. The router's weights are on their way before the kernel ahead has
//             ended. The last block to end chooses.
//   Sums      of the norm as NormKernel's, of the router as LanesKernel's (router_sums.cuh), the
//             choice as ChooseOneKernel's (expert_choice.cuh).
//   Memory    rows of the router in classes, with four floats between, so that eight lanes read
//             from different banks: 70 KB for 2,048 columns, 72 KB at most.
//   Floor     4 * outputs * hidden bytes, from the L2 cache.
#include <algorithm>

#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/reduce.cuh"
#include "cuda/kernels/portable/expert_tables.cuh"
#include "cuda/kernels/portable/router_sums.cuh"

namespace orcd::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
// Values of a float4, and most of them that a thread has of a row.
constexpr int kVector = 4;
constexpr int kThreadVectors = 2;
static_assert(kMaxRoutedHidden == kThreads * kThreadVectors * kVector);
// Most outputs of a block, each of a warp, and bytes of their weights.
constexpr int kMostOutputs = 8;
constexpr int kMostWeightBytes = 72 * 1024;

// Floats of a row in classes.
__host__ __device__ constexpr int ClassesRow(int hidden) {
  return kRouterClasses * (RouterClassCols(hidden) + kVector);
}
__device__ __forceinline__ int PlaceInClasses(int hidden, int col) {
  return col + col / RouterClassCols(hidden) * kVector;
}

// The row, with what was to be added to it; -0 where a thread has no columns.
__device__ __forceinline__ void LoadRow(const NormArgs& norm, float4 (&row)[kThreadVectors]) {
  const int vectors = norm.hidden / kVector;
  const auto* const partials = reinterpret_cast<const float4*>(norm.partials);
  const int64_t stride = int64_t{norm.partials_tokens} * vectors;
  float4 parts[kThreadVectors][kMaxSplits];
#pragma unroll
  for (int v = 0; v < kThreadVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * kThreads;
    if (i >= vectors) continue;
    row[v] = __ldcg(reinterpret_cast<const float4*>(norm.residual) + i);
#pragma unroll
    for (int s = 0; s < kMaxSplits; ++s) {
      if (s < norm.splits) parts[v][s] = __ldcg(partials + i + s * stride);
    }
  }
  if (norm.splits == 0) return;
#pragma unroll
  for (int v = 0; v < kThreadVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * kThreads;
    if (i >= vectors) continue;
    float4 sum = parts[v][0];
#pragma unroll
    for (int s = 1; s < kMaxSplits; ++s) {
      if (s >= norm.splits) break;
      const float4& part = parts[v][s];
      sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
    }
    const float4 add = row[v];
    // As NormKernel: a branch with a bias is rounded before it is added.
    const float4 to =
        norm.bias == nullptr ? add : __ldg(reinterpret_cast<const float4*>(norm.bias) + i);
    row[v] = make_float4(fmaf(sum.x, norm.scale, to.x), fmaf(sum.y, norm.scale, to.y),
                         fmaf(sum.z, norm.scale, to.z), fmaf(sum.w, norm.scale, to.w));
    if (norm.bias == nullptr) continue;
    row[v] = make_float4(row[v].x + add.x, row[v].y + add.y, row[v].z + add.z, row[v].w + add.w);
  }
}

// Makes the router's input, in classes, in `x`. The first block writes the residual and `out`.
// `scratch` has the row, and a float for every 32 of NormThreads.
__device__ __forceinline__ void Normalise(const NormArgs& norm, float* scratch, float* x) {
  const int vectors = norm.hidden / kVector;
  const int threads = NormThreads(norm.hidden);
  auto* const shared_row = reinterpret_cast<float4*>(scratch);
  float* const sums = scratch + norm.hidden;
  float4 weight[kThreadVectors];
#pragma unroll
  for (int v = 0; v < kThreadVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * kThreads;
    if (i < vectors) weight[v] = __ldg(reinterpret_cast<const float4*>(norm.weight) + i);
  }
  WaitForDependency();
  float4 row[kThreadVectors];
  LoadRow(norm, row);
#pragma unroll
  for (int v = 0; v < kThreadVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * kThreads;
    if (i >= vectors) continue;
    shared_row[i] = row[v];
    if (blockIdx.x == 0) reinterpret_cast<float4*>(norm.new_residual)[i] = row[v];
  }
  __syncthreads();
  SumSquares(shared_row, vectors, threads, static_cast<int>(threadIdx.x / 32), kWarps, sums);
  __syncthreads();
  const float scale = RmsScale(SumOfWarps(sums, threads / 32), norm.hidden, norm.eps);
#pragma unroll
  for (int v = 0; v < kThreadVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * kThreads;
    if (i >= vectors) continue;
    *reinterpret_cast<float4*>(x + PlaceInClasses(norm.hidden, i * kVector)) =
        ScaledBy(row[v], scale, weight[v]);
    if (blockIdx.x == 0) {
      *reinterpret_cast<uint2*>(norm.out.data + norm.out.Index(0, i * kVector)) =
          Normed(row[v], scale, weight[v]);
    }
  }
}

// A lane's class of the product of two rows in classes.
__device__ __forceinline__ float ClassSum(const float* weights, const float* x, int hidden) {
  const int class_cols = RouterClassCols(hidden);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int cols = min(class_cols, hidden - lane * class_cols);
  const int first = lane * (class_cols + kVector);
  float sum = 0;
#pragma unroll 8
  for (int c = 0; c < cols; c += kVector) {
    const float4 a = *reinterpret_cast<const float4*>(weights + first + c);
    const float4 b = *reinterpret_cast<const float4*>(x + first + c);
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum);
    sum = fmaf(a.w, b.w, sum);
  }
  return sum;
}

// `outputs`: those of a block.
template <int kLaneKeys>
__global__ void __launch_bounds__(kThreads, 1)
    RouteKernel(const __grid_constant__ RouteOneTokenArgs args, int outputs) {
  extern __shared__ __align__(16) float shared_floats[];
  __shared__ bool is_last;
  LaunchDependents();
  const RouterArgs& router = args.router;
  const int hidden = router.hidden;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  float* const x = shared_floats;
  float* const weights = x + ClassesRow(hidden);
  float* const scratch = weights + outputs * ClassesRow(hidden);
  const int first = static_cast<int>(blockIdx.x) * outputs;
  const int there = min(outputs, router.outputs - first);
  const int row_vectors = hidden / kVector;
  for (int i = static_cast<int>(threadIdx.x); i < there * row_vectors; i += kThreads) {
    const int row = i / row_vectors;
    const int col = (i - row * row_vectors) * kVector;
    CopyAsync(SharedAddress(weights + row * ClassesRow(hidden) + PlaceInClasses(hidden, col)),
              router.weights + int64_t{first + row} * hidden + col);
  }
  CommitCopies();
  Normalise(args.norm, scratch, x);
  AwaitCopies<0>();
  __syncthreads();
  if (warp < there) {
    const float sum = SumOfClasses(ClassSum(weights + warp * ClassesRow(hidden), x, hidden));
    if (lane == 0) {
      StoreLogit(router, /*token=*/0, first + warp, sum);
      // Before the block counts as done.
      __threadfence();
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(args.blocks_done, 1) == static_cast<int>(gridDim.x) - 1;
    if (is_last) *args.blocks_done = 0;
    __threadfence();
  }
  __syncthreads();
  if (!is_last) return;
  ChooseForOneToken<kLaneKeys>(args.choice, kWarps, reinterpret_cast<uint64_t*>(shared_floats));
}

template <int kLaneKeys>
cudaError_t LaunchRoute(const RouteOneTokenArgs& args, cudaStream_t stream) {
  const int hidden = args.norm.hidden;
  const int row_bytes = ClassesRow(hidden) * static_cast<int>(sizeof(float));
  const int outputs = std::min(kMostOutputs, kMostWeightBytes / row_bytes);
  const int scratch_bytes = (hidden + NormThreads(hidden) / 32) * static_cast<int>(sizeof(float));
  const int bytes = std::max((1 + outputs) * row_bytes + scratch_bytes,
                             ChoiceKeys(args.choice.spec) * static_cast<int>(sizeof(uint64_t)));
  const cudaError_t error = cudaFuncSetAttribute(
      RouteKernel<kLaneKeys>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  return LaunchInDecode(RouteKernel<kLaneKeys>, dim3((args.router.outputs + outputs - 1) / outputs),
                        kThreads, bytes, stream, args, outputs);
}

}  // namespace

cudaError_t LaunchRouteOneToken(const RouteOneTokenArgs& args, cudaStream_t stream) {
  if (!RoutesOneToken(args.norm, args.choice.spec) || args.norm.new_residual == nullptr ||
      args.router.hidden != args.norm.hidden) {
    return cudaErrorInvalidValue;
  }
  constexpr int kFewLaneKeys = 8;
  static_assert(kMaxRoutedExperts == 2 * kFewLaneKeys * 32);
  return args.choice.spec.count <= kFewLaneKeys * 32 ? LaunchRoute<kFewLaneKeys>(args, stream)
                                                     : LaunchRoute<2 * kFewLaneKeys>(args, stream);
}

}  // namespace orcd::cuda
