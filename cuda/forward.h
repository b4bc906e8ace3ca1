// The model on the GPU: computes logits from a step's tables.
#ifndef ORCD_CUDA_FORWARD_H_
#define ORCD_CUDA_FORWARD_H_

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cuda/device.h"
#include "cuda/device_memory.h"
#include "cuda/device_weights.h"
#include "cuda/kernels/common/attention.h"
#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/step.h"
#include "runtime/backend/backend.h"
#include "runtime/model/spec.h"

namespace orcd::cuda {

// Determines the kernels of a step and their grids.
struct StepShape {
  int tokens = 0;
  int sequences = 0;
  int logit_rows = 0;
  // True if every sequence runs one token.
  bool decode = false;
  // Decode step: blocks that share a sequence's keys. Any other step: tiles of queries.
  int key_splits = 1;
  int query_tiles = 0;
};

// Upper bounds on the steps that a Forward can run.
struct ForwardLimits {
  int max_tokens = 0;
  int max_seqs = 0;
  // Key tiles of all sequences of a step together, if several blocks share a sequence's keys.
  int max_key_tiles = 0;
  // Largest number of positions of a sequence.
  int context_length = 0;
  // Tokens that the KV cache holds.
  int64_t kv_tokens = 0;
};

// Addresses of a step's intermediate results, all in one slab.
struct ForwardBuffers {
  // If `slab` is null, only sizes are meaningful, such as `bytes`.
  ForwardBuffers(const ModelSpec& spec, const DeviceWeights& weights, const ForwardLimits& limits,
                 uint8_t* slab);

  float* residual[2];  // [tokens, hidden] and [1, hidden]: with one token they alternate
  __half* normed;      // Activations [tokens, hidden]
  // StoreF32::y of the products that are added to the residual, and of q, k and v.
  float* products;
  float* qkv;
  __half* q;         // [tokens, heads, head_dim]
  __half* q_lo;      // the same: low part of the hi/lo split of Q
  __half* attended;  // Activations [tokens, heads * head_dim]
  // Gathered rows with which the last layer goes on if not all tokens have logits. With one row,
  // gathered_residual and residual[1] alternate.
  float* gathered_residual;   // [logit rows, hidden]
  __half* gathered_attended;  // Activations [logit rows, heads * head_dim]
  __half* head_in;            // Activations [logit rows, hidden]
  float* angles;              // [positions, head_dim]
  int32_t* query_split;       // [layers, kv_heads] F16 parts of Q: 1, or 2 (hi/lo split)
  // [tokens, 2 * ffn]; null unless a layer has gate and up in separate matrices.
  float* gate_and_up;
  uint8_t* dequantised;  // F16 tiles of dequantised weights: a matrix or a part of it
  int64_t dequantised_bytes;
  StreamKWorkspace stream_k;
  // These three alias the same memory: at most one of them is in use at a time.
  __half* gated;              // Activations [tokens, ffn]
  float* logits;              // [logit rows, vocab]
  float* attention_partials;  // DecodeAttentionArgs::partials
  int32_t* attention_counters;
  int32_t* last_sample;  // [slots]
  // [block][block_tokens], the ids of the tokens in the KV blocks.
  int32_t* block_token_ids;
  // [slots], nonzero if a sequence met a key or a value that was not finite.
  int32_t* not_finite;
  size_t bytes;
};

// Launches the kernels of steps. Owns nothing: views the weights and the buffers. One thread.
class Forward {
 public:
  // References must outlive this.
  Forward(const ModelSpec& spec, const DeviceWeights& weights, const ForwardBuffers& buffers,
          const KvCacheView& kv, const DeviceInfo& device);

  // Enqueues a step; its logits are in buffers.logits afterwards, a row per logit row. With a tap
  // (null in service), waits for every operation to show its result, and allocates memory to do so.
  absl::Status Enqueue(const StepTables& tables, const StepShape& shape, cudaStream_t stream,
                       ActivationTap* tap);

 private:
  class Tap;

  // The step that is being enqueued.
  struct Step {
    const StepTables& tables;
    const StepShape& shape;
    cudaStream_t stream;
    Tap* tap;
  };

  Activations View(__half* data, int tokens) const;
  absl::Status Multiply(const Step& step, MatmulArgs args);
  // Dequantises the weights to F16 in `buffers_.dequantised` first.
  absl::Status MultiplyDequantised(const Step& step, MatmulArgs args);
  // Writes the product to `to` as splits_ split-K partials, or their sum.
  absl::Status MultiplySplitK(const Step& step, float* to, MatmulArgs args);
  // Multiplies. The product times `scale` is added to the residual: by the epilogue if ProductsAdd,
  // else by the next norm, from split-K partials.
  absl::Status MultiplyForResidual(const Step& step, float scale, MatmulArgs args);
  // True if products normalise their input themselves, in their prologue.
  bool NormsInProducts(const Step& step) const;
  // True if products add to the residual themselves, in their epilogue.
  bool ProductsAdd(const Step& step) const;
  // True if the product of q, k and v has a RoPE epilogue: it writes queries, keys and values.
  bool RopeEpilogues(const Step& step) const;
  // Adds `scale` times the last product, if `add` and no epilogue has added it, to the residual,
  // and normalises it: into `normed` (`head`: the rows with logits, into `head_in`) or, if
  // NormsInProducts, in the prologue of product `args`.
  absl::Status Norm(const Step& step, const float* weight, float scale, bool add, MatmulArgs& args,
                    bool head = false);
  // Writes to `attended_`.
  absl::Status RunAttention(const Step& step, int layer);
  // Gathers the rows of the residual and of `attended_` that have logits.
  absl::Status GatherLogitRows(const Step& step);
  absl::Status RunAttentionOutput(const Step& step, int layer);
  RopeArgs RopeOf(const Step& step, int layer, const QkvProduct& qkv) const;
  absl::Status Rope(const Step& step, int layer, const QkvProduct& qkv);
  absl::Status RunFfn(const Step& step, int layer);
  absl::Status RunHead(const Step& step);
  absl::Status TapHead(const Step& step);

  const ModelSpec& spec_;
  // All layers have its shape.
  const LayerSpec& layer_;
  const DeviceWeights& weights_;
  const ForwardBuffers& buffers_;
  const KvCacheView kv_;
  const DeviceTraits& device_;
  const KernelSet& kernels_;
  // The residual, and the buffer it moves to if a product updates it out of place.
  float* residual_ = nullptr;
  float* new_residual_ = nullptr;
  Activations attended_;
  // Number of split-K partials of the last product, and their stride in tokens.
  int splits_ = 1;
  int products_tokens_ = 0;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_FORWARD_H_
