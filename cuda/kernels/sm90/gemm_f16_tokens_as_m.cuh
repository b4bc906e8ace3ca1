// Consumer loop and epilogues of the F16 GEMM for a TokenShape: tokens are the M rows of wgmma.
#ifndef ORCD_CUDA_KERNELS_SM90_GEMM_F16_TOKENS_AS_M_CUH_
#define ORCD_CUDA_KERNELS_SM90_GEMM_F16_TOKENS_AS_M_CUH_

#include <cuda_fp16.h>

#include "cuda/kernels/sm90/gemm_f16_producer.cuh"

namespace orcd::cuda::gemm {

// Epilogues. The 64 M rows of c are tokens from `first_token` on: token 16w + g + 8h of warp w,
// columns 8j + 2t + e. Results go to memory straight from registers, as each warp's stores are
// contiguous.

// SwiGLU epilogue: a core matrix of each row tile, 8 units of 8 tokens, at a time. For one matrix.
template <int kCols>
__device__ __forceinline__ void StoreSwiGluTokensAsM(const MatmulParams& args,
                                                     const OutputTile& output, int first_token,
                                                     const float (&c)[kCols / 2]) {
  const int lane = threadIdx.x % 32;
  const int token = first_token + threadIdx.x / 32 % 4 * 16 + lane / 4;
  const float factor = ResultFactor(args.matrices[0]);
#pragma unroll
  for (int i = 0; i < kCols / kTileRows; ++i) {
    if (i >= output.tiles) break;
    __half* const to = args.swiglu.out.data +
                       args.swiglu.out.Index(token, (output.first_tile + i) * 8 + lane % 4 * 2);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (token + h * 8 >= args.tokens) continue;
      const float* const gate = &c[8 * i + 2 * h];
      const float* const up = gate + 4;
      *reinterpret_cast<__half2*>(to + h * (kActivationCols * 8)) =
          __halves2half2(SwiGluUnit(gate[0], up[0], factor, args.swiglu.activation),
                         SwiGluUnit(gate[1], up[1], factor, args.swiglu.activation));
    }
  }
}

// ResultFactor of each of a product's matrices, in few instructions (see Store of gemm.cuh).
class ResultFactors {
 public:
  __device__ __forceinline__ explicit ResultFactors(const MatmulParams& args) {
    int end = 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i < args.num_matrices) end += args.matrices[i].row_tiles();
      if (i < kMost - 1) ends_[i] = end;
      factors_[i] = ResultFactor(args.matrices[i]);
    }
  }
  // Factor of row tile `tile`, counted over all matrices.
  __device__ __forceinline__ float Of(int tile) const {
    const float behind = tile < ends_[1] ? factors_[1] : factors_[2];
    return tile < ends_[0] ? factors_[0] : behind;
  }

 private:
  static constexpr int kMost = 3;
  // End of each matrix's row tiles; the last matrix needs none.
  int ends_[kMost - 1];
  float factors_[kMost];
};

// Stores to the partials of split `split`, whose tokens have an even number of rows.
template <int kCols>
__device__ __forceinline__ void StoreTokensAsM(const MatmulParams& args, const OutputTile& output,
                                               int first_token, int split,
                                               const float (&c)[kCols / 2]) {
  const int lane = threadIdx.x % 32;
  const int token = first_token + threadIdx.x / 32 % 4 * 16 + lane / 4;
  const int first_row = output.first_tile * kTileRows + lane % 4 * 2;
  float* const to = args.store.y +
                    (int64_t{split} * args.partials_tokens + token) * args.store.stride + first_row;
  float* const tokens_at[2] = {to, to + int64_t{8} * args.store.stride};
  // Number of columns from the first on, of either token.
  const int cols = min(output.tiles * kTileRows, args.rows - first_row);
  const int left[2] = {token < args.tokens ? cols : 0, token + 8 < args.tokens ? cols : 0};
  const ResultFactors factors(args);
#pragma unroll
  for (int i = 0; i < kCols / kTileRows; ++i) {
    const float factor = factors.Of(output.first_tile + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int col = i * kTileRows + j / 2 * 8;
      const int h = j % 2;
      const float* const from = &c[8 * i + j / 2 * 4 + 2 * h];
      if (col >= left[h]) continue;
      *reinterpret_cast<float2*>(tokens_at[h] + col) =
          make_float2(from[0] * factor, from[1] * factor);
    }
  }
}

// Consumer loop: computes all tiles of the block, with tokens as M rows.
template <typename S>
__device__ __forceinline__ void ConsumeTokensAsM(const MatmulParams& args, const TileRows& rows,
                                                 const uint8_t* shared,
                                                 F16Ring<S, S::kTokens>& ring) {
  constexpr int kCols = S::kTiles * kTileRows;
  const int own_token = static_cast<int>(threadIdx.x) / 128 * S::kTokenBlocks * 64;
  auto scheduler = Scheduler<S>::Wide(args, rows);
  typename F16Ring<S, S::kTokens>::Stage stage;
  while (scheduler.Next()) {
    const SplitRange splits = scheduler.splits();
    float c[S::kTokenBlocks][kCols / 2];
    OutputTile output;
    const auto multiply = [&](int split) {
      const int slot = MultiplySplit<kCols>(args, split, XBytes(own_token), XBytes(S::kTokens),
                                            shared, ring, stage, c);
      // Computed while the wgmmas run: divisions take as long as a stage.
      output = scheduler.output();
      asm volatile("" : "+r"(output.first_tile), "+r"(output.tiles), "+r"(output.first_token));
      WgmmaWait<0>();
      ring.Release(slot);
    };
    if constexpr (S::kSum) {
      float sum[kCols / 2];
      // x + -0 is x for every x.
#pragma unroll
      for (float& value : sum) value = -0.0f;
#pragma unroll 1
      for (int split = splits.begin; split < splits.end; ++split) {
        multiply(split);
#pragma unroll
        for (int i = 0; i < kCols / 2; ++i) sum[i] += c[0][i];
      }
      StoreTokensAsM<kCols>(args, output, output.first_token, 0, sum);
    } else {
      multiply(splits.begin);
#pragma unroll
      for (int block = 0; block < S::kTokenBlocks; ++block) {
        const int first_token = output.first_token + own_token + block * 64;
        if (args.swiglu.out.data != nullptr) {
          StoreSwiGluTokensAsM<kCols>(args, output, first_token, c[block]);
        } else {
          StoreTokensAsM<kCols>(args, output, first_token, splits.begin, c[block]);
        }
      }
    }
  }
}

}  // namespace orcd::cuda::gemm

#endif  // ORCD_CUDA_KERNELS_SM90_GEMM_F16_TOKENS_AS_M_CUH_
