// How results leave the kernel of gemm_f16.cu: through shared memory, of which each warpgroup has a
// part, by bulk copies that end while it multiplies on. c: a warpgroup's sums of 64 rows, as wgmma
// leaves them.
#ifndef ORCD_CUDA_KERNELS_GEMM_F16_RESULTS_CUH_
#define ORCD_CUDA_KERNELS_GEMM_F16_RESULTS_CUH_

#include <cuda_fp16.h>

#include "cuda/kernels/gemm.cuh"

namespace orcd::cuda::gemm {

constexpr int kGroupRows = kTilesAGroup * kTileRows;

// Of this thread's bulk copies from shared memory, all: when what they read may be written, and
// when they have ended.
__device__ __forceinline__ void AwaitBulkReads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void AwaitBulkStores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Gated results, 8 units of each row tile: a warpgroup's go through shared memory, where a core
// matrix is written at once, and leave it as bulk copies, which end while it multiplies on.
template <int kTokens>
__device__ __forceinline__ void StoreGated(const MatmulArgs& args, int first_tile, int tiles,
                                           int first_token, int group, uint8_t* out, float factor,
                                           const float (&c)[kTokens / 2]) {
  constexpr int kTokenGroups = kTokens / 8;
  constexpr int kGroupBytes = kTilesAGroup * 128;
  // In memory, halves from eight tokens to the next.
  constexpr int kGroupCoreMatrices = 8 * kActivationCols;
  // Tiles whose units are 64 columns, which lie together.
  constexpr int kTilesTogether = kActivationCols / 8;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  const uint32_t mine = SharedAddress(out) + group * kTokenGroups * kGroupBytes;
  // What was put there before has been read.
  if (warp == 0) AwaitBulkReads();
  GroupSync(group);
#pragma unroll
  for (int j = 0; j < kTokenGroups; j += 4) {
    uint32_t halves[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const v = &c[4 * (j + i)];
      halves[i] =
          AsBits(__halves2half2(GatedUnit(v[0], v[2], factor), GatedUnit(v[1], v[3], factor)));
    }
    const uint32_t address = mine + (j + lane / 8) * kGroupBytes + warp * 128 + lane % 8 * 16;
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
        "r"(halves[0]), "r"(halves[1]), "r"(halves[2]), "r"(halves[3])
        : "memory");
  }
  SharedStoreFence();
  GroupSync(group);
  if (tiles <= 0) return;
  // Eight tokens are a core matrix; those that are fewer are written one by one.
  const int tokens = min(kTokens, args.tokens - first_token);
  const int whole = tokens / 8;
  const int first_part = min(tiles, kTilesTogether - first_tile % kTilesTogether);
  const auto at = [&](int tile) {
    return args.gated.data + args.gated.Index(first_token, (first_tile + tile) * 8);
  };
  if (warp == 0) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int tile = part == 0 ? 0 : first_part;
      const int bytes = (part == 0 ? first_part : tiles - first_part) * 128;
      if (lane < whole && bytes > 0) {
        BulkStore(at(tile) + lane * kGroupCoreMatrices, mine + lane * kGroupBytes + tile * 128,
                  bytes);
      }
    }
    BulkCommit();
  } else if (warp == 1 && lane % 8 < tokens % 8 && lane / 8 < tiles) {
    const int from = whole * kGroupBytes + lane * 16;
    *reinterpret_cast<uint4*>(at(lane / 8) + whole * kGroupCoreMatrices + lane % 8 * 8) =
        *reinterpret_cast<const uint4*>(out + group * kTokenGroups * kGroupBytes + from);
  }
}

// What leaves at a time of the sums of segments, and the bytes of a token, 64 rows, in shared
// memory: so many more that no two rows of what a warp stores at once lie in one bank.
constexpr int kStagedTokens = 128;
constexpr int kStagedStride = kGroupRows * 4 + 16;
constexpr int kStagedBytes = kStagedTokens * kStagedStride;

