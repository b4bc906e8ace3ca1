// Products of F16 weights and more than kFewTokens tokens, or with sums of partials.
//
//   Tile      a block of 8 warps computes 256 rows by 128 tokens, a warp 64 by 64: four warps of
//             rows, two of tokens. Partials: blockIdx.y is the split of K; otherwise a block
//             computes all splits. Blocks of a panel of 16 token tiles run row block after row
//             block, so that those which run at the same time share weights and activations.
//   Pipeline  a ring in shared memory of 2 to 4 stages, by what the GPU has, of 64 columns, filled
//             by cp.async: weights, row tiles apart by 16 bytes more than their size, then
//             activations. One barrier a stage; the ring runs on from one split to the next.
//   Loop      ldmatrix of a step of 16 columns runs during the mma.m16n8k16 of the step before;
//             two sets of fragments in registers. F32 sums.
//   Rows      a warp's rows are dealt to the fragments' matrices of 8 rows so that a lane has four
//             rows side by side, and those of the gate with those of up: row i of matrix r is row
//             16 (i / 2) + 8 (r / 4) + 4 (i % 2) + r % 4. A row's sums are the same in any matrix.
//   Epilogue  straight from registers, four rows at a time: partials; sums of the splits, which
//             are added up in y, in order, each by the thread that has its part; or SwiGLU.
//   Floor     2 * rows * columns * tokens FLOP; weights once from memory for each panel.
#include <algorithm>

#include "cuda/kernels/common/dequantise.cuh"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/product_tiles.cuh"
#include "cuda/kernels/portable/gemm.cuh"

namespace orcd::cuda::portable::gemm {
namespace {

// Warps along rows and along tokens, and the rows, or tokens, of each.
constexpr int kRowWarps = 4;
constexpr int kTokenWarps = 2;
constexpr int kWarpSide = 64;
constexpr int kThreads = kRowWarps * kTokenWarps * 32;
constexpr int kTokens = kTokenWarps * kWarpSide;
constexpr int kTilesAWarp = kWarpSide / kTileRows;
constexpr int kBlockTiles = kRowWarps * kTilesAWarp;
// Token tiles of a panel.
constexpr int kPanelTiles = 16;

// A stage: row tiles as they are in memory, kTileStride apart so that rows of four tiles are in
// different banks; then groups of eight tokens as they are in memory.
constexpr int kTileStride = kF16TileBytes + 16;
constexpr int kWeightBytes = kBlockTiles * kTileStride;
constexpr int kStageBytes = kWeightBytes + XBytes(kTokens);
constexpr int kMinStages = 2;
constexpr int kMaxStages = 4;

// A thread copies vectors of 16 bytes of one row tile and of one group of tokens, every 16th.
constexpr int kThreadsATile = kThreads / kBlockTiles;
static_assert(kThreadsATile == 16 && kThreads / (kTokens / 8) == kThreadsATile);
constexpr int kCopyStride = kThreadsATile * 16;
constexpr int kWeightCopies = kF16TileBytes / kCopyStride;
constexpr int kXCopies = XBytes(8) / kCopyStride;

// Row tiles and tokens of a block.
struct BlockTile {
  int first_tile;
  int first_token;

