// The model on the GPU: computes logits from a step's tables.
#ifndef ORCD_CUDA_FORWARD_H_
#define ORCD_CUDA_FORWARD_H_

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "cuda/delta_buffers.h"
#include "cuda/device.h"
#include "cuda/device_memory.h"
#include "cuda/device_weights.h"
#include "cuda/expert_buffers.h"
#include "cuda/kernels/common/attention.h"
#include "cuda/kernels/common/delta_net.h"
#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/predict.h"
#include "cuda/kernels/common/sample.h"
#include "cuda/kernels/common/step.h"
#include "cuda/predict_buffers.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/expert_load.h"
#include "runtime/model/spec.h"

namespace orcd::cuda {

// Determines the kernels of a step and their grids.
struct StepShape {
  int tokens = 0;
  int sequences = 0;
  int logit_rows = 0;
  // True if every entry of SequenceEntry runs one token.
  bool decode = false;
  // True if entries may see each other's keys, as a draft sees those of the tokens before it.
  bool drafts = false;
  // Decode step: blocks that share a sequence's keys. Any other step: tiles of queries.
  int key_splits = 1;
  int query_tiles = 0;
};

// Upper bounds on the steps that a Forward can run.
struct ForwardLimits {
  int max_tokens = 0;
  // Sequences of a step, of which each draft is one (WriteTables), and slots of their state.
  int max_seqs = 0;
  // Those drafts; used if the model has recurrent layers.
  int max_drafts = 0;
  // Key tiles of all sequences of a step together, if several blocks share a sequence's keys.
  int max_key_tiles = 0;
  // Largest number of positions of a sequence.
  int context_length = 0;
  // Tokens that the KV cache holds.
  int64_t kv_tokens = 0;
  // The set that computes, which decides what room weights in F16 and stream-K need. Null: room for
  // any set.
  const KernelSet* kernels = nullptr;
};

// The rules of rotation that occur in a model, each once, in the order of the layers.
std::vector<RopeSpec> RopesOf(const ModelSpec& spec);

// Addresses of a step's intermediate results, all in one slab.
struct ForwardBuffers {
  // If `slab` is null, only sizes are meaningful, such as `bytes`.
  ForwardBuffers(const ModelSpec& spec, const DeviceWeights& weights, const ForwardLimits& limits,
                 uint8_t* slab);

  float* residual[2];  // [tokens, hidden] and [1, hidden]: with one token they alternate
  __half* normed;      // Activations [tokens, hidden]
  // StoreF32::y of the products that are added to the residual, and of q, k and v.
  // The latter are also those that a delta net takes.
  float* products;
  float* qkv;
  __half* q;         // [tokens, heads, head_dim]
  __half* q_lo;      // the same: low part of the hi/lo split of Q
  __half* attended;  // Activations [tokens, width of attention or of a delta net]
  // Gathered rows with which the last layer goes on if not all tokens have logits. With one row,
  // gathered_residual and residual[1] alternate.
  float* gathered_residual;   // [logit rows, hidden]
  __half* gathered_attended;  // Activations [logit rows, as `attended`]
  __half* head_in;            // Activations [logit rows, hidden]
  // QkvProduct::angles of each of RopesOf, [positions, dims].
  std::vector<float*> angles;
  int32_t* query_split;  // [layers, kv_heads] F16 parts of Q: 1, or 2 (hi/lo split)
  // [tokens, 2 * ffn]; null unless a layer has gate and up in separate matrices.
  float* gate_and_up;
  // F16 tiles of dequantised weights: a matrix or a part of it. Empty if none are dequantised.
  uint8_t* dequantised;
  int64_t dequantised_bytes;
  StreamKWorkspace stream_k;  // null where no kernel uses it
  // These three and the rows of DeltaBuffers alias the same memory: at most one of them is in use
  // at a time. Behind `gated`, the memory is that of ExpertBuffers::inputs and y.
  __half* gated;              // Activations [tokens, ffn], or of experts [MaxExpertRows, ffn]
  float* logits;              // [logit rows, vocab]
  float* attention_partials;  // DecodeAttentionArgs::partials
  int32_t* attention_counters;
  int32_t* last_sample;  // [slots]
  // [block][block_tokens], the ids of the tokens in the KV blocks.
  int32_t* block_token_ids;
  // [slots], nonzero if a sequence met a key or a value that was not finite.
  int32_t* not_finite;
  ExpertBuffers experts;
  DeltaBuffers delta;
  PredictBuffers predict;
  size_t bytes;
};

// The caches of the layers without a window and of those with one.
struct KvCaches {
  KvCacheView whole;
  KvCacheView windows;
};

// Decides the launches of a layer.
struct LayerPlan {
  // All but the partials.
  QkvProduct qkv;
  AttentionRule rule;
  // [slots], where keys and values that are not finite are marked.
  int32_t* not_finite = nullptr;
  // Number of the layer within its cache. A recurrent layer is in none.
  int cache_layer = 0;
  // Those of a recurrent layer (DeltaStates, DeltaDrafts).
  int64_t state_offset = 0;
  int64_t draft_offset = 0;
  // True if products of many tokens can add to the residual in their epilogue.
  bool attn_adds = false;
  bool ffn_adds = false;

