// The delta rule, token by token, over the tokens and the drafts of a step's sequences
// (LaunchDeltaRule, delta_net.h), and over drafts that were right (LaunchDeltaReplay).
//
//   Block     32 columns of a value head's state in registers, two for each 8 lanes; 4 warps, grid
//             (value heads * head_dim / 32, sequences), so that one sequence of 32 heads of 128
//             gives every SM of a large GPU a warp for each of its schedulers. Blocks begin while
//             the kernel ahead leaves one SM after another, and would crowd on the first of them:
//             each has so much shared memory that no SM takes more blocks than it must.
//   Stage     8 tokens' queries, keys, values and factors in shared memory, copied asynchronously
//             while two stages before it are used; up to 27 KiB for three stages.
//   Token     S^T k of a token stands in the way of the next token, S^T q does not: it is taken
//             while the sums of the next token's S^T k are on their way between lanes. Floor: 4
//             operations an element of the state and token; a warp has 1,024 elements.
#include <cuda_fp16.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <type_traits>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/portable/delta_net.cuh"

namespace orcd::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kColumns = 2;
// Columns of a block.
constexpr int kSlice = kWarps * kDeltaGroups * kColumns;
constexpr int kStageTokens = 8;
constexpr int kStages = 3;

template <int kDim>
using Columns = DeltaColumns<kDim, kColumns>;

template <int kDim>
struct Stage {
  // Query, key, and the block's part of the value.
  float rows[kStageTokens][2 * kDim + kSlice];
  // exp(…) and sigmoid(b).
  float factors[kStageTokens][2];
};

// A block's part of the net.
struct Part {
  int value_head;
  // Columns of the queries, keys and values, the values' from the block's first on.
  DeltaHeadCols cols;
  // The block's first column of the head.
  int first;

  template <int kDim>
  __device__ __forceinline__ static Part Of(const DeltaNetSpec& spec) {
    constexpr int kSlices = kDim / kSlice;
    Part part = {static_cast<int>(blockIdx.x) / kSlices,
                 {spec, static_cast<int>(blockIdx.x) / kSlices},
                 static_cast<int>(blockIdx.x) % kSlices * kSlice};
    part.cols.v += part.first;
    return part;
  }
};

// Consecutive tokens, or drafts, of a sequence.
struct Rows {
  const float* convolved;
  int64_t stride;
  // Those of the value head; sigmoid(b) is `beta_offset` behind.
  const float* factors;
  int64_t factor_stride;
  int beta_offset;
  int count;
};

// Copies four bytes into shared memory, as CopyAsync.
__device__ __forceinline__ void CopyWordAsync(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}

// Starts to copy the tokens from `first` on, as far as there are any; a warp has a token.
template <int kDim>
__device__ __forceinline__ void FillStage(Stage<kDim>& stage, const Part& part, const Rows& rows,
                                          int first) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int in_part = lane * kDeltaVector;
  const int tokens = min(kStageTokens, rows.count - first);
#pragma unroll
  for (int n = 0; n < kStageTokens / kWarps; ++n) {
    const int t = n * kWarps + static_cast<int>(threadIdx.x) / 32;
    if (t >= tokens) continue;
    const float* const from = rows.convolved + (first + t) * rows.stride + in_part;
    const uint32_t to = SharedAddress(stage.rows[t] + in_part);
    constexpr int kDimBytes = kDim * sizeof(float);
    if (in_part < kDim) {
      CopyAsync(to, from + part.cols.q);
      CopyAsync(to + kDimBytes, from + part.cols.k);
    }
    if (in_part < kSlice) CopyAsync(to + 2 * kDimBytes, from + part.cols.v);
    if (lane < 2) {
      CopyWordAsync(SharedAddress(&stage.factors[t][lane]),
                    rows.factors + (first + t) * rows.factor_stride + lane * rows.beta_offset);
    }
  }
}

// The results of a run's tokens and drafts. That of a token, S^T q, is taken when the next token
// has seen S.
template <int kDim>
struct Results {
  // That of the lane's column, for the token before the first.
  float* at;
  int64_t stride;
  bool has_out = Columns<kDim>::HasOut();
  // -1: there is none yet.
  int token = -1;
  // The first of the run that is not finite.
  int first_bad = INT_MAX;
  DeltaPart<kDim> q = {};

