// The model on the GPU: from a step's tables to logits.
#ifndef ORCD_CUDA_FORWARD_H_
#define ORCD_CUDA_FORWARD_H_

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "cuda/device_memory.h"
#include "cuda/device_weights.h"
#include "cuda/kernels/attention.h"
#include "cuda/kernels/matmul.h"
#include "cuda/kernels/step.h"
#include "runtime/backend.h"
#include "runtime/model/config.h"

namespace orcd::cuda {

// What fixes the kernels of a step and their grids.
struct StepShape {
  int tokens = 0;
  int sequences = 0;
  int logit_rows = 0;
  // Every sequence runs one token.
  bool decode = false;
  // Of a decode step: blocks that share a sequence's keys. Of another: tiles of queries.
  int key_splits = 1;
  int query_tiles = 0;
};

// What a Forward has room for.
struct ForwardLimits {
  int max_tokens = 0;
  int max_seqs = 0;
  // Tiles of keys of all sequences of a step together, where several blocks share a sequence.
  int max_key_tiles = 0;
  // Positions there are.
  int context_length = 0;
  // Of the KV cache.
  int64_t kv_tokens = 0;
};

// Where a step's numbers lie, all in one slab.
struct ForwardBuffers {
  // With null `slab` only `bytes` is set.
  ForwardBuffers(const ModelConfig& config, const DeviceWeights& weights,
                 const ForwardLimits& limits, uint8_t* slab);

  float* residual[2];  // [tokens, hidden], and one row, as where there is one it alternates
  __half* normed;      // Activations, hidden
  // What MatmulArgs::y is: of the products that go to the residual, and of q, k and v.
  float* products;
  float* qkv;
  __half* q;         // [tokens, heads, head_dim]
  __half* q_rest;    // the same: the second part of queries
  __half* attended;  // Activations, heads * head_dim
  // What the last layer goes on with, where logits are not wanted of all tokens; of one row
  // residual[1] then alternates with it.
  float* kept_residual;   // [logit rows, hidden]
  __half* kept_attended;  // Activations of logit rows, heads * head_dim
  __half* head_in;        // Activations of logit rows, hidden
  float* angles;          // [positions, head_dim]
  int32_t* query_parts;   // [layers, kv_heads]
  // [tokens, 2 * ffn], where a layer has gate and up apart; else null.
  float* gate_and_up;
  uint8_t* unpacked;  // F16 tiles of a matrix, or of a part of it
  int64_t unpacked_bytes;
  // Room for weights that are unpacked ahead, where nothing else is then: from qkv to attended
  // while gate and up are multiplied, and that of products where they add to the residual
  // themselves.
  int64_t qkv_to_attended_bytes;
  int64_t products_bytes;
  HandedSums handed;
  // One and the same memory: of these there is no more than one at a time.
  __half* gated;              // Activations, ffn
  float* logits;              // [logit rows, vocab]
  float* attention_partials;  // DecodeAttentionArgs::partials
  int32_t* attention_counters;
  int32_t* last_sample;  // [slots]
  // [block][block_tokens], the tokens that stand in the KV blocks.
  int32_t* block_token_ids;
  // [slots] whether a sequence met a key or a value that was not finite.
  int32_t* not_finite;
  size_t bytes;
};

// Launches the kernels of steps. Owns nothing: views the weights and the buffers. One thread.
class Forward {
 public:
  // References must outlive this.
  Forward(const ModelConfig& config, const DeviceWeights& weights, const ForwardBuffers& buffers,
          const KvCacheView& kv, int multiprocessors);

  // Enqueues a step; the logits of its rows are in buffers.logits afterwards. With a tap (null in
  // service), waits for every operation to show its result, and allocates memory to do so.
  absl::Status Enqueue(const StepTables& tables, const StepShape& shape, cudaStream_t stream,
                       ActivationTap* tap);

 private:
  class Tap;

  // Of the step that is enqueued.
  struct Step {
    const StepTables& tables;
    const StepShape& shape;
    cudaStream_t stream;
    Tap* tap;
    // Products unpack the weights of those that follow: gate and up those of `down`, that one the
    // next layer's others.
    bool unpacks_ahead = false;
  };

  Activations View(__half* data, int tokens) const;
  absl::Status Multiply(const Step& step, MatmulArgs args);
  // With weights in F16, in memory of ours.
  absl::Status MultiplyUnpacked(const Step& step, MatmulArgs args);
  // Into `to`, in splits_ segments.
  absl::Status MultiplyInSegments(const Step& step, float* to, MatmulArgs args);
  // What is to be added, times `scale`, to the residual: at once where ProductsAdd, else left in
  // segments for the next norm.
  absl::Status MultiplyForResidual(const Step& step, float scale, MatmulArgs args);
  // Whether products make their normed input themselves.
  bool NormsInProducts(const Step& step) const;
  // Whether products add to the residual themselves.
  bool ProductsAdd(const Step& step) const;
  // Whether the product of q, k and v makes queries, keys and values itself.
  bool ProductsRope(const Step& step) const;
  // Adds `scale` times the last product, if `add` and it is not added yet, to the residual, and
  // norms it: into `normed`, or as something for the product `args` to do.
  absl::Status Norm(const Step& step, const float* weight, float scale, bool add, MatmulArgs& args);
  // To `attended_`.
  absl::Status RunAttention(const Step& step, int layer);
  // Leaves of the residual and of `attended_` the rows whose logits are wanted.
  absl::Status KeepLogitRows(const Step& step);
  absl::Status RunAttentionOutput(const Step& step, int layer);
  RopeArgs RopeOf(const Step& step, int layer, const QkvProduct& qkv) const;
  absl::Status Rope(const Step& step, int layer, const QkvProduct& qkv);
  absl::Status RunFfn(const Step& step, int layer);
  bool UnpacksAhead(const Step& step) const;
  absl::Status RunHead(const Step& step);
  absl::Status TapHead(const Step& step);

  const ModelConfig& config_;
  const DeviceWeights& weights_;
  const ForwardBuffers& buffers_;
  const KvCacheView kv_;
  const int multiprocessors_;
  // The residual, and where it goes when it is updated elsewhere.
  float* residual_ = nullptr;
  float* new_residual_ = nullptr;
  Activations attended_;
  // Segments that hold the last product, and tokens from one to the next.
  int splits_ = 1;
  int products_tokens_ = 0;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_FORWARD_H_