  static __device__ __forceinline__ BlockTile Of(const Params& args) {
    const int row_blocks = (args.row_tiles + kBlockTiles - 1) / kBlockTiles;
    const int token_tiles = (args.tokens + kTokens - 1) / kTokens;
    const auto block = static_cast<int>(blockIdx.x);
    const int panel = block / (kPanelTiles * row_blocks);
    const int in_panel = block % (kPanelTiles * row_blocks);
    const int panel_tiles = min(kPanelTiles, token_tiles - panel * kPanelTiles);
    return {in_panel / panel_tiles * kBlockTiles,
            (panel * kPanelTiles + in_panel % panel_tiles) * kTokens};
  }
};

// Copies stages in order.
class Producer {
 public:
  // From stage `begin` (of 64 columns) on. `shared`: the ring, of `stages` stages.
  __device__ __forceinline__ Producer(const Params& args, const BlockTile& block, int begin,
                                      uint32_t shared, int stages)
      : x_stride_(XBytes(args.x.tokens)), ring_(shared), end_(shared + stages * kStageBytes) {
    const int thread = static_cast<int>(threadIdx.x);
    const int part = thread / kThreadsATile;
    const int offset = thread % kThreadsATile * 16;
    // Tiles and tokens beyond the last are copies of it; their sums are not stored.
    int tile = min(block.first_tile + part, args.row_tiles - 1);
    TiledMatrix matrix = FindTile(args, tile);
    matrix.format = TileFormat::kF16;
    weights_ = matrix.data + tile * matrix.tile_bytes() + int64_t{begin} * kF16TileBytes + offset;
    const int group = min(block.first_token / 8 + part, args.x.tokens / 8 - 1);
    x_ = reinterpret_cast<const uint8_t*>(args.x.data) + begin * x_stride_ + XBytes(8) * group +
         offset;
    to_weights_ = part * kTileStride + offset;
    to_x_ = kWeightBytes + part * XBytes(8) + offset;
  }

  // Copies half kHalf of the next stage.
  template <int kHalf>
  __device__ __forceinline__ void CopyHalf() {
    constexpr int kWeights = kWeightCopies / 2;
    constexpr int kXs = kXCopies / 2;
#pragma unroll
    for (int i = kHalf * kWeights; i < (kHalf + 1) * kWeights; ++i) {
      CopyAsync(ring_ + to_weights_ + i * kCopyStride, weights_ + i * kCopyStride);
    }
#pragma unroll
    for (int i = kHalf * kXs; i < (kHalf + 1) * kXs; ++i) {
      CopyAsync(ring_ + to_x_ + i * kCopyStride, x_ + i * kCopyStride);
    }
  }
  __device__ __forceinline__ void Next(uint32_t shared) {
    weights_ += kF16TileBytes;
    x_ += x_stride_;
    ring_ += kStageBytes;
    if (ring_ == end_) ring_ = shared;
  }

 private:
  const uint8_t* weights_;
  const uint8_t* x_;
  const int64_t x_stride_;
  // The stage that is copied next, and the end of the ring.
  uint32_t ring_;
  const uint32_t end_;
  int to_weights_;
  int to_x_;
};

// Operands of a step of 16 columns: of four fragments of rows, and of four pairs of groups of
// tokens.
struct Fragments {
  uint32_t a[kTilesAWarp][4];
  uint32_t b[kWarpSide / 16][4];

  // `weights`, `x`: the lane's addresses in the stage.
  __device__ __forceinline__ void Load(uint32_t weights, uint32_t x, int step) {
#pragma unroll
    for (int m = 0; m < kTilesAWarp; ++m) {
      // Matrices r = 2m and 2m + 1: 8 (r / 4) + r % 4 rows further.
      LoadMatrices(weights + step * 256 + m / 2 * 1024 + m % 2 * 32, a[m]);
    }
#pragma unroll
    for (int n = 0; n < kWarpSide / 16; ++n) {
      LoadMatrices(x + step * 256 + n * XBytes(16), b[n]);
    }
  }
};

// Sums of a warp: matrix 2m + h and token 8n + 2t + e are c[m][n][2h + e] of lane 4g + t.
using Sums = float[kTilesAWarp][kWarpSide / 8][4];

__device__ __forceinline__ void Multiply(const Fragments& f, Sums& c) {
#pragma unroll
  for (int n = 0; n < kWarpSide / 16; ++n) {
#pragma unroll
    for (int m = 0; m < kTilesAWarp; ++m) {
      Mma(c[m][2 * n], f.a[m], f.b[n][0], f.b[n][1]);
      Mma(c[m][2 * n + 1], f.a[m], f.b[n][2], f.b[n][3]);
    }
  }
}

// Returns when all but the `groups` latest groups of copies have arrived, of up to kMaxStages - 2.
__device__ __forceinline__ void AwaitAllBut(int groups) {
  static_assert(kMaxStages == 4);
  if (groups == 2) {
    AwaitCopies<2>();
  } else if (groups == 1) {
    AwaitCopies<1>();
  } else {
    AwaitCopies<0>();
  }
}

// Stores four rows of a token, or adds to them. Only the same thread adds to an address, in program
// order.
__device__ __forceinline__ void AddRows(float4* to, float4 value) {
#if __CUDA_ARCH__ >= 900
  // As tensor cores' sums of products of F16 numbers are never subnormal, `red` adds as `add` does.
  AddInMemory(to, value);
#else
  const float4 sum = __ldcg(to);
  __stcg(to, make_float4(sum.x + value.x, sum.y + value.y, sum.z + value.z, sum.w + value.w));
#endif
}

// A lane's part of the epilogue.
class Epilogue {
 public:
  // `warp_tile`: the warp's first row tile.
  __device__ __forceinline__ Epilogue(const Params& args, int warp_tile, int first_token)
      : args_(args) {
    int lane = static_cast<int>(threadIdx.x % 32);
    // Lets the compiler keep the addresses that follow from it in no registers before.
    asm volatile("" : "+r"(lane));
    const int g = lane / 4;
    tile_ = warp_tile + g / 2;
    row_ = tile_ * kTileRows + g % 2 * 4;
    token_ = first_token + lane % 4 * 2;
    factor_ = ResultFactor(MatrixOf(args, min(tile_, args.row_tiles - 1)));
  }