  __device__ __forceinline__ void Take(const Columns<kDim>& columns) {
    const float o = columns.Out(q);
    if (has_out && token >= 0) *at = o;
    if (!isfinite(o)) first_bad = min(first_bad, token);
  }
  __device__ __forceinline__ void Next(const float* row) {
    LoadPart<kDim>(row, q);
    at += stride;
    ++token;
  }
};
struct NoResults {};

// Moves the columns on by the rows.
template <int kDim, typename AnyResults>
__device__ __forceinline__ void Advance(Stage<kDim> (&stages)[kStages], const Part& part,
                                        const Rows& rows, Columns<kDim>& columns,
                                        AnyResults& results) {
  constexpr bool kResults = !std::is_same_v<AnyResults, NoResults>;
  // Rows before these may still be read.
  __syncthreads();
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    FillStage(stages[s], part, rows, s * kStageTokens);
    CommitCopies();
  }
  const int column =
      static_cast<int>(threadIdx.x) / 32 * Columns<kDim>::kOfWarp + Columns<kDim>::First();
  int at = 0;
#pragma unroll 1
  for (int first = 0; first < rows.count; first += kStageTokens) {
    AwaitCopies<kStages - 2>();
    // All have the stage, and have read the stage before it, which is filled again.
    __syncthreads();
    const int before = at == 0 ? kStages - 1 : at - 1;
    FillStage(stages[before], part, rows, first + (kStages - 1) * kStageTokens);
    CommitCopies();
    const Stage<kDim>& stage = stages[at];
    const int tokens = min(kStageTokens, rows.count - first);
    // The keys of two tokens: a key is loaded a whole token before it is used.
    DeltaPart<kDim> keys[2];
    LoadPart<kDim>(stage.rows[0] + kDim, keys[0]);
    LoadPart<kDim>(stage.rows[1] + kDim, keys[1]);
    const auto take = [&](int i, DeltaPart<kDim>& k) {
      const float* const row = stage.rows[i];
      const float2 v = *reinterpret_cast<const float2*>(row + 2 * kDim + column);
      const float2 factors = *reinterpret_cast<const float2*>(stage.factors[i]);
      float seen[kColumns];
      columns.See(k, seen);
      if constexpr (kResults) results.Take(columns);
      const float of_columns[kColumns] = {v.x, v.y};
      columns.Move(k, of_columns, factors.x, factors.y, seen);
      if (i + 2 < kStageTokens) LoadPart<kDim>(stage.rows[i + 2] + kDim, k);
      if constexpr (kResults) results.Next(row);
    };
    if (tokens == kStageTokens) {
#pragma unroll
      for (int i = 0; i < kStageTokens; ++i) take(i, keys[i % 2]);
    } else {
#pragma unroll 1
      for (int i = 0; i < tokens; i += 2) {
        take(i, keys[0]);
        if (i + 1 < tokens) take(i + 1, keys[1]);
      }
    }
    at = at == kStages - 1 ? 0 : at + 1;
  }
}

// Calls use(row, col) for four columns each of `rows` rows of inputs; each block has its columns.
template <typename Use>
__device__ __forceinline__ void ForInputs(const DeltaNetSpec& spec, const Part& part, int rows,
                                          const Use& use) {
  constexpr int kVectors = kSlice / kDeltaVector;
  const int kinds = IsFirstOfKeyHead(spec, part.value_head) ? 3 : 1;
  for (int n = static_cast<int>(threadIdx.x); n < kinds * rows * kVectors; n += kThreads) {
    const int kind = n / kVectors / rows;
    const int col = (kind == 0   ? part.cols.v
                     : kind == 1 ? part.cols.k + part.first
                                 : part.cols.q + part.first) +
                    n % kVectors * kDeltaVector;
    use(n / kVectors % rows, col);
  }
}

// Writes the inputs of the last tokens of `count`, which begin at `position`, to the ring.
// source(i, col): four columns of token i.
template <typename Source>
__device__ __forceinline__ void KeepInputs(const DeltaNetSpec& spec, const Part& part, float* ring,
                                           int position, int count, const Source& source) {
  const int kept = min(count, spec.conv);
  const int channels = DeltaChannels(spec);
  ForInputs(spec, part, kept, [&](int row, int col) {
    const int i = count - kept + row;
    VectorAt(ring + int64_t{(position + i) % spec.conv} * channels + col) = source(i, col);
  });
}

