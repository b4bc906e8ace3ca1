// RoPE epilogue of gemm_f16.cu: queries, keys and values straight from the QKV product. A block has
// all rows of a head, or of two, so pairs are rotated from the sums staged in shared memory.
#ifndef ORCD_CUDA_KERNELS_SM90_GEMM_F16_ROPE_EPILOGUE_CUH_
#define ORCD_CUDA_KERNELS_SM90_GEMM_F16_ROPE_EPILOGUE_CUH_

#include "cuda/kernels/portable/head_values.cuh"
#include "cuda/kernels/portable/rope.cuh"
#include "cuda/kernels/sm90/gemm.cuh"
#include "cuda/kernels/sm90/gemm_f16_epilogue.cuh"

namespace orcd::cuda::gemm {

// Position of a token of a tile, -1 if there is no such token, and its KV block.
struct RopeToken {
  int position;
  int block;

  RopeToken() = default;
  // `cached`: true if the block is needed, for rows of keys or values.
  __device__ __forceinline__ RopeToken(const MatmulParams& args, int token, bool cached) {
    position = -1;
    block = 0;
    if (token >= args.tokens) return;
    const TokenEntry entry = args.qkv.rope.step.tokens[token];
    if (entry.sequence < 0) return;
    position = entry.position;
    if (cached) block = CacheBlock(args.qkv.rope, entry.sequence, position);
  }
};

// The pairs of a tile that one thread computes, all of the same columns. Threads beside each other
// have adjacent columns.
class RopeEpilogue {
 public:
  // `first_row`: the tile's, in the product. `tokens`: those of the tile, kTokens or more; written
  // before the first ConsumersSync. `staged`: kStagedBytes of each warpgroup.
  __device__ __forceinline__ RopeEpilogue(const MatmulParams& args, int first_row, int first_token,
                                          const RopeToken* tokens, const uint8_t* staged)
      : args_(args.qkv.rope) {
    const int half_dim = args_.qkv.head_dim / 2;
    const int at_once = static_cast<int>(threadIdx.x) / kQuads;
    // The thread's first column in every token, counted over the first halves of the block's heads.
    const int pair = static_cast<int>(threadIdx.x) % kQuads * kPairs;
    const int row = (pair & -half_dim) + pair;
    head_ = (args.qkv.first_row + first_row + row) >> Log2(args_.qkv.head_dim);
    col_ = pair & (half_dim - 1);
    const bool query = head_ < args_.qkv.heads;
    rotates_ = head_ < args_.qkv.heads + args_.qkv.kv_heads;
    hi_lo_ = query && args_.qkv.query_split != nullptr && IsSplit(args_.qkv, head_);
    norm_ = !rotates_ ? nullptr : query ? args_.qkv.q_norm : args_.qkv.k_norm;
    token_ = first_token + at_once;
    tokens_ = tokens + at_once;
    const auto at = [&](int of_row) {
      return staged + of_row / kGroupRows * kStagedBytes + of_row % kGroupRows * 4 +
             at_once * kStagedStride;
    };
    staged_[0] = at(row);
    staged_[1] = at(row + half_dim);
  }

  // Stores the kStagedTokens tokens of part `part`, after they have been staged.
  __device__ __forceinline__ void StoreStaged(int part) const {
    if (head_ >= args_.qkv.heads + 2 * args_.qkv.kv_heads) return;
    // The bias or, where the head has a norm, the norm's weights.
    PairBias bias;
    if (norm_ != nullptr) {
      LoadFour(norm_ + col_, bias.bias[0]);
      LoadFour(norm_ + col_ + args_.qkv.head_dim / 2, bias.bias[1]);
    } else if (args_.qkv.bias != nullptr) {
      bias.Load(args_.qkv, head_, col_);
    } else {
      bias.Clear();
    }
#pragma unroll 1
    for (int first = 0; first < kTokens; first += kTogether) {
      Together now;
      Load(part * kTokens + first, now);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (now.token[i].position < 0) continue;
        Store(part * kTokens + first + i, (first + i) * (kTokensAtOnce * kStagedStride), bias,
              now.token[i], now.angles[i]);
      }
    }
  }

 private:
  // Groups of four pairs in a block's rows.
  static constexpr int kQuads = kGroups * kGroupRows / 2 / kPairs;
  static constexpr int kTokensAtOnce = kGroups * 128 / kQuads;
  // Tokens of a thread.
  static constexpr int kTokens = kStagedTokens / kTokensAtOnce;
  // Tokens whose angles are loaded at once.
  static constexpr int kTogether = 4;

  struct Together {
    RopeToken token[kTogether];
    PairAngles angles[kTogether];
  };

  // The norm of a head's values (PartValues::Finish); all threads that have the head.
  __device__ __forceinline__ void Normalise(const PairBias& weights,
                                            float (&values)[2][kPairs]) const {
    const float squares = SquaresOfHead(SquaresOf(values), args_.qkv.head_dim);
    const float scale = RmsScale(squares, args_.qkv.head_dim, args_.qkv.norm_eps);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        values[half][i] = values[half][i] * scale * weights.bias[half][i];
      }
    }
  }

  __device__ __forceinline__ void Load(int first, Together& to) const {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) to.token[i] = tokens_[(first + i) * kTokensAtOnce];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (to.token[i].position >= 0) to.angles[i].Load(args_.qkv, to.token[i].position, col_);
    }
  }
  // Stores the thread's `index`-th token, which is staged `at` bytes behind the first one.
  __device__ __forceinline__ void Store(int index, int at, const PairBias& bias,
                                        const RopeToken& place, const PairAngles& angles) const {
    float sums[2][kPairs];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 four = *reinterpret_cast<const float4*>(staged_[half] + at);
      sums[half][0] = four.x;
      sums[half][1] = four.y;
      sums[half][2] = four.z;
      sums[half][3] = four.w;
    }
    RotatedPairs pairs;
    if (norm_ != nullptr) {
      Normalise(bias, sums);
      PairBias none;
      none.Clear();
      pairs = Rotate(sums, none, angles, rotates_);
    } else {
      pairs = Rotate(sums, bias, angles, rotates_);
    }
    const int token = token_ + index * kTokensAtOnce;
    if (head_ < args_.qkv.heads) {
      StoreQuery(args_, QueryIndex(args_, token, head_, col_), args_.qkv.head_dim / 2, hi_lo_,
                 pairs);
    } else {
      // Groups of 8 columns are 64 elements apart.
      StoreCached(args_, token, place.position, place.block, head_ - args_.qkv.heads, col_,
                  args_.qkv.head_dim / 2 * 8, pairs);
    }
  }

  const RopeArgs& args_;
  int head_;
  int col_;
  bool rotates_;
  bool hi_lo_;
  // Weights of the head's norm; null if it has none.
  const float* norm_;
  int token_;
  const RopeToken* tokens_;
  const uint8_t* staged_[2];
};

}  // namespace orcd::cuda::gemm

#endif  // ORCD_CUDA_KERNELS_SM90_GEMM_F16_ROPE_EPILOGUE_CUH_