  bool in_windows() const { return rule.window > 0; }
};

// True if queries of such heads may have two F16 parts.
constexpr bool SplitsQueries(int head_dim) { return head_dim <= 128; }

std::vector<LayerPlan> PlanLayers(const ModelSpec& spec, const DeviceWeights& weights,
                                  const ForwardBuffers& buffers);

// The predictions of a step (PredictTokensArgs).
struct PredictTables {
  const PredictEntry* entries = nullptr;
  // Greedy draws without penalties. The draw of entry i has slot i and result i.
  const DrawEntry* draws = nullptr;
};

// Launches the kernels of steps. Owns nothing: views the weights and the buffers. One thread.
class Forward {
 public:
  // References must outlive this. `states` are those of the first recurrent layer. If the weights
  // have a block that predicts tokens, its layer is the last of `spec` (WithBlock).
  Forward(const ModelSpec& spec, const DeviceWeights& weights, const ForwardBuffers& buffers,
          const KvCaches& kv, const DeltaStates& states, const DeviceInfo& device);

  // Enqueues step `turn` of those in flight; its logits are in buffers.logits afterwards, a row per
  // logit row. With a tap (null in service), waits for every operation to show its result, and
  // allocates memory to do so. `load`, if not null, is memory of the host that gets the load of
  // experts of this and all earlier steps, unless the step runs no layer that has some.
  absl::Status Enqueue(const StepTables& tables, const StepRuns& runs, const StepShape& shape,
                       int turn, cudaStream_t stream, ActivationTap* tap,
                       ExpertLoad* load = nullptr);

  // Enqueues, behind a step and its draws, what the block that predicts tokens keeps of it: keys
  // and values of all its tokens, and the hidden state of each of its sequences.
  absl::Status FollowSequences(const StepDraws& of, const StepShape& shape, cudaStream_t stream);
  // Behind that, enqueues predictions: after the step's draws those of the first rows[0] entries of
  // `tables`, then further ones of the first rows[1], and so on; rows do not increase. Row r of the
  // i-th predictions gets its result at results[i * stride + r].
  absl::Status Predict(const StepDraws& of, const PredictTables& tables, std::span<const int> rows,
                       DrawResult* results, int stride, cudaStream_t stream);

  // Enqueues the moves of recurrent states by the drafts of step `turn` that were right, at most
  // kMaxReplays.
  absl::Status Replay(std::span<const DeltaReplayArgs::Replay> replays, int turn,
                      cudaStream_t stream) const;

 private:
  class Tap;

