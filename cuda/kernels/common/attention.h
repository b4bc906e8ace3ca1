// Causal attention over the paged cache. The query heads that share a kv head are computed
// together.
//
// Queries have one F16 part, or two where a head has a hi/lo split (LaunchQuerySplit); heads of 256
// values have no such split.
//
// A layer with a window has a cache of its own: its launches get StepTables::OfWindows() and the
// view of that cache. Key tiles are those of the sequence, whatever the window.
//
// Decode and prefill, whole or in chunks, use one order of summation (numeric_contract.h): keys are
// taken in tiles of 128 positions, and tiles are merged in order. (Dao, "FlashAttention-2", 2023;
// split over the keys as in "Flash-Decoding", 2023.)
#ifndef ORCD_CUDA_KERNELS_COMMON_ATTENTION_H_
#define ORCD_CUDA_KERNELS_COMMON_ATTENTION_H_

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
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

// The keys that a query sees, and their weights (LayerSpec): with s = score_scale * (q . k), a key
// weighs e^s or, if score_softcap is above 0, e^(score_softcap * tanh(s / score_softcap)). The sink
// of a query's head, if it has one, weighs e^sink and has a value of zero.
struct AttentionRule {
  float score_scale = 0;
  float score_softcap = 0;
  // Number of positions that a query attends to, its own the last; 0: all up to its own.
  int window = 0;
  const float* sinks = nullptr;  // [heads]; null: none
  // The first position that has keys and values.
  int first_key = 0;
};

// True of the rule that kernels have code of their own for: heads of 64 or 128 values, and the
// scale 1 / sqrt(head_dim), give or take roundings, alone.
constexpr bool IsPlain(const AttentionRule& rule, int head_dim) {
  const float square = rule.score_scale * rule.score_scale * static_cast<float>(head_dim);
  return (head_dim == 64 || head_dim == 128) && rule.score_scale > 0 && square > 1 - 1e-6f &&
         square < 1 + 1e-6f && rule.score_softcap == 0 && rule.window == 0 &&
         rule.sinks == nullptr && rule.first_key == 0;
}

// First position that a query at `position` sees.
constexpr int FirstSeen(const AttentionRule& rule, int position) {
  return std::max(rule.first_key, rule.window == 0 ? 0 : position + 1 - rule.window);
}

// True if the prologue of decode attention makes the queries, keys and values of such a product;
// otherwise LaunchRope has to, before it.
constexpr bool DecodeMakesRows(const QkvProduct& qkv) {
  return !qkv.norm_projection || (qkv.q_norm == nullptr && qkv.k_norm == nullptr);
}

// Decode attention, one token a sequence. The prologue turns the QKV product's partials into
// queries, keys and values and stores keys and values in the cache; then the queries attend to the
// keys.
struct DecodeAttentionArgs {
  StepTables step = {};
  // One token each, in the order of the step's tokens.
  int sequences = 0;
  QkvProduct qkv = {};
  // Null if DecodeMakesRows(qkv). Else what LaunchRope has made, with the keys and values in the
  // cache (RopeArgs), and of `qkv` only query_split and the shape count.
  const __half* q = nullptr;
  const __half* q_lo = nullptr;
  // True if a query may see keys of other tokens of this step (drafts), which LaunchRope has made:
  // then no key is read before the kernel before has ended. Requires `q`.
  bool sees_step = false;
  AttentionRule rule = {};
  KvCacheView kv = {};
  int32_t* not_finite = nullptr;  // See RopeArgs.
  // Within `kv`.
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
  AttentionRule rule = {};
  KvCacheView kv = {};
  // Within `kv`.
  int layer = 0;
  int heads = 0;
  Activations out = {};  // [tokens, heads * head_dim]
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_ATTENTION_H_
