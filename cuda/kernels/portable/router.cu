// The router's product (LaunchRouter, experts.h), F32 all through. Order of sums
// (numeric_contract.h): the columns are cut into 32 classes of RouterClassCols(hidden), one after
// another, of which eight groups of four are added; a class is one chain of fmaf (router_sums.cuh).
//
//   LanesKernel  few tokens. A lane has a class, a warp an output and 1, 2, 4 or 8 tokens; 4 warps
//                a block. Stages of 16 columns of each class in shared memory, filled by cp.async;
//                the weights' first stages are loaded before the kernel ahead has ended. A class's
//                columns in a stage have a stride of 20 floats, so that eight lanes read from
//                different banks.
//   TilesKernel  many tokens. A block has 32 tokens and 32 or 64 outputs, each of its 8 warps a
//                group of classes and stages of its own of 16 columns, so that warps wait for
//                nobody until they add the groups. A thread has 8 tokens and 4 or 8 outputs, and
//                each sum twice: the class and the classes before.
//                                            registers  shared memory  blocks an SM
//                    32 x 32                 128        80 KB          2
//                    32 x 64                 255        120 KB         1
//   Floor        2 * tokens * outputs * hidden FLOP; of one token, 4 * outputs * hidden bytes.
#include <algorithm>

#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/portable/router_sums.cuh"

namespace orcd::cuda {
namespace {

// Columns of a stage of a class, or of a group, and floats from one such row to the next.
constexpr int kStageCols = 16;
constexpr int kStride = kStageCols + 4;
// Values of a float4, and float4s of a row of a stage.
constexpr int kVector = 4;
constexpr int kRowVectors = kStageCols / kVector;
static_assert(RouterClassCols(1) % kStageCols == 0);

// The outputs [first_output, outputs) of RouterArgs.
struct Work {
  RouterArgs args;
  int first_output;
  int outputs;
};

__device__ __forceinline__ float4 LoadVector(const float* at) {
  return *reinterpret_cast<const float4*>(at);
}

// --- Few tokens. ---------------------------------------------------------------------------------

constexpr int kLanesWarps = 4;
// Stages: of few tokens as many as hold all of 2,048 columns.
constexpr int LanesStages(int tokens) { return tokens <= 2 ? 5 : 3; }
// Floats of a stage of one row.
constexpr int kLanesRow = kRouterClasses * kStride;

template <int kTokens>
constexpr size_t LanesBytes() {
  return size_t{LanesStages(kTokens)} * (kLanesWarps + kTokens) * kLanesRow * sizeof(float);
}

// Copies stage `stage` of a row; thread `thread` of kThreads threads.
template <int kThreads>
__device__ __forceinline__ void CopyClasses(float* shared, const float* row, bool there, int hidden,
                                            int stage, int thread) {
  static_assert(kRouterClasses * kRowVectors % kThreads == 0);
#pragma unroll
  for (int n = 0; n < kRouterClasses * kRowVectors / kThreads; ++n) {
    const int i = n * kThreads + thread;
    const int c = i / kRowVectors;
    const int in_row = i % kRowVectors * kVector;
    const int col = c * RouterClassCols(hidden) + stage * kStageCols + in_row;
    const bool has = there && col < hidden;
    CopyAsync(SharedAddress(shared + c * kStride + in_row), row + (has ? col : 0), has);
  }
}

template <int kTokens>
__global__ void __launch_bounds__(kLanesWarps * 32) LanesKernel(const __grid_constant__ Work work) {
  constexpr int kStages = LanesStages(kTokens);
  extern __shared__ __align__(16) float shared[];
  LaunchDependents();
  const RouterArgs& args = work.args;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int output = work.first_output + static_cast<int>(blockIdx.x) * kLanesWarps + warp;
  const bool has_output = output < work.outputs;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  const float* const weights =
      args.weights + int64_t{has_output ? output : work.first_output} * args.hidden;
  const int chunks = RouterClassCols(args.hidden) / kStageCols;

  // A stage: a row of weights for each warp, then the tokens' rows.
  const auto stage_of = [&](int chunk) {
    return shared + chunk % kStages * (kLanesWarps + kTokens) * kLanesRow;
  };
  const auto copy_weights = [&](int chunk) {
    if (chunk >= chunks) return;
    CopyClasses<32>(stage_of(chunk) + warp * kLanesRow, weights, has_output, args.hidden, chunk,
                    lane);
  };
  const auto copy_tokens = [&](int chunk) {
    if (chunk >= chunks) return;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const bool has = first_token + t < args.tokens;
      CopyClasses<kLanesWarps * 32>(stage_of(chunk) + (kLanesWarps + t) * kLanesRow,
                                    args.x + int64_t{has ? first_token + t : 0} * args.hidden, has,
                                    args.hidden, chunk, threadIdx.x);
    }
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) copy_weights(s);
  WaitForDependency();
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    copy_tokens(s);
    CommitCopies();
  }

