// Arguments in VRAM that the kernels of a step share, and the launches of a layer's small
// operations. Every Launch function is asynchronous on `stream`.
#ifndef ORCD_CUDA_KERNELS_COMMON_STEP_H_
#define ORCD_CUDA_KERNELS_COMMON_STEP_H_

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/activations.h"
#include "cuda/kernels/common/numeric_contract.h"
#include "cuda/kernels/common/tile_format.h"
#include "runtime/model/spec.h"

namespace orcd::cuda {

// One sequence of a step.
struct SequenceEntry {
  int32_t slot;
  // Nonzero in the sequence's first step in the slot.
  int32_t starts;
  // The sequence's tokens are [first_token, first_token + tokens) of the step, at positions
  // first_position….
  int32_t first_token;
  int32_t tokens;
  int32_t first_position;
  // Index of the sequence's first KV block in StepTables::blocks.
  int32_t first_block;
  // First tile of queries and first tile of keys of the sequence (attention.h), counted over the
  // step.
  int32_t first_query_tile;
  int32_t first_key_tile;
};

// One token of a step.
struct TokenEntry {
  // Token id; kPreviousSample: the token that the slot sampled last.
  int32_t id;
  int32_t sequence;
  int32_t position;
};

// Tables that describe the step. A graph is captured for a bucket: entries past the step's real
// counts have `sequence` -1 and `tokens` 0.
struct StepTables {
  const TokenEntry* tokens = nullptr;
  const SequenceEntry* sequences = nullptr;
  // Blocks of the cache that a launch reads and writes: of the layers without a window, or of those
  // with one (OfWindows).
  const int32_t* blocks = nullptr;
  // Blocks of the cache of windows, at the same indices as `blocks`; null if no layer has a window.
  // Entries of blocks that have left every window are not read.
  const int32_t* window_blocks = nullptr;
  // [gathered rows] token whose logits the row holds; null: row i is token i.
  const int32_t* logit_tokens = nullptr;

  // The tables for a layer with a window.
  constexpr StepTables OfWindows() const {
    StepTables tables = *this;
    tables.blocks = window_blocks;
    return tables;
  }
};

// A paged KV cache, of the layers without a window or of those with one; layers are counted within
// it. F16: [layer][block][keys, values][kv_head], and within one head the core
// matrices of 8 tokens by 8 columns that tensor cores take, [token / 8][column / 8][token %
// 8][column % 8].
struct KvCacheView {
  __half* data = nullptr;
  int blocks = 0;
  // A power of two, at least 8.
  int block_tokens = 0;
  int kv_heads = 0;
  // A multiple of 16.
  int head_dim = 0;