// A warpgroup's sum of the segments of a piece of kTokens tokens. That of the first kStagedTokens
// is in registers; that of others, for which there are none, in shared memory, each thread's own,
// from where it is taken before results go through the same memory.
template <int kTokens>
class SegmentSums {
 public:
  // `staged`: kStagedBytes, the warpgroup's.
  __device__ __forceinline__ explicit SegmentSums(uint8_t* staged)
      : staged_(staged), group_(threadIdx.x / 128), thread_(threadIdx.x % 128) {
    // What is added to -0 stays what it is.
#pragma unroll
    for (float& value : sum_) value = -0.0f;
  }

  // Adds a segment's, of which the last one becomes the sum.
  __device__ __forceinline__ void Add(float (&c)[kTokens / 2], bool first, bool last) {
    if (first) {
      // What left before has been read.
      AwaitBulkReads();
      GroupSync(group_);
    }
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) sum_[i] += c[i];
    float4* const own = reinterpret_cast<float4*>(staged_) + thread_;
#pragma unroll
    for (int i = kRegisters; i < kTokens / 2; i += 4) {
      float4& before = own[(i - kRegisters) / 4 * 128];
      if (!first) {
        const float4 value = before;
        c[i] = value.x + c[i];
        c[i + 1] = value.y + c[i + 1];
        c[i + 2] = value.z + c[i + 2];
        c[i + 3] = value.w + c[i + 3];
      }
      if (!last) before = make_float4(c[i], c[i + 1], c[i + 2], c[i + 3]);
    }
  }

  // To rows `first_row`... of y, or added to those of the residual: the memory adds, each value
  // once; as factors are powers of two, what comes of it is what a fused multiply-add makes, but
  // that subnormal numbers count as zeros: products of F16 numbers have none. `c`: as the last Add
  // left it.
  __device__ __forceinline__ void Store(const MatmulArgs& args, int first_row, int rows,
                                        int first_token, float factor,
                                        const float (&c)[kTokens / 2]) {
    const bool adds = args.residual != nullptr;
    if (adds) factor *= args.residual_scale;
    const int warp = thread_ / 32;
    const int lane = thread_ % 32;
    uint8_t* const mine =
        staged_ + lane % 4 * 2 * kStagedStride + (warp * kTileRows + lane / 4) * 4;
    const int bytes = min(min(rows, kGroupRows), args.y_rows - first_row) * 4;
#pragma unroll
    for (int part = 0; part < kTokens / kStagedTokens; ++part) {
      if (part > 0) AwaitBulkReads();
      GroupSync(group_);
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) {
        // Token 8j + 2t + i % 2, row g + 8 (i / 2).
        const int at = (i / 4 * 8 + i % 2) * kStagedStride + i % 4 / 2 * 8 * 4;
        *reinterpret_cast<float*>(mine + at) =
            (part == 0 ? sum_[i] : c[(part * kRegisters + i) % (kTokens / 2)]) * factor;
      }
      SharedStoreFence();
      GroupSync(group_);
      const int token = first_token + part * kStagedTokens + thread_;
      if (token < args.tokens && bytes > 0) {
        float* const to =
            (adds ? args.residual : args.y) + int64_t{token} * args.y_stride + first_row;
        const uint32_t from = SharedAddress(staged_ + thread_ * kStagedStride);
        if (adds) {
          BulkAdd(to, from, bytes);
        } else {
          BulkStore(to, from, bytes);
        }
      }
      BulkCommit();
    }
  }

 private:
  static constexpr int kRegisters = kStagedTokens / 2;
  static_assert(kTokens == kStagedTokens || kTokens == 2 * kStagedTokens);

  uint8_t* const staged_;
  const int group_;
  const int thread_;
  float sum_[kRegisters];
};

}  // namespace orcd::cuda::gemm

#endif  // ORCD_CUDA_KERNELS_GEMM_F16_RESULTS_CUH_