  float sums[kTokens] = {};
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    AwaitCopies<kStages - 2>();
    // All have the stage, and have read the stage before it, which is filled again.
    __syncthreads();
    copy_weights(chunk + kStages - 1);
    copy_tokens(chunk + kStages - 1);
    CommitCopies();
    const float* const mine = stage_of(chunk) + lane * kStride;
#pragma unroll
    for (int v = 0; v < kRowVectors; ++v) {
      const float4 w = LoadVector(mine + warp * kLanesRow + v * kVector);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const float4 x = LoadVector(mine + (kLanesWarps + t) * kLanesRow + v * kVector);
        sums[t] = fmaf(w.x, x.x, sums[t]);
        sums[t] = fmaf(w.y, x.y, sums[t]);
        sums[t] = fmaf(w.z, x.z, sums[t]);
        sums[t] = fmaf(w.w, x.w, sums[t]);
      }
    }
  }

  float logit = 0;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float sum = SumOfClasses(sums[t]);
    if (lane == t) logit = sum;
  }
  if (has_output && lane < kTokens && first_token + lane < args.tokens) {
    StoreLogit(args, first_token + lane, output, logit);
  }
}

template <int kTokens>
cudaError_t LaunchLanes(const Work& work, cudaStream_t stream) {
  constexpr size_t kBytes = LanesBytes<kTokens>();
  const cudaError_t error = cudaFuncSetAttribute(
      LanesKernel<kTokens>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
  if (error != cudaSuccess) return error;
  const int outputs = work.outputs - work.first_output;
  return LaunchInDecode(
      LanesKernel<kTokens>,
      dim3((outputs + kLanesWarps - 1) / kLanesWarps, (work.args.tokens + kTokens - 1) / kTokens),
      kLanesWarps * 32, kBytes, stream, work);
}

cudaError_t LaunchFew(const Work& work, cudaStream_t stream) {
  const int tokens = work.args.tokens;
  if (tokens == 1) return LaunchLanes<1>(work, stream);
  if (tokens == 2) return LaunchLanes<2>(work, stream);
  return tokens <= 4 ? LaunchLanes<4>(work, stream) : LaunchLanes<8>(work, stream);
}

// --- Many tokens. --------------------------------------------------------------------------------

constexpr int kTilesThreads = kRouterGroups * 32;
constexpr int kTilesStages = 2;
// Lanes of a warp along the tokens and along the outputs, and the tokens of a thread.
constexpr int kTokenLanes = 4;
constexpr int kOutputLanes = 8;
constexpr int kThreadTokens = 8;
constexpr int kTileTokens = kTokenLanes * kThreadTokens;

// kThreadOutputs: outputs of a thread.
template <int kThreadOutputs>
struct Tile {
  static constexpr int kOutputs = kOutputLanes * kThreadOutputs;
  static constexpr int kRows = kTileTokens + kOutputs;
  // Registers do not allow more.
  static constexpr int kUnroll = kThreadOutputs == 4 ? 1 : 4;
  // Floats of a stage of a warp.
  static constexpr int kStage = kRows * kStride;
  static constexpr size_t kBytes = size_t{kRouterGroups} * kTilesStages * kStage * sizeof(float);
  // Floats from a token's sums to the next one's, so that the lanes of a warp write to different
  // banks. The sums of all groups take the place of the stages.
  static constexpr int kSumsStride = kOutputs + 8;
  static_assert(kRouterGroups * kTileTokens * kSumsStride * sizeof(float) <= kBytes);
};

template <int kThreadOutputs>
__global__ void __launch_bounds__(kTilesThreads, kThreadOutputs == 4 ? 2 : 1)
    TilesKernel(const __grid_constant__ Work work) {
  using T = Tile<kThreadOutputs>;
  extern __shared__ __align__(16) float shared[];
  LaunchDependents();
  WaitForDependency();
  const RouterArgs& args = work.args;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int first_token = static_cast<int>(blockIdx.y) * kTileTokens;
  const int first_output = work.first_output + static_cast<int>(blockIdx.x) * T::kOutputs;
  const int class_cols = RouterClassCols(args.hidden);
  // This warp's columns.
  const int begin = warp * kGroupClasses * class_cols;
  const int end = min(begin + kGroupClasses * class_cols, args.hidden);
  const int stages = end > begin ? (end - begin + kStageCols - 1) / kStageCols : 0;
  float* const mine = shared + warp * kTilesStages * T::kStage;

  // A warp copies eight rows at a time.
  constexpr int kRowsAtOnce = 32 / kRowVectors;
  const int first_row = lane / kRowVectors;
  const int in_row = lane % kRowVectors * kVector;
  const auto copy_rows = [&](float* to, const float* from, int first, int last, int rows, int col) {
    from += int64_t{first + first_row} * args.hidden + col;
#pragma unroll(T::kUnroll)
    for (int r = 0; r < rows; r += kRowsAtOnce) {
      const bool has = col < end && first + first_row + r < last;
      CopyAsync(SharedAddress(to + (first_row + r) * kStride + in_row),
                has ? from + r * args.hidden : args.x, has);
    }
  };
  const auto copy = [&](int stage) {
    if (stage < stages) {
      float* const to = mine + stage % kTilesStages * T::kStage;
      const int col = begin + stage * kStageCols + in_row;
      copy_rows(to, args.x, first_token, args.tokens, kTileTokens, col);
      copy_rows(to + kTileTokens * kStride, args.weights, first_output, work.outputs, T::kOutputs,
                col);
    }
    CommitCopies();
  };
#pragma unroll
  for (int s = 0; s < kTilesStages; ++s) copy(s);

  const int token_lane = lane / kOutputLanes;
  const int output_lane = lane % kOutputLanes;
  float sums[kThreadTokens][kThreadOutputs] = {};
  float of_class[kThreadTokens][kThreadOutputs] = {};
  const auto end_class = [&] {
#pragma unroll
    for (int i = 0; i < kThreadTokens; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadOutputs; ++j) {
        sums[i][j] += of_class[i][j];
        of_class[i][j] = 0;
      }
    }
  };
  const int class_stages = class_cols / kStageCols;
  int left = class_stages;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    AwaitCopies<kTilesStages - 1>();
    __syncwarp();
    const float* const at = mine + stage % kTilesStages * T::kStage;
#pragma unroll(T::kUnroll)
    for (int v = 0; v < kRowVectors; ++v) {
      float4 w[kThreadOutputs];
#pragma unroll
      for (int j = 0; j < kThreadOutputs; ++j) {
        w[j] =
            LoadVector(at + (kTileTokens + output_lane + j * kOutputLanes) * kStride + v * kVector);
      }
#pragma unroll
      for (int i = 0; i < kThreadTokens; ++i) {
        const float4 x = LoadVector(at + (token_lane + i * kTokenLanes) * kStride + v * kVector);
        float(&row)[kThreadOutputs] = of_class[i];
#pragma unroll
        for (int j = 0; j < kThreadOutputs; ++j) row[j] = fmaf(w[j].x, x.x, row[j]);
#pragma unroll
        for (int j = 0; j < kThreadOutputs; ++j) row[j] = fmaf(w[j].y, x.y, row[j]);
#pragma unroll
        for (int j = 0; j < kThreadOutputs; ++j) row[j] = fmaf(w[j].z, x.z, row[j]);
#pragma unroll
        for (int j = 0; j < kThreadOutputs; ++j) row[j] = fmaf(w[j].w, x.w, row[j]);
      }
    }
    // All lanes have read the stage.
    __syncwarp();
    copy(stage + kTilesStages);
    if (--left == 0) {
      end_class();
      left = class_stages;
    }
  }
  // The last class may have fewer columns.
  end_class();

  AwaitCopies<0>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kThreadTokens; ++i) {
#pragma unroll
    for (int j = 0; j < kThreadOutputs; ++j) {
      const int token = token_lane + i * kTokenLanes;
      shared[(warp * kTileTokens + token) * T::kSumsStride + output_lane + j * kOutputLanes] =
          sums[i][j];
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kTileTokens * T::kOutputs; i += kTilesThreads) {
    const int token = i / T::kOutputs;
    const int output = i % T::kOutputs;
    float sum = 0;
#pragma unroll
    for (int g = 0; g < kRouterGroups; ++g) {
      sum += shared[(g * kTileTokens + token) * T::kSumsStride + output];
    }
    if (first_token + token < args.tokens && first_output + output < work.outputs) {
      StoreLogit(args, first_token + token, first_output + output, sum);
    }
  }
}

