// Causal attention over the paged cache, query heads of one key-value head together.
//
// Queries are one F16 part or two (LaunchQueryParts); of every 16 columns the second part's
// products come first.
//
// One order of summation for decode and prefill, whole or in chunks: keys are taken in tiles of 128
// positions, each with its own maximum, and tiles are merged in order. So a token's result does not
// depend on the tokens that share its step. (Dao, "FlashAttention-2", 2023; split over the keys as
// in "Flash-Decoding", 2023.)
#ifndef ORCD_CUDA_KERNELS_ATTENTION_H_
#define ORCD_CUDA_KERNELS_ATTENTION_H_

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/activations.h"
#include "cuda/kernels/step.h"

namespace orcd::cuda {

inline constexpr int kKeyTile = 128;

// Tiles of keys of a sequence of `positions` positions.
constexpr int KeyTiles(int positions) { return (positions + kKeyTile - 1) / kKeyTile; }

// Head sizes and KV blocks that there are kernels for; a block is half a tile at most.
constexpr bool AttentionSupports(int head_dim, int block_tokens) {
  return (head_dim == 64 || head_dim == 128) && block_tokens >= 8 && block_tokens <= kKeyTile / 2 &&
         (block_tokens & (block_tokens - 1)) == 0;
}

// One token a sequence: what the product of q, k and v left becomes queries, keys and values, the
// latter two stored in the cache, and attention over all of them.
struct DecodeAttentionArgs {
  StepTables step = {};
  // Each of one token, in the order of the step's tokens.
  int sequences = 0;
  QkvProduct qkv = {};
  KvCacheView kv = {};
  int32_t* not_finite = nullptr;  // as RopeArgs has it
  int layer = 0;
  // Blocks that share the keys of a sequence.
  int key_splits = 1;
  // Where key_splits > 1: tiles' results, [tiles of all sequences][heads][head_dim + 2], and a
  // counter for each [sequence, kv_head], zero before the first launch and after every one.
  float* partials = nullptr;
  int32_t* counters = nullptr;
  Activations out = {};  // [tokens, heads * head_dim]
};
cudaError_t LaunchDecodeAttention(const DecodeAttentionArgs& args, int multiprocessors,
                                  cudaStream_t stream);

// Query heads of a key-value head that LaunchDecodeAttention takes at most.
inline constexpr int kMaxDecodeGroupHeads = 16;

// Rows of queries, a token's head each, that a block of LaunchPrefillAttention takes.
inline constexpr int kQueryRows = 128;

// Any tokens, whose queries, keys and values LaunchRope has made.
struct PrefillAttentionArgs {
  StepTables step = {};
  int sequences = 0;
  // Tiles of kQueryRows rows, of all sequences together.
  int query_tiles = 0;
  // As RopeArgs and QkvProduct have them.
  const __half* q = nullptr;
  const __half* q_rest = nullptr;
  const int32_t* query_parts = nullptr;
  KvCacheView kv = {};
  int layer = 0;
  int heads = 0;
  Activations out = {};  // [tokens, heads * head_dim]
};
cudaError_t LaunchPrefillAttention(const PrefillAttentionArgs& args, cudaStream_t stream);

// Raise the shared-memory limits of the kernels; once a device.
cudaError_t PrepareDecodeAttentionKernels();
cudaError_t PreparePrefillAttentionKernels();

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_ATTENTION_H_
