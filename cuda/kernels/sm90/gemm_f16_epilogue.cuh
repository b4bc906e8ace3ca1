// Epilogue of gemm_f16.cu for sums of partials: through shared memory, of which each warpgroup has
// a part, so that each warp's stores are contiguous; and the stream-K fix-up between two blocks. c:
// a warpgroup's accumulator of 64 rows, as wgmma leaves it.
#ifndef ORCD_CUDA_KERNELS_SM90_GEMM_F16_EPILOGUE_CUH_
#define ORCD_CUDA_KERNELS_SM90_GEMM_F16_EPILOGUE_CUH_

#include <cuda_fp16.h>

#include "cuda/kernels/sm90/gemm.cuh"

namespace orcd::cuda::gemm {

constexpr int kGroupRows = kTilesAGroup * kTileRows;

// Tokens that the epilogue stages at a time, and the bytes of a token's 64 rows in shared memory:
// padded so that a warp's stores have no bank conflicts.
constexpr int kStagedTokens = 128;
constexpr int kStagedStride = kGroupRows * 4 + 16;
constexpr int kStagedBytes = kStagedTokens * kStagedStride;

// Stream-K workspace of one warpgroup: its partial sum, which another warpgroup adds to its own.
// `index` counts the warpgroups that leave one.
struct StreamKSum {
  // 32 vectors of each thread; vectors of consecutive threads are adjacent.
  static constexpr int kVectors = 32;
  static_assert(kStreamKBytes == kGroups * kVectors * 128 * sizeof(float4));

  float4* sums;
  int32_t* ready;

  __device__ __forceinline__ StreamKSum(const StreamKWorkspace& all, int index)
      : sums(reinterpret_cast<float4*>(all.sums) + int64_t{index} * (kVectors * 128) +
             threadIdx.x % 128),
        ready(all.ready + index) {}
};

// A warpgroup's sum of the splits of a tile of kTokens tokens. The first kStagedTokens tokens are
// summed in registers. Registers do not suffice for the others: their sum is in shared memory, each
// thread's own, until the last split moves it to registers and the epilogue reuses the memory.
template <int kTokens>
class SplitKSum {
 public:
  // `staged`: kStagedBytes of the warpgroup's shared memory.
  __device__ __forceinline__ explicit SplitKSum(uint8_t* staged)
      : staged_(staged), group_(threadIdx.x / 128), thread_(threadIdx.x % 128) {
    // x + -0 is x for every x.
#pragma unroll
    for (float& value : sum_) value = -0.0f;
  }

  // Adds the accumulator of a split; after the last split, c holds the sum of the tokens that
  // are not in registers.
  __device__ __forceinline__ void Add(float (&c)[kTokens / 2], bool first, bool last) {
    // The epilogue of the tile before has read the memory.
    if (first) GroupSync(group_);
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

  // After the last Add: writes the sum to the workspace for another warpgroup, and sets its flag.
  __device__ __forceinline__ void StoreStreamK(const StreamKSum& to,
                                               const float (&c)[kTokens / 2]) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; i += 4) {
      const float* const from = i < kRegisters ? &sum_[i] : &c[i];
      __stcg(to.sums + i / 4 * 128, make_float4(from[0], from[1], from[2], from[3]));
    }
    __threadfence();
    GroupSync(group_);
    if (thread_ == 0) StoreRelease(to.ready, 1);
  }

  // Stream-K fix-up: waits for another warpgroup's partial sum and adds this one's to it. `last`:
  // the last Add has been called.
  __device__ __forceinline__ void FixUp(const StreamKSum& from, float (&c)[kTokens / 2],
                                        bool last) {
    if (thread_ == 0) {
      while (LoadAcquire(from.ready) == 0) {
      }
    }
    GroupSync(group_);
    float4* const own = reinterpret_cast<float4*>(staged_) + thread_;
#pragma unroll
    for (int i = 0; i < kTokens / 2; i += 4) {
      const float4 sum = __ldcg(from.sums + i / 4 * 128);
      if (i < kRegisters) {
        AddTo(sum, &sum_[i]);
      } else if (last) {
        AddTo(sum, &c[i]);
      } else {
        float4& mine = own[(i - kRegisters) / 4 * 128];
        float added[4] = {mine.x, mine.y, mine.z, mine.w};
        AddTo(sum, added);
        mine = make_float4(added[0], added[1], added[2], added[3]);
      }
    }
    // Resets the flag for the next launch.
    GroupSync(group_);
    if (thread_ == 0) *from.ready = 0;
  }