// Copies to another ring the inputs before `position` that are still in it `count` tokens later.
__device__ __forceinline__ void CopyInputs(const DeltaNetSpec& spec, const Part& part,
                                           const float* ring, int position, int count, float* to) {
  const int kept = min(max(spec.conv - count, 0), position);
  const int channels = DeltaChannels(spec);
  ForInputs(spec, part, kept, [&](int row, int col) {
    const int64_t at = int64_t{(position - kept + row) % spec.conv} * channels + col;
    VectorAt(to + at) = __ldcg(&VectorAt(ring + at));
  });
}

// The first of a lane's columns in memory.
template <int kDim>
__device__ __forceinline__ float* FirstColumn(const DeltaNetSpec& spec, const Part& part,
                                              float* ring) {
  const int column = part.first + static_cast<int>(threadIdx.x) / 32 * Columns<kDim>::kOfWarp +
                     Columns<kDim>::First();
  return DeltaMatrix(spec, ring, part.value_head) + int64_t{column} * kDim;
}

template <int kDim>
__device__ __forceinline__ void LoadColumns(const float* at, int position, Columns<kDim>& columns) {
  if (position == 0) {
    columns.Clear();
  } else {
    columns.Load(at);
  }
}

__device__ __forceinline__ Rows RowsOfTokens(const DeltaArgs& args, int value_head, int64_t first,
                                             int count) {
  const DeltaNetSpec& spec = args.spec;
  return {.convolved = args.convolved + first * DeltaChannels(spec),
          .stride = DeltaChannels(spec),
          .factors = args.factors + first * 2 * spec.value_heads + value_head,
          .factor_stride = 2 * spec.value_heads,
          .beta_offset = spec.value_heads,
          .count = count};
}
__device__ __forceinline__ Rows RowsOfDrafts(const DeltaNetSpec& spec, const DeltaDrafts& drafts,
                                             int64_t layer_offset, int value_head, int first,
                                             int count) {
  const float* const row = drafts.data + first * drafts.draft_floats + layer_offset;
  const int channels = DeltaChannels(spec);
  return {.convolved = row + channels,
          .stride = drafts.draft_floats,
          .factors = row + 2 * channels + value_head,
          .factor_stride = drafts.draft_floats,
          .beta_offset = spec.value_heads,
          .count = count};
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1) RuleKernel(const __grid_constant__ DeltaArgs args) {
  __shared__ __align__(16) Stage<kDim> stages[kStages];
  LaunchDependents();
  const DeltaNetSpec& spec = args.spec;
  const RunEntry run = args.runs.runs[blockIdx.y];
  if (run.tokens + run.drafts == 0) return;
  const Part part = Part::Of<kDim>(spec);
  WaitForDependency();
  Columns<kDim> columns;
  LoadColumns<kDim>(FirstColumn<kDim>(spec, part, DeltaRing(args.states, run.slot)),
                    run.first_position, columns);
  const int column = part.cols.v - 2 * DeltaKeySize(spec) +
                     static_cast<int>(threadIdx.x) / 32 * Columns<kDim>::kOfWarp +
                     Columns<kDim>::OutColumn();
  const int64_t values = DeltaValueSize(spec);
  Results<kDim> results = {.at = args.o + (run.first_token - 1) * values + column,
                           .stride = values};
  // Tokens up to each state that is saved, and then to the slot's own.
  int done = 0;
#pragma unroll 1
  for (int s = run.tokens > 0 ? 0 : run.saves + 1; s <= run.saves; ++s) {
    const RunSave save = s < run.saves ? args.runs.saves[run.first_save + s]
                                       : RunSave{.tokens = run.tokens, .state = run.slot};
    if (done < save.tokens) {
      const Rows tokens =
          RowsOfTokens(args, part.value_head, run.first_token + done, save.tokens - done);
      Advance(stages, part, tokens, columns, results);
    }
    done = save.tokens;
    float* const to = DeltaRing(args.states, save.state);
    columns.Store(FirstColumn<kDim>(spec, part, to));
    if (s < run.saves) {
      CopyInputs(spec, part, DeltaRing(args.states, run.slot), run.first_position, done, to);
    } else {
      // All have copied what they need of the slot's ring.
      __syncthreads();
    }
    KeepInputs(spec, part, to, run.first_position, done, [&](int i, int col) {
      return SumOfPartials<float4>(args.inputs, run.first_token + i, col);
    });
  }
  if (run.drafts > 0) {
    const Rows drafts = RowsOfDrafts(spec, args.drafts, args.drafts.layer_offset, part.value_head,
                                     run.first_draft, run.drafts);
    Advance(stages, part, drafts, columns, results);
  }
  results.Take(columns);
  // Tokens that follow one that is not finite are not either. All tokens have one slot.
  for (int i = max(results.first_bad, run.tokens - 1); i < run.tokens + run.drafts; ++i) {
    SetNotFinite(args, run.first_token + i);
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    ReplayKernel(const __grid_constant__ DeltaReplayArgs args, int64_t layer_state_floats,
                 int64_t layer_draft_floats) {
  __shared__ __align__(16) Stage<kDim> stages[kStages];
  LaunchDependents();
  const DeltaNetSpec& spec = args.spec;
  const DeltaReplayArgs::Replay& replay = args.of[blockIdx.y];
  const int layer = static_cast<int>(blockIdx.z);
  const Part part = Part::Of<kDim>(spec);
  float* const ring = DeltaRing(args.states, replay.slot) + layer * layer_state_floats;
  float* const at = FirstColumn<kDim>(spec, part, ring);
  const Rows rows =
      RowsOfDrafts(spec, args.drafts, args.drafts.layer_offset + layer * layer_draft_floats,
                   part.value_head, replay.first_draft, replay.drafts);
  WaitForDependency();
  Columns<kDim> columns;
  LoadColumns<kDim>(at, replay.position, columns);
  NoResults none;
  Advance(stages, part, rows, columns, none);
  columns.Store(at);
  KeepInputs(spec, part, ring, replay.position, replay.drafts, [&](int i, int col) {
    // u is before what the rule takes.
    return __ldcg(&VectorAt(rows.convolved - DeltaChannels(spec) + i * rows.stride + col));
  });
}

dim3 Grid(const DeltaNetSpec& spec, int sequences, int layers) {
  return dim3(spec.value_heads * spec.head_dim / kSlice, sequences, layers);
}

// Shared memory beside the stages, with which no SM takes more of so many blocks than it must.
int SpreadingBytes(const DeviceTraits& device, int blocks, int stage_bytes) {
  // The system reserves some for every block, and rounds up what a block has.
  constexpr int kReserved = 1024;
  constexpr int kRound = 128;
  const int in_each = (blocks + device.sms - 1) / device.sms;
  const int too_few = device.smem_sm / (in_each + 1) - kReserved;
  const int block_bytes = std::min(too_few / kRound * kRound + kRound, device.smem_block);
  return std::max(block_bytes - stage_bytes, 0);
}

template <int kDim>
cudaError_t LaunchRule(const DeltaArgs& args, const DeviceTraits& device, cudaStream_t stream) {
  const dim3 grid = Grid(args.spec, args.sequences, 1);
  constexpr int kBytes = kStages * static_cast<int>(sizeof(Stage<kDim>));
  const int bytes = SpreadingBytes(device, static_cast<int>(grid.x * grid.y), kBytes);
  // One limit for all launches.
  const cudaError_t error = cudaFuncSetAttribute(
      RuleKernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, device.smem_block - kBytes);
  if (error != cudaSuccess) return error;
  return LaunchInDecode(RuleKernel<kDim>, grid, kThreads, bytes, stream, args);
}

}  // namespace

cudaError_t LaunchDeltaRule(const DeltaArgs& args, const DeviceTraits& device,
                            cudaStream_t stream) {
  const DeltaNetSpec& spec = args.spec;
  if (!DeltaKernelsTake(spec) || args.inputs.rows % kDeltaVector != 0) {
    return cudaErrorInvalidValue;
  }
  return spec.head_dim == 128  ? LaunchRule<128>(args, device, stream)
         : spec.head_dim == 64 ? LaunchRule<64>(args, device, stream)
                               : LaunchRule<32>(args, device, stream);
}

cudaError_t LaunchDeltaReplay(const DeltaReplayArgs& args, cudaStream_t stream) {
  const DeltaNetSpec& spec = args.spec;
  if (!DeltaKernelsTake(spec) || args.replays > kMaxReplays) return cudaErrorInvalidValue;
  const auto kernel = spec.head_dim == 128  ? ReplayKernel<128>
                      : spec.head_dim == 64 ? ReplayKernel<64>
                                            : ReplayKernel<32>;
  return LaunchInDecode(kernel, Grid(spec, args.replays, args.layers), kThreads, 0, stream, args,
                        DeltaStateFloats(spec), DeltaDraftFloats(spec));
}

}  // namespace orcd::cuda