  // Elements of one head's keys, or values, in a block.
  constexpr int64_t head_size() const { return int64_t{block_tokens} * head_dim; }
  // Elements from one block's keys to the next block's keys, and likewise for values. A block's
  // values follow its keys by kv_heads * head_size().
  constexpr int64_t block_size() const { return 2 * kv_heads * head_size(); }
  // Index of the first key element of head `kv_head`.
  constexpr int64_t Offset(int layer, int block, int kv_head) const {
    return (int64_t{layer} * blocks + block) * block_size() + kv_head * head_size();
  }
  // Index of column `col` of token `token` within a head's block.
  constexpr int InBlock(int token, int col) const {
    return (token / 8 * (head_dim / 8) + col / 8) * 64 + token % 8 * 8 + col % 8;
  }
};

// residual[t] = scale * the embedding of token t; [tokens, hidden] F32. Also records the token id
// at each position of the KV blocks (block_token_ids).
struct EmbedArgs {
  StepTables step = {};
  int32_t* block_token_ids = nullptr;  // [block][block_tokens]
  int block_tokens = 0;
  int32_t* not_finite = nullptr;         // [slots]
  const int32_t* last_sample = nullptr;  // [slots]
  TiledMatrix embedding = {};
  float scale = 1;
  float* residual = nullptr;
  int tokens = 0;
};
cudaError_t LaunchEmbed(const EmbedArgs& args, cudaStream_t stream);

// Largest `hidden` of LaunchNorm.
inline constexpr int kMaxNormHidden = 8192;

// Adds what a branch (attention or FFN) leaves to the residual, then normalises the residual:
// branch = scale * sum of partials + bias; branch = norm(branch) * post_norm;
// residual += residual_scale * branch; out = F16(norm(residual) * weight). RMS norm: Zhang and
// Sennrich, "Root mean square layer normalization", 2019.
struct NormArgs {
  float* residual = nullptr;  // [.., hidden], updated in place
  // A product that normalises writes the updated residual here, [hidden], since each of its blocks
  // reads the old one. LaunchNorm does not use it.
  float* new_residual = nullptr;
  // Layout of StoreF32::y; null: nothing is added, and `splits` is 0. `splits` is at most
  // kMaxSplits.
  const float* partials = nullptr;
  int splits = 0;
  int partials_tokens = 0;
  float scale = 1;
  // [hidden] each; null: the branch has no bias, or no norm of its own.
  const float* bias = nullptr;
  const float* post_norm = nullptr;
  float residual_scale = 1;
  // [hidden]; null: `out` is the residual itself.
  const float* weight = nullptr;
  // Both norms have this kind and epsilon.
  NormKind kind = NormKind::kRms;
  float eps = 0;
  int hidden = 0;
  // Number of rows. Row i is token i, or rows[i] if `rows` is not null (then the residual stays
  // unchanged).
  int tokens = 0;
  const int32_t* rows = nullptr;
  // Null data: the residual is updated and nothing more.
  Activations out = {};
  // Null, or `out` in F32, not rounded to F16, [tokens, hidden]: the input of a router.
  float* out_f32 = nullptr;
  // Null, or the branches as they are added, before residual_scale, F32 [tokens, hidden]; for taps.
  float* branch = nullptr;
};

// True of the norms that kernels have code of their own for, as Qwen2's. Products normalise their
// input in no other way, and the columns of no other width than a multiple of kActivationCols.
constexpr bool IsPlain(const NormArgs& norm) {
  return norm.bias == nullptr && norm.post_norm == nullptr && norm.residual_scale == 1 &&
         norm.weight != nullptr && norm.kind == NormKind::kRms && norm.out_f32 == nullptr &&
         norm.branch == nullptr;
}
constexpr bool ProductsNormalise(const NormArgs& norm) {
  return IsPlain(norm) && norm.hidden % kActivationCols == 0;
}
cudaError_t LaunchNorm(const NormArgs& args, cudaStream_t stream);

// Zeros the columns of `of` that pad its `cols` columns. For sizes that are no multiple of
// kActivationCols, before a kernel that writes the columns alone; it clears the columns of the same
// tile as well.
struct ClearPaddingArgs {
  Activations of = {};  // [.., cols]
  int cols = 0;
};
cudaError_t LaunchClearPadding(const ClearPaddingArgs& args, cudaStream_t stream);

// Gathers the rows that the head needs: row i of the `gathered_` outputs is row rows[i] of the
// residual and of the attention output.
struct GatherRowsArgs {
  const float* residual = nullptr;  // [tokens, hidden]
  Activations attended = {};        // [tokens, attended_cols]
  const int32_t* rows = nullptr;
  int count = 0;
  // Multiples of 4 and of 8.
  int hidden = 0;
  int attended_cols = 0;
  float* gathered_residual = nullptr;  // [count, hidden]
  Activations gathered_attended = {};
};
cudaError_t LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream);

// The dimensions of a head that RoPE rotates together, for i below rope_dims / 2.
enum class RopePairs {
  // i and i + rope_dims / 2.
  kHalves,
  // 2i and 2i + 1.
  kNeighbours
};

