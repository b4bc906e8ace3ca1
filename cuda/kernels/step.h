// What a step's kernels read of it, all in VRAM, and the small operations of a layer.
#ifndef ORCD_CUDA_KERNELS_STEP_H_
#define ORCD_CUDA_KERNELS_STEP_H_

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/activations.h"
#include "cuda/kernels/tile_format.h"

namespace orcd::cuda {

// One sequence of a step.
struct SequenceEntry {
  int32_t slot;
  // This is its first step in the slot.
  int32_t starts;
  // Its tokens are [first_token, first_token + tokens) of the step, at positions first_position….
  int32_t first_token;
  int32_t tokens;
  int32_t first_position;
  // Its KV blocks begin here in StepTables::blocks.
  int32_t first_block;
  // Its first tile of queries and its first tile of keys (attention.h), counted over the step.
  int32_t first_query_tile;
  int32_t first_key_tile;
};

// One token of a step.
struct TokenEntry {
  // kPreviousSample: what its slot drew last.
  int32_t id;
  int32_t sequence;
  int32_t position;
};

// The step's description; a kernel of a bucket finds entries past the step's real numbers with
// `sequence` -1 and `tokens` 0.
struct StepTables {
  const TokenEntry* tokens = nullptr;
  const SequenceEntry* sequences = nullptr;
  const int32_t* blocks = nullptr;
  // [logit rows] the token whose logits a row holds; null: row i is token i.
  const int32_t* logit_tokens = nullptr;
};

// The paged cache, F16: [layer][block][keys, values][kv_head], and in these core matrices of 8
// tokens by 8 columns, [token / 8][column / 8][token % 8][column % 8], as tensor cores take them.
struct KvCacheView {
  __half* data = nullptr;
  int blocks = 0;
  // A power of two, at least 8.
  int block_tokens = 0;
  int kv_heads = 0;
  int head_dim = 0;

  // Values of one head's block.
  constexpr int64_t head_size() const { return int64_t{block_tokens} * head_dim; }
  // From one block's keys or values to the next's; the values come kv_heads * head_size() after.
  constexpr int64_t block_size() const { return 2 * kv_heads * head_size(); }
  // Of the keys of head `kv_head`.
  constexpr int64_t Offset(int layer, int block, int kv_head) const {
    return (int64_t{layer} * blocks + block) * block_size() + kv_head * head_size();
  }
  // Of column `col` of token `token` within a head's block.
  constexpr int InBlock(int token, int col) const {
    return (token / 8 * (head_dim / 8) + col / 8) * 64 + token % 8 * 8 + col % 8;
  }
};

// residual[t] = the embedding of token t; [tokens, hidden] F32. Writes down which token stands
// where in the KV blocks.
struct EmbedArgs {
  StepTables step = {};
  int32_t* block_token_ids = nullptr;  // [block][block_tokens]
  int block_tokens = 0;
  int32_t* not_finite = nullptr;         // [slots]
  const int32_t* last_sample = nullptr;  // [slots]
  TiledMatrix embedding = {};
  float* residual = nullptr;
  int tokens = 0;
};
cudaError_t LaunchEmbed(const EmbedArgs& args, cudaStream_t stream);

// Adds what a product left in segments to the residual, then normalises:
// residual += scale * sum of segments; out = F16(rms_norm(residual) * weight).
// Zhang and Sennrich, "Root mean square layer normalization", 2019.
struct NormArgs {
  float* residual = nullptr;  // [.., hidden], updated in place
  // As MatmulArgs::y; null: nothing is added. At most kMaxSplits segments.
  const float* partials = nullptr;
  int splits = 0;
  int partials_tokens = 0;
  float scale = 1;
  const float* weight = nullptr;  // [hidden]
  float eps = 0;
  int hidden = 0;
  // Rows; row i is token i, or rows[i] where that is not null (residual is not changed then).
  int tokens = 0;
  const int32_t* rows = nullptr;
  Activations out = {};
};
cudaError_t LaunchNorm(const NormArgs& args, cudaStream_t stream);

// Row i of `kept_` is row rows[i] of the residual, and of what attention has made.
struct GatherRowsArgs {
  const float* residual = nullptr;  // [tokens, hidden]
  Activations attended = {};        // [tokens, attended_cols]
  const int32_t* rows = nullptr;
  int count = 0;
  // A multiple of 4, and one of 8.
  int hidden = 0;
  int attended_cols = 0;
  float* kept_residual = nullptr;  // [count, hidden]
  Activations kept_attended = {};
};
cudaError_t LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream);

// The product of q, k and v, not yet summed, and what it takes to make queries, keys and values of
// it. Su et al., "RoFormer", 2021; pairs (i, i + head_dim / 2).
struct QkvProduct {
  // As MatmulArgs::y, rows q, k, v; at most kMaxSplits segments.
  const float* partials = nullptr;
  int splits = 0;
  int partials_tokens = 0;
  const float* bias = nullptr;  // [q, k, v]
  // [positions, head_dim]: cosines, then sines.
  const float* angles = nullptr;
  // [kv_heads] F16 parts of the queries of each one's heads, as LaunchQueryParts has them.
  const int32_t* query_parts = nullptr;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

// Fills `angles`, [positions, head_dim], as QkvProduct has them: position * base^(-2i / head_dim),
// computed in F64.
cudaError_t LaunchRopeAngles(float base, int head_dim, int positions, float* angles,
                             cudaStream_t stream);

// A query is one F16 number, or two, of which the second is what the first leaves out: where keys
// have large biases scores are small differences of large products. (Measured with
// Qwen2.5-Coder-0.5B, of whose 48 kv heads 5 have such: bench/results/correctness.json.) Fills
// `parts`, [kv_heads], given [kv_heads, head_dim].
inline constexpr float kLargeKeyBias = 64;
cudaError_t LaunchQueryParts(const float* key_bias, int kv_heads, int head_dim, int32_t* parts,
                             cudaStream_t stream);

// Stores queries, and keys and values in the cache.
struct RopeArgs {
  StepTables step = {};
  QkvProduct qkv = {};
  // [tokens, heads, head_dim] each: the first part of queries, and the second, where they have two.
  __half* q = nullptr;
  __half* q_rest = nullptr;
  KvCacheView kv = {};
  // [slots] set where a key or a value is not finite; zeros are stored in its place.
  int32_t* not_finite = nullptr;
  int layer = 0;
  int tokens = 0;
  // Where not null: what comes before the rotation and after it, F32 [tokens, q, k, v rows]; for
  // taps.
  float* biased = nullptr;
  float* rotated = nullptr;
};
cudaError_t LaunchRope(const RopeArgs& args, cudaStream_t stream);

// silu(gate) * up * kGatedScale from a product whose rows alternate: 8 of the gate, 8 of up. For
// taps; products do it themselves.
struct GateArgs {
  // [tokens, 2 * ffn padded to 8], 8 of the gate before the same 8 of up; `apart`: [tokens, 2 *
  // ffn], those of the gate before those of up.
  const float* products = nullptr;
  bool apart = false;
  int ffn = 0;
  int tokens = 0;
  Activations out = {};
};
cudaError_t LaunchGate(const GateArgs& args, cudaStream_t stream);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_STEP_H_