  // The step that is being enqueued. StepTables::tokens are null once rows have been gathered.
  struct Step {
    const StepTables& tables;
    const StepRuns& runs;
    const StepShape& shape;
    int turn = 0;
    cudaStream_t stream;
    Tap* tap = nullptr;
    // As of Enqueue, and the layer that writes it.
    ExpertLoad* load = nullptr;
    int load_layer = -1;
  };

  // A product that was left as split-K partials, which the next norm adds to the residual.
  struct Branch {
    const float* partials = nullptr;
    int splits = 0;
    int partials_tokens = 0;
    float scale = 1;
    const float* bias = nullptr;
    const float* post_norm = nullptr;
    // For taps.
    TapPoint post_norm_point = TapPoint::kAttnPostNorm;
    int layer = 0;
  };

  static Activations View(__half* data, int tokens);
  // Zeros what a kernel that writes `cols` columns to `to` leaves unwritten.
  static absl::Status ClearPadding(const Step& step, const Activations& to, int cols);
  absl::Status Multiply(const Step& step, MatmulArgs args);
  // Dequantises the weights to F16 in `buffers_.dequantised` first.
  absl::Status MultiplyDequantised(const Step& step, MatmulArgs args);
  // Writes the product to `to` as splits_ split-K partials, or their sum.
  absl::Status MultiplySplitK(const Step& step, float* to, MatmulArgs args);
  // Multiplies, for `branch`, which has all but the partials. Many tokens' products are added to
  // the residual by the epilogue if it `can_add`, others by the next norm, from `branch_`.
  absl::Status MultiplyForResidual(const Step& step, bool can_add, Branch branch, MatmulArgs args);
  // True if a step has products large enough to add to the residual and to make queries, keys and
  // values, in their epilogue.
  bool HasEpilogues(const Step& step) const;
  // True if the product of q, k and v has a RoPE epilogue: it writes queries, keys and values.
  bool RopeEpilogues(const Step& step, const LayerPlan& plan) const;
  // Adds `branch_` to the residual, if it is not empty, and normalises the residual: into `normed`
  // (`head`: the rows with logits, into `head_in`) or, with one token, in the prologue of product
  // `args`, if `in_product` and products can. A null weight does not normalise.
  // `out_f32` is as in NormArgs, for norms that stand on their own.
  absl::Status Norm(const Step& step, const float* weight, MatmulArgs& args, bool in_product = true,
                    bool head = false, float* out_f32 = nullptr);
  // Adds `branch_`, if it is not empty, to the residual.
  absl::Status AddBranch(const Step& step);
  // The arguments of a norm that adds `branch`, but for the rows and what it writes.
  NormArgs NormOf(const Branch& branch, const float* weight) const;
  // The norm for the launch that takes its output, which writes the residual elsewhere.
  NormArgs LeaveToLaunch(NormArgs norm);
  // Launches the norm, which adds `branch`.
  absl::Status RunNorm(const Step& step, const Branch& branch, NormArgs norm);
  // Attention or the delta net: writes to `attended_`.
  absl::Status RunMixer(const Step& step, int layer);
  // The norm and the product of queries, keys and values, which are all made if RopeEpilogues; else
  // `qkv` has the rest.
  absl::Status MultiplyQkv(const Step& step, int layer, QkvProduct& qkv);
  absl::Status RunAttention(const Step& step, int layer);
  absl::Status RunDeltaNet(const Step& step, int layer);
  // The norm before either, of which `args` gets the result.
  absl::Status MixerNorm(const Step& step, int layer, MatmulArgs& args, bool in_product);
  // Multiplies `attended_` by the gate, if the layer has one.
  absl::Status GateAttention(const Step& step, int layer);
  // Columns of `attended_`.
  int AttendedCols(int layer) const;
  // Arguments that the launches of a delta net share, without the product.
  DeltaArgs DeltaOf(const Step& step, int layer) const;
  DeltaDrafts DraftsOf(int turn) const;
  // Gathers the rows of the last layer's residual and `attended_` that have logits.
  absl::Status GatherLogitRows(const Step& step);
  absl::Status RunAttentionOutput(const Step& step, int layer);
  const KvCacheView& CacheOf(const LayerPlan& plan) const;
  static StepTables TablesOf(const Step& step, const LayerPlan& plan);
  RopeArgs RopeOf(const Step& step, const LayerPlan& plan, const QkvProduct& qkv) const;
  absl::Status Rope(const Step& step, int layer, const QkvProduct& qkv);
  absl::Status RunFfn(const Step& step, int layer);
  // Writes the input of `down`, of the layer's FFN or shared expert, to `gated`. The product is the
  // layer's unless `args` has one.
  absl::Status RunGate(const Step& step, int layer, MatmulArgs args);
  // Multiplies by gate and up, and then applies the gate, in a kernel of its own.
  absl::Status RunGateApart(const Step& step, int layer, MatmulArgs args, const Activations& gated);
  // The layer's experts, with the shared one if it joins them.
  ExpertsSpec AllExperts(int layer) const;
  // Leaves the output of the layer's experts in `branch_`: for input x, or for that of a norm with
  // which they RoutesWithNorm.
  absl::Status RunExperts(const Step& step, int layer, const Prologue& x);
  // True if one launch takes the layer's norm, router and choice of experts.
  bool RoutesWithNorm(const Step& step, int layer, const NormArgs& norm) const;
  // Writes `tables`.
  absl::Status ChooseExperts(const Step& step, int layer, const Prologue& x,
                             const ExpertTables& tables);
  // Multiplies the rows that `tables` name: x of experts' inputs to `experts.y`.
  absl::Status MultiplyExperts(const Step& step, int layer, const Activations& x,
                               const ExpertTables& tables);
  // The product of the layer's experts by gate and up, or `down`, without x and epilogue.
  ExpertMatmulArgs ExpertProduct(int layer, const ExpertTables& tables, int tokens,
                                 bool down = false) const;
  // Both of the above for a step of one token, whose rows are not gathered (OneToken). If
  // AddsOneToken, the sum of the outputs is in `experts.out`, otherwise they are in `experts.y`.
  absl::Status MultiplyOneToken(const Step& step, int layer, const Prologue& x,
                                const ExpertTables& tables);
  static bool AddsOneToken(const Step& step, const ExpertsSpec& all);
  // Shows the sum of the experts' outputs without the shared one. Of one that joins them gate and
  // up are multiplied once more, as a matrix alone.
  absl::Status TapExperts(const Step& step, int layer, const Prologue& x, CombineExpertsArgs args);
  absl::Status RunHead(const Step& step);
  // The same if there is a block that predicts tokens, for which all rows are normalised.
  absl::Status RunHeadBesideBlock(const Step& step);
  // Makes the block's input, of `from`, in the residual.
  absl::Status RunPredictInputs(const Step& step, PredictInputsArgs from);
  // The block's head; its hidden states.
  absl::Status RunPredictHead(const Step& step);
  absl::Status TapHead(const Step& step);
  // Scales logits, [rows, vocab], if the model does.
  absl::Status ScaleLogits(const Step& step, float* logits, int rows) const;

  const ModelSpec& spec_;
  // Without that of the block that predicts tokens.
  const int num_layers_;
  // All layers have its shape of attention and its form, but not its FFN or its delta net.
  const LayerSpec& layer_;
  const DeviceWeights& weights_;
  const ForwardBuffers& buffers_;
  const KvCaches kv_;
  const DeltaStates states_;
  const std::vector<LayerPlan> plans_;
  const DeviceTraits& device_;
  const KernelSet& kernels_;
  // The residual, and the buffer it moves to if a product updates it out of place.
  float* residual_ = nullptr;
  float* new_residual_ = nullptr;
  Activations attended_;
  Branch branch_;
  // Number of split-K partials of the last product, and their stride in tokens.
  int splits_ = 1;
  int products_tokens_ = 0;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_FORWARD_H_