  // Partial sums of split `split`; `adds`: to those of the splits before.
  __device__ __forceinline__ void Store(const Sums& c, int split, bool adds) const {
    const int stride = args_.store.stride;
    const bool aligned =
        stride % 4 == 0 && reinterpret_cast<uint64_t>(args_.store.y) % sizeof(float4) == 0;
    float* to = args_.store.y +
                (args_.store.sum ? 0 : int64_t{split} * args_.partials_tokens * stride) +
                int64_t{token_} * stride + row_;
#pragma unroll
    for (int n = 0; n < kWarpSide / 8; ++n, to += int64_t{8} * stride) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (token_ + 8 * n + e >= args_.tokens) return;
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          const float values[4] = {c[2 * q][n][e] * factor_, c[2 * q][n][2 + e] * factor_,
                                   c[2 * q + 1][n][e] * factor_, c[2 * q + 1][n][2 + e] * factor_};
          StoreRows(values, to + e * stride + 8 * q, args_.rows - row_ - 8 * q, aligned, adds);
        }
      }
    }
  }

  __device__ __forceinline__ void StoreUnits(const Sums& c) const {
    if (tile_ >= args_.row_tiles) return;
#pragma unroll
    for (int n = 0; n < kWarpSide / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = token_ + 8 * n + e;
        if (token >= args_.tokens) return;
        // Matrices 0 to 3 have the gate's rows, 4 to 7 those of up.
        const auto pair = [&](int m) {
          return AsBits(__halves2half2(
              Unit(args_, c[m][n][e], c[m + 2][n][e], factor_, -0.0f, -0.0f),
              Unit(args_, c[m][n][2 + e], c[m + 2][n][2 + e], factor_, -0.0f, -0.0f)));
        };
        *reinterpret_cast<uint2*>(args_.swiglu.out.data +
                                  args_.swiglu.out.Index(token, tile_ * 8 + row_ % 8)) =
            make_uint2(pair(0), pair(1));
      }
    }
  }

 private:
  // Stores up to four rows, of `left` that there are.
  static __device__ __forceinline__ void StoreRows(const float (&values)[4], float* to, int left,
                                                   bool aligned, bool adds) {
    if (aligned && left >= 4) {
      const float4 vector = make_float4(values[0], values[1], values[2], values[3]);
      if (adds) {
        AddRows(reinterpret_cast<float4*>(to), vector);
      } else {
        __stcg(reinterpret_cast<float4*>(to), vector);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < left) to[i] = adds ? __ldcg(to + i) + values[i] : values[i];
    }
  }

  const Params& args_;
  int tile_;
  int row_;
  int token_;
  float factor_;
};