template <int kThreadOutputs>
cudaError_t LaunchTiles(const Work& work, cudaStream_t stream) {
  using T = Tile<kThreadOutputs>;
  const cudaError_t error =
      cudaFuncSetAttribute(TilesKernel<kThreadOutputs>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(T::kBytes));
  if (error != cudaSuccess) return error;
  const int outputs = work.outputs - work.first_output;
  return LaunchInDecode(TilesKernel<kThreadOutputs>,
                        dim3((outputs + T::kOutputs - 1) / T::kOutputs,
                             (work.args.tokens + kTileTokens - 1) / kTileTokens),
                        kTilesThreads, T::kBytes, stream, work);
}

// Most tokens of LanesKernel.
constexpr int kMaxFewTokens = 192;
// Tiles of 64 outputs so many that they fill the SMs.
constexpr int kManyTiles = 96;
// Most outputs behind the last whole tile that LanesKernel takes: the gate of a shared expert.
constexpr int kMaxRest = 4;

}  // namespace

cudaError_t LaunchRouter(const RouterArgs& args, cudaStream_t stream) {
  if (args.hidden % (2 * kVector) != 0) return cudaErrorInvalidValue;
  const Work all = {.args = args, .first_output = 0, .outputs = args.outputs};
  if (args.tokens <= kMaxFewTokens) return LaunchFew(all, stream);
  constexpr int kNarrow = Tile<4>::kOutputs;
  Work tiles = all;
  const int rest = args.outputs % kNarrow;
  if (rest <= kMaxRest) tiles.outputs -= rest;
  if (tiles.outputs > 0) {
    constexpr int kWide = Tile<8>::kOutputs;
    const int wide_tiles =
        (tiles.outputs + kWide - 1) / kWide * ((args.tokens + kTileTokens - 1) / kTileTokens);
    const bool wide = wide_tiles >= kManyTiles && tiles.outputs % kWide == 0;
    const cudaError_t error = wide ? LaunchTiles<8>(tiles, stream) : LaunchTiles<4>(tiles, stream);
    if (error != cudaSuccess) return error;
  }
  if (tiles.outputs == args.outputs) return cudaSuccess;
  Work behind = all;
  behind.first_output = tiles.outputs;
  return LaunchFew(behind, stream);
}

}  // namespace orcd::cuda
