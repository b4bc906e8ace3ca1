// Causal attention over the paged cache. The query heads that share a kv head are computed
// together.
//
// Queries have one F16 part, or two where a head has a hi/lo split (LaunchQuerySplit).
//
// Decode and prefill, whole or in chunks, use one order of summation (numeric_contract.h): keys are
// taken in tiles of 128 positions, and tiles are merged in order. (Dao, "FlashAttention-2", 2023;
// split over the keys as in "Flash-Decoding", 2023.)
#ifndef ORCD_CUDA_KERNELS_COMMON_ATTENTION_H_
#define ORCD_CUDA_KERNELS_COMMON_ATTENTION_H_

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/activations.h"
#include "cuda/kernels/common/numeric_contract.h"
#include "cuda/kernels/common/step.h"

namespace orcd::cuda {

// Number of key tiles of a sequence of `positions` positions.
constexpr int KeyTiles(int positions) { return (positions + kKeyTile - 1) / kKeyTile; }

// True if attention takes KV blocks of this size: a power of two, and at most half a key tile.
constexpr bool AttentionTakesBlocks(int block_tokens) {
  return block_tokens >= 8 && block_tokens <= kKeyTile / 2 &&
         (block_tokens & (block_tokens - 1)) == 0;
}

// Decode attention, one token a sequence. The prologue turns the QKV product's partials into
// queries, keys and values and stores keys and values in the cache; then the queries attend to all
// keys.
struct DecodeAttentionArgs {
  StepTables step = {};
  // One token each, in the order of the step's tokens.
  int sequences = 0;
  QkvProduct qkv = {};
  KvCacheView kv = {};
  int32_t* not_finite = nullptr;  // See RopeArgs.
  int layer = 0;
  // Thread blocks that share the keys of a sequence (Flash-Decoding splits).
  int key_splits = 1;
  // Workspace, used if key_splits > 1. partials: results of tiles, [key tiles of all
  // sequences][heads][head_dim + 2]. counters: [sequences, kv_heads], zero before the first launch
  // and after every launch.
  float* partials = nullptr;
  int32_t* counters = nullptr;
  Activations out = {};  // [tokens, heads * head_dim]
};

// Query rows of a tile of prefill attention; a row is one head of one token.
inline constexpr int kQueryRows = 128;

// Prefill attention, any number of tokens per sequence. LaunchRope, or the RoPE epilogue of the QKV
// GEMM, has made queries, keys and values.
struct PrefillAttentionArgs {
  StepTables step = {};
  int sequences = 0;
  // Number of tiles of kQueryRows rows, of all sequences together.
  int query_tiles = 0;
  // See RopeArgs and QkvProduct.
  const __half* q = nullptr;
  const __half* q_lo = nullptr;
  const int32_t* query_split = nullptr;
  KvCacheView kv = {};
  int layer = 0;
  int heads = 0;
  Activations out = {};  // [tokens, heads * head_dim]
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_ATTENTION_H_