  // Stores to rows `first_row`... of y, or adds to those of the residual. There `red` adds each
  // value once, in memory: as factors are powers of two, the result is that of a fused
  // multiply-add, except that subnormal numbers count as zeros, and products of F16 numbers have
  // none. `c`: as the last Add left it.
  __device__ __forceinline__ void Store(const MatmulParams& args, int first_row, int rows,
                                        int first_token, float factor,
                                        const float (&c)[kTokens / 2]) {
    const bool adds = args.add.residual != nullptr;
    if (adds) factor *= args.add.scale;
    // In the epilogue 16 threads store four rows of a token each.
    const int row = thread_ % kThreadsAToken * 4;
    const int token = first_token + thread_ / kThreadsAToken;
    float* to = (adds ? args.add.residual : args.store.y) + int64_t{token} * args.store.stride +
                first_row + row;
    // Number of tokens from there on.
    int left = row < rows && first_row + row < args.rows ? args.tokens - token : 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      GroupSync(group_);
      Stage(part, factor, c);
      GroupSync(group_);
      if (adds) {
        StoreStaged(to, left, args.store.stride,
                    [](float4* at, float4 value) { AddInMemory(at, value); });
      } else {
        StoreStaged(to, left, args.store.stride,
                    [](float4* at, float4 value) { __stcg(at, value); });
      }
      to += int64_t{kStagedTokens} * args.store.stride;
      left -= kStagedTokens;
    }
  }

  // Parts in which the epilogue stages a sum.
  static constexpr int kParts = kTokens / kStagedTokens;
  // Stages kStagedTokens tokens, from part * kStagedTokens on, in shared memory, [token][row].
  __device__ __forceinline__ void Stage(int part, float factor, const float (&c)[kTokens / 2]) {
    const int warp = thread_ / 32;
    const int lane = thread_ % 32;
    uint8_t* const mine =
        staged_ + lane % 4 * 2 * kStagedStride + (warp * kTileRows + lane / 4) * 4;
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      // Token 8j + 2t + i % 2, row g + 8 (i / 2).
      const int at = (i / 4 * 8 + i % 2) * kStagedStride + i % 4 / 2 * 8 * 4;
      *reinterpret_cast<float*>(mine + at) =
          (part == 0 ? sum_[i] : c[(part * kRegisters + i) % (kTokens / 2)]) * factor;
    }
  }

 private:
  static constexpr int kRegisters = kStagedTokens / 2;
  static constexpr int kThreadsAToken = kGroupRows / 4;

  static __device__ __forceinline__ void AddTo(const float4& sum, float* values) {
    values[0] = sum.x + values[0];
    values[1] = sum.y + values[1];
    values[2] = sum.z + values[2];
    values[3] = sum.w + values[3];
  }

  // Applies `put` to this thread's rows of every kTokensAtOnce-th staged token: destinations from
  // `to` on, of `left` tokens.
  template <typename Put>
  __device__ __forceinline__ void StoreStaged(float* to, int left, int stride,
                                              const Put& put) const {
    constexpr int kTokensAtOnce = 128 / kThreadsAToken;
    constexpr int kTogether = 4;
    const uint8_t* const from =
        staged_ + thread_ / kThreadsAToken * kStagedStride + thread_ % kThreadsAToken * 16;
#pragma unroll
    for (int i = 0; i < kStagedTokens; i += kTokensAtOnce * kTogether) {
      float4 values[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        values[j] =
            *reinterpret_cast<const float4*>(from + (i + j * kTokensAtOnce) * kStagedStride);
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (i + j * kTokensAtOnce < left) put(reinterpret_cast<float4*>(to), values[j]);
        to += kTokensAtOnce * stride;
      }
    }
  }
  static_assert(kTokens == kStagedTokens || kTokens == 2 * kStagedTokens);

  uint8_t* const staged_;
  const int group_;
  const int thread_;
  float sum_[kRegisters];
};

}  // namespace orcd::cuda::gemm

#endif  // ORCD_CUDA_KERNELS_SM90_GEMM_F16_EPILOGUE_CUH_