// The unsummed QKV product and what turns it into queries, keys and values. In this order: the sum
// of the partials, the bias, the RMS norm of queries and keys, RoPE (Su et al., "RoFormer", 2021),
// and the queries' temperature.
struct QkvProduct {
  // Split-K partials in the layout of StoreF32::y, rows q, k, v; at most kMaxSplits of them.
  const float* partials = nullptr;
  int splits = 0;
  int partials_tokens = 0;
  const float* bias = nullptr;  // [q, k, v]; null: none
  // [positions, rope_dims]: cosines of the pairs, then their sines (RopeTable).
  const float* angles = nullptr;
  // The first dimensions of a head, which are rotated: a multiple of 8; 0: no RoPE.
  int rope_dims = 0;
  RopePairs rope_pairs = RopePairs::kHalves;
  // Weights of the norms, null for none. Over each head, [head_dim] each; or, if norm_projection,
  // over all heads together, [heads * head_dim] and [kv_heads * head_dim].
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  float norm_eps = 0;
  bool norm_projection = false;
  // If above 0, a query at position p is multiplied by
  // 1 + temperature * ln(floor(p / temperature_length) + 1).
  float temperature = 0;
  int temperature_length = 1;
  // [kv_heads] number of F16 parts (1, or 2 for a hi/lo split) of the queries of each kv head, from
  // LaunchQuerySplit; null: one part each.
  const int32_t* query_split = nullptr;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

// True of products whose whole heads of 64 or 128 values are rotated, in halves, and no more.
constexpr bool RotatesHalves(const QkvProduct& qkv) {
  return (qkv.head_dim == 64 || qkv.head_dim == 128) && qkv.rope_dims == qkv.head_dim &&
         qkv.rope_pairs == RopePairs::kHalves && qkv.temperature == 0;
}
// True of the products that kernels have code of their own for, as Qwen2's: with a bias and without
// norms.
constexpr bool IsPlain(const QkvProduct& qkv) {
  return RotatesHalves(qkv) && qkv.bias != nullptr && qkv.query_split != nullptr &&
         qkv.q_norm == nullptr && qkv.k_norm == nullptr;
}
// True of the products that the RoPE epilogue of a GEMM (StoreQkv) takes: with a bias, or norms of
// queries' and keys' heads as Qwen3's, or neither.
constexpr bool RopeEpilogueTakes(const QkvProduct& qkv) {
  const bool norms = qkv.q_norm != nullptr && qkv.k_norm != nullptr && !qkv.norm_projection;
  const bool no_norms = qkv.q_norm == nullptr && qkv.k_norm == nullptr;
  return RotatesHalves(qkv) && (no_norms || (norms && qkv.bias == nullptr));
}

// A query is one F16 number, or a hi/lo split: two F16 numbers, the second the rounding error of
// the first. Heads whose keys have large biases need the split, since their scores are small
// differences of large products. (Measured with Qwen2.5-Coder-0.5B: 5 of its 48 kv heads have such
// biases, bench/results/correctness.json.)
//
// A model without biases on keys needs no hi/lo split: QkvProduct::query_split is null.
//
// Fills `parts`, [kv_heads], with 2 for kv heads that have a bias of at least kLargeKeyBias in
// magnitude, else 1; `key_bias` is [kv_heads, head_dim].
cudaError_t LaunchQuerySplit(const float* key_bias, int kv_heads, int head_dim, int32_t* parts,
                             cudaStream_t stream);

// Makes queries, keys and values of any QKV product (QkvProduct); stores queries in q and q_lo, and
// keys and values in the cache.
struct RopeArgs {
  StepTables step = {};
  QkvProduct qkv = {};
  // [tokens, heads, head_dim] each: the high parts of queries, and the low parts (q_lo) of the
  // heads that have a hi/lo split.
  __half* q = nullptr;
  __half* q_lo = nullptr;
  KvCacheView kv = {};
  // [slots] set to 1 if a key or a value of the slot is not finite; the cache then gets zeros
  // instead.
  int32_t* not_finite = nullptr;
  // Within `kv`.
  int layer = 0;
  int tokens = 0;
  // Null, or the values with their bias, after the norm, and at last; F32 [tokens, q, k, v rows];
  // for taps. `normed` may be null, and is not written if the product is IsPlain.
  float* biased = nullptr;
  float* normed = nullptr;
  float* rotated = nullptr;
};
cudaError_t LaunchRope(const RopeArgs& args, cudaStream_t stream);

// The gate as a kernel of its own: activation(gate + bias) * (up + bias) * kSwiGluScale. For taps,
// and for layers whose gate and up are apart; other products apply it in their epilogue. Shazeer,
// "GLU variants improve transformer", 2020.
struct SwiGluArgs {
  // [tokens, 2 * ffn padded to 8], interleaved: 8 rows of the gate before the same 8 rows of up.
  // `apart`: [tokens, 2 * ffn], all rows of the gate before all rows of up.
  const float* products = nullptr;
  bool apart = false;
  // [gate, up]; null: none.
  const float* bias = nullptr;
  Activation activation = Activation::kSilu;
  int ffn = 0;
  int tokens = 0;
  Activations out = {};
};
cudaError_t LaunchSwiGlu(const SwiGluArgs& args, cudaStream_t stream);

// logits *= scale; then, if softcap is above 0, a logit z becomes softcap * tanh(z / softcap).
struct ScaleLogitsArgs {
  float* logits = nullptr;  // [rows, vocab]
  int vocab = 0;
  int rows = 0;
  float scale = 1;
  float softcap = 0;
};
cudaError_t LaunchScaleLogits(const ScaleLogitsArgs& args, cudaStream_t stream);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_STEP_H_