__global__ void __launch_bounds__(kThreads, 1)
    F16Kernel(const __grid_constant__ Params args, int stages) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  const uint32_t shared = SharedAddress(shared_bytes);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const BlockTile block = BlockTile::Of(args);
  const int cols = args.matrices[0].cols;
  const bool all_splits = args.store.sum;
  const int first_split = all_splits ? 0 : static_cast<int>(blockIdx.y);
  const int end_split = all_splits ? args.splits : first_split + 1;
  const int end = SplitBegin(cols, args.splits, end_split) / kActivationCols;
  int at = SplitBegin(cols, args.splits, first_split) / kActivationCols;
  LaunchDependents();
  WaitForDependency();

  Producer producer(args, block, at, shared, stages);
  int copied = at;
  for (int i = 0; i < stages - 1; ++i) {
    if (copied < end) {
      producer.CopyHalf<0>();
      producer.CopyHalf<1>();
      producer.Next(shared);
      ++copied;
    }
    CommitCopies();
  }

  // The lane's offsets in a stage. Lane 8k + i passes row i of the k-th of four matrices: of
  // weights, 2m and 2m + 1 with the first eight columns of a step, and then with the next eight;
  // of activations, the first and the next eight columns of eight tokens, and then of the next
  // eight.
  const int warp_row = warp % kRowWarps;
  const int warp_token = warp / kRowWarps;
  const int row = lane % 8;
  const uint32_t to_weights = (warp_row * kTilesAWarp + row / 2) * kTileStride + row % 2 * 64 +
                              lane / 8 % 2 * 16 + lane / 16 * 128;
  const uint32_t to_x = kWeightBytes + warp_token * XBytes(kWarpSide) + lane / 16 * XBytes(8) +
                        lane / 8 % 2 * 128 + row * 16;
  const uint32_t ring_end = shared + stages * kStageBytes;
  uint32_t stage = shared;

  Fragments fragments[2];
  AwaitAllBut(stages - 2);
  __syncthreads();
  fragments[0].Load(stage + to_weights, stage + to_x, 0);
  for (int split = first_split; split < end_split; ++split) {
    Sums c = {};
    const int split_end = SplitBegin(cols, args.splits, split + 1) / kActivationCols;
#pragma unroll 1
    for (; at < split_end; ++at) {
      const bool copies = copied < end;
#pragma unroll
      for (int step = 0; step < kGroupSteps; ++step) {
        if (step + 1 < kGroupSteps) {
          fragments[(step + 1) % 2].Load(stage + to_weights, stage + to_x, step + 1);
        } else {
          // The next stage has arrived, and all warps have read this one.
          AwaitAllBut(stages - 2);
          __syncthreads();
          stage += kStageBytes;
          if (stage == ring_end) stage = shared;
          fragments[0].Load(stage + to_weights, stage + to_x, 0);
        }
        if (step == 0 && copies) producer.CopyHalf<0>();
        if (step == 1) {
          if (copies) {
            producer.CopyHalf<1>();
            producer.Next(shared);
            ++copied;
          }
          CommitCopies();
        }
        Multiply(fragments[step % 2], c);
      }
    }
    const Epilogue epilogue(args, block.first_tile + warp_row * kTilesAWarp,
                            block.first_token + warp_token * kWarpSide);
    if (args.swiglu.out.data != nullptr) {
      epilogue.StoreUnits(c);
    } else {
      epilogue.Store(c, split, split > first_split);
    }
  }
}

}  // namespace

cudaError_t LaunchOfF16(const Params& args, const DeviceTraits& device, cudaStream_t stream) {
  const int stages = std::min(kMaxStages, device.smem_block / kStageBytes);
  if (args.matrices[0].format != TileFormat::kF16 || args.expert_tiles != nullptr ||
      stages < kMinStages) {
    return cudaErrorInvalidValue;
  }
  const int row_blocks = (args.row_tiles + kBlockTiles - 1) / kBlockTiles;
  const int token_tiles = (args.tokens + kTokens - 1) / kTokens;
  return Launch(F16Kernel, dim3(row_blocks * token_tiles, args.store.sum ? 1 : args.splits),
                kThreads, stages * kStageBytes, stream, args, stages);
}

cudaError_t PrepareOfF16(const DeviceTraits& device) {
  return cudaFuncSetAttribute(F16Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              device.smem_block);
}

}  // namespace orcd::cuda::portable::gemm
