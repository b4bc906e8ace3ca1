// Symbolic kernel launches, in place of the kernels: they read and write what the kernels'
// headers say, so that a Forward runs on memory of expressions. Data in the wrong place,
// overwritten too early or read too soon then shows without a GPU.
//
// Launches are recorded first and performed later, so that a test can put faults between the two.
#ifndef ORCD_CUDA_FORWARD_CHECK_SYMBOLIC_GPU_H_
#define ORCD_CUDA_FORWARD_CHECK_SYMBOLIC_GPU_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_weights.h"
#include "cuda/forward.h"
#include "cuda/forward_check/symbolic_memory.h"
#include "cuda/kernels/common/attention.h"
#include "cuda/kernels/common/delta_net.h"
#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/kernel_set.h"
#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/predict.h"
#include "cuda/kernels/common/sample.h"
#include "cuda/kernels/common/step.h"
#include "cuda/step_tables.h"
#include "runtime/model/spec.h"

namespace orcd::cuda {

// A kernel set with symbolic launches: sm90, or one that fuses nothing.
KernelSet SymbolicKernels(bool fuses);

// The arguments of the launches that are not one struct, or that share one.
struct MatvecArgs : MatmulArgs {};
struct GemmArgs : MatmulArgs {};
struct DeltaInputsLaunch : DeltaArgs {};
struct DeltaRuleLaunch : DeltaArgs {};
struct DeltaGateLaunch : DeltaArgs {};
struct DeltaTokenLaunch : DeltaArgs {};
struct DequantiseArgs {
  Product product;
  int first_tile;
  int tiles;
  const uint8_t* out;
};

struct KernelLaunch {
  std::variant<EmbedArgs, NormArgs, ClearPaddingArgs, GatherRowsArgs, RopeArgs,
               PrefillAttentionArgs, DecodeAttentionArgs, MatvecArgs, GemmArgs, SwiGluArgs,
               DequantiseArgs, RouterArgs, ChooseExpertsArgs, RouteOneTokenArgs,
               GatherExpertRowsArgs, ExpertMatmulArgs, CombineExpertsArgs, DeltaInputsLaunch,
               DeltaRuleLaunch, DeltaGateLaunch, DeltaTokenLaunch, DeltaReplayArgs,
               GateAttentionArgs, ScaleLogitsArgs, SampleArgs, PredictInputsArgs, KeepHiddenArgs,
               PredictTokensArgs>
      args;
  cudaStream_t stream;
};

// The expressions of which a QkvProduct makes queries, keys and values; -1 for those that it does
// without, and the rest of its rules as text.
struct QkvParts {
  Symbol q = -1;
  Symbol k = -1;
  Symbol v = -1;
  Symbol bias = -1;
  Symbol q_norm = -1;
  Symbol k_norm = -1;
  Symbol angles = -1;
  std::string rules;
};
std::string QkvRules(RopePairs pairs, int rope_dims, bool norms, bool norm_projection,
                     float temperature, int temperature_length);

// The expressions that the launches of a delta net share.
struct DeltaSymbols {
  Symbol u = -1;
  Symbol z = -1;
  // The products of beta and alpha.
  Symbol rates = -1;
  Symbol convolved = -1;
  Symbol factors = -1;
};

// The expressions of which the inputs of the block that predicts tokens are made; -1 for those that
// a launch does without.
struct PredictParts {
  Symbol tokens = -1;
  // Hidden states: of slots, and of rows.
  Symbol slots = -1;
  Symbol rows = -1;
};

// One instance at a time, on one thread: launches go to the latest. Addresses of the step's tables,
// of the cache and of recurrent states are checked, and not what lies there.
class SymbolicGpu {
 public:
  // Weights and buffers lie at addresses that are never dereferenced. References must outlive this.
  SymbolicGpu(const ModelSpec& spec, const DeviceWeights& weights, const ForwardBuffers& buffers,
              const KvCaches& kv, const DeltaStates& states, const KernelSet& kernels);
  ~SymbolicGpu();
  SymbolicGpu(const SymbolicGpu&) = delete;
  SymbolicGpu& operator=(const SymbolicGpu&) = delete;

  // Begins a step with new tokens, and without keys and values yet.
  void BeginStep(const TableLayout& tables, const StepShape& shape, int turn, cudaStream_t stream);
  void Record(const KernelLaunch& launch) { recorded_.push_back(launch); }
  // The launches since the last Run.
  std::vector<KernelLaunch>& recorded() { return recorded_; }
  // Performs the recorded launches in order, up to the first error.
  void Run();

  const Symbols& symbols() const { return symbols_; }
  // The expression of the model's matrix or vector at `data`; -1 for null.
  Symbol WeightAt(const void* data) const;
  // The expression of the layer's keys and values in the cache; -1 if there are none.
  Symbol keys_and_values(int layer) const { return keys_and_values_[layer]; }
  // The expression of the layer's recurrent state after the step; -1 if there is none.
  Symbol recurrent_state(int layer) const { return recurrent_states_[layer]; }
  // The expression of the last choice of experts whose load the host got; -1 if it got none.
  Symbol told_load() const { return told_load_; }
  // The expression of the logits from which the step's tokens were drawn; -1 if none were.
  Symbol drawn_from() const { return drawn_from_; }
  // The block that predicts tokens: its keys and values of the step's tokens, what slots keep,
  // and the logits of predictions, in their order.
  Symbol followed() const { return followed_; }
  Symbol kept_hidden() const { return kept_hidden_; }
  const std::vector<Symbol>& predicted_from() const { return predicted_from_; }
  // The first error of the step; empty if there is none.
  const std::string& problem() const { return problem_; }

  // The expressions that launches make. Tests build the expected results with them.
  Symbol Embedded(Symbol embedding, float scale) {
    return symbols_.Make(absl::StrCat("tokens of step ", step_, " times ", scale), {embedding});
  }
  Symbol Product(Symbol weights, Symbol x) { return symbols_.Make("product", {weights, x}); }
  Symbol Add(Symbol residual, Symbol product, float scale);
  // A branch with a bias or a norm of its own, as it is added to the residual.
  Symbol Branch(Symbol product, float scale, Symbol bias, Symbol post_norm, NormKind kind) {
    const Symbol biased = symbols_.Make(absl::StrCat(scale, " *, plus"), {product, bias});
    return post_norm < 0 ? biased : Normed(biased, post_norm, kind);
  }
  // Without a weight, the residual itself.
  Symbol Normed(Symbol residual, Symbol weight, NormKind kind) {
    if (weight < 0) return symbols_.Make("as F16", {residual});
    return symbols_.Make(kind == NormKind::kRms ? "norm" : "layer norm", {residual, weight});
  }
  Symbol Rows(Symbol of) { return symbols_.Make("rows", {of}); }
  Symbol Gate(Symbol product, Activation activation) {
    return symbols_.Make(absl::StrCat("gate ", static_cast<int>(activation)), {product});
  }
  Symbol Gate(Symbol gate, Symbol up, Symbol bias, Activation activation) {
    return symbols_.Make(absl::StrCat("gate apart ", static_cast<int>(activation)),
                         {gate, up, bias});
  }
  Symbol Qkv(const QkvParts& parts) {
    return symbols_.Make(
        absl::StrCat("qkv ", parts.rules),
        {parts.q, parts.k, parts.v, parts.bias, parts.q_norm, parts.k_norm, parts.angles});
  }
  Symbol Angles(const RopeSpec& rope) {
    return symbols_.Make(absl::StrCat("angles of base ", rope.base, " and dims ", rope.dims));
  }
  Symbol QuerySplit(int layer) { return symbols_.Make(absl::StrCat("parts of queries ", layer)); }
  // `sinks` is -1 if there are none.
  Symbol Attention(Symbol qkv, Symbol sinks, const AttentionRule& rule) {
    return symbols_.Make(absl::StrCat("attention ", rule.score_scale, " ", rule.score_softcap, " ",
                                      rule.window, " ", rule.first_key),
                         {qkv, sinks});
  }
  // Experts; -1 stands for what they do without.
  Symbol RouterLogits(Symbol weights, Symbol x, Symbol bias) {
    return symbols_.Make("router", {weights, x, bias});
  }
  Symbol Choice(const ExpertsSpec& spec, bool shared_joins, Symbol logits, Symbol selection_bias);
  Symbol Sorted(Symbol x, Symbol choice) { return symbols_.Make("sorted", {x, choice}); }
  Symbol ExpertProduct(Symbol weights, Symbol x, Symbol choice, Symbol bias) {
    return symbols_.Make("product of experts", {weights, x, choice, bias});
  }
  Symbol Combined(Symbol y, Symbol choice, Symbol bias, Symbol shared, float scale, bool gated) {
    return symbols_.Make(absl::StrCat("sum of experts times ", scale, gated ? ", gated" : ""),
                         {y, choice, bias, shared});
  }
  // Recurrent layers and gated attention.
  Symbol StateBefore(int layer) {
    return symbols_.Make(absl::StrCat("state of layer ", layer, " before step ", step_));
  }
  Symbol Convolved(Symbol u, Symbol conv, int layer) {
    return symbols_.Make("convolved", {u, conv, StateBefore(layer)});
  }
  Symbol Factors(Symbol rates, Symbol a, Symbol dt_bias) {
    return symbols_.Make("factors", {rates, a, dt_bias});
  }
  Symbol DeltaRule(const DeltaSymbols& of, int layer) {
    return symbols_.Make("delta rule", {of.convolved, of.factors, StateBefore(layer)});
  }
  Symbol MovedState(const DeltaSymbols& of, int layer) {
    return symbols_.Make("state moved by", {of.u, of.convolved, of.factors, StateBefore(layer)});
  }
  Symbol KeptDraft(const DeltaSymbols& of) {
    return symbols_.Make("draft of", {of.u, of.convolved, of.factors});
  }
  Symbol Replayed(Symbol state, Symbol draft) {
    return symbols_.Make("state moved by a draft", {state, draft});
  }
  Symbol DeltaGated(Symbol o, Symbol z, Symbol norm) {
    return symbols_.Make("delta gated", {o, z, norm});
  }
  Symbol GatedAttention(Symbol attended, Symbol gate) {
    return symbols_.Make("attention gated", {attended, gate});
  }
  Symbol ScaledLogits(Symbol product, float scale, float softcap) {
    return symbols_.Make(absl::StrCat("logits ", scale, " ", softcap), {product});
  }
  // The block that predicts tokens.
  Symbol SlotsBefore() {
    return symbols_.Make(absl::StrCat("hidden states of slots before step ", step_));
  }
  Symbol StepTokens() { return symbols_.Make(absl::StrCat("ids of step ", step_)); }
  // The tokens that were drawn from `logits`.
  Symbol Drawn(Symbol logits) { return symbols_.Make("drawn", {logits}); }
  Symbol Pairs(Symbol embedding, Symbol embedding_norm, Symbol hidden_norm,
               const PredictParts& of) {
    return symbols_.Make("pairs",
                         {embedding, embedding_norm, hidden_norm, of.tokens, of.slots, of.rows});
  }
  Symbol Zeros() { return symbols_.Make("zeros"); }
  // `drawn` is -1 if the step draws nothing.
  Symbol Kept(Symbol rows, Symbol drawn) { return symbols_.Make("kept", {rows, drawn}); }

 private:
  class Launch;
  // A matrix of the model. Every product of it has the same split-K factor.
  struct Placed {
    int row_tiles;
    int splits;
    int exponent;
    // Rows of each expert's matrix, padded, and without padding; 0: the matrix is not of experts.
    int expert_rows;
    int stored_rows;
  };

  void Perform(const EmbedArgs& args);
  void Perform(const NormArgs& args);
  void Perform(const ClearPaddingArgs& args);
  void Perform(const GatherRowsArgs& args);
  void Perform(const RopeArgs& args);
  void Perform(const PrefillAttentionArgs& args);
  void Perform(const DecodeAttentionArgs& args);
  void Perform(const MatvecArgs& args);
  void Perform(const GemmArgs& args);
  void Perform(const SwiGluArgs& args);
  void Perform(const DequantiseArgs& args);
  void Perform(const RouterArgs& args);
  void Perform(const ChooseExpertsArgs& args);
  void Perform(const RouteOneTokenArgs& args);
  void Perform(const GatherExpertRowsArgs& args);
  void Perform(const ExpertMatmulArgs& args);
  void Perform(const CombineExpertsArgs& args);
  void Perform(const DeltaInputsLaunch& args);
  void Perform(const DeltaRuleLaunch& args);
  void Perform(const DeltaGateLaunch& args);
  void Perform(const DeltaTokenLaunch& args);
  void Perform(const DeltaReplayArgs& args);
  void Perform(const GateAttentionArgs& args);
  void Perform(const ScaleLogitsArgs& args);
  void Perform(const SampleArgs& args);
  void Perform(const PredictInputsArgs& args);
  void Perform(const KeepHiddenArgs& args);
  void Perform(const PredictTokensArgs& args);
  void PerformPrediction(const SampleArgs& args);

  // `matrix` has no rows if the model lacks it. Of experts, it has `stored_rows` rows each.
  void PlaceMatrix(const std::string& name, const TiledMatrix& matrix, int splits = 1,
                   int experts = 0, int stored_rows = 0);
  void PlaceVector(const std::string& name, const float* data, int size);
  void Complain(const std::string& what);
  // The weights of a product, of which row tiles [first_tile, …) are at `matrix`; null, and a
  // problem, if they are not there.
  struct Weights {
    Symbol symbol = -1;
    int first_tile = 0;
  };
  const Placed* ReadWeights(Launch& launch, const TiledMatrix& matrix, Weights& weights);
  // Writes the result of a product of either kernel with input `x`.
  void Multiply(Launch& launch, const MatmulArgs& args, Symbol x);
  // Writes queries, keys and values as the RoPE kernel and the RoPE epilogue do.
  void WriteQkv(Launch& launch, const RopeArgs& args, Symbol qkv);
  // Reads what `qkv` needs beside the products, for the layer in `kv`.
  QkvParts ReadConstants(Launch& launch, const QkvProduct& qkv, int layer);
  void ExpectQuerySplit(Launch& launch, const int32_t* parts, int layer);
  template <typename Args>
  Symbol Attend(Launch& launch, const Args& args, const int32_t* query_split, int layer);
  // Reads the products as well, and returns the whole.
  Symbol ReadQkv(Launch& launch, const QkvProduct& qkv, int tokens, int layer);
  // The product and its columns from `first_col` on.
  Symbol ReadDelta(Launch& launch, const DeltaArgs& args, int first_col, int cols,
                   const std::string& what);
  Symbol ReadConvolved(Launch& launch, const DeltaArgs& args, Symbol u, int layer);
  Symbol ReadFactors(Launch& launch, const DeltaArgs& args, Symbol& rates);
  void MoveState(Launch& launch, const DeltaSymbols& of, int layer);
  // Checks what a launch knows of the step's draws. Returns the tokens drawn; -1: there are none.
  Symbol ExpectDraws(Launch& launch, const StepDraws& of);
  // The marks of the layer's keys and values that are not finite.
  const int32_t* MarksOf(int layer) const;
  void PlacePredictBlock(const DeviceWeights& weights);
  // Adds the branch of `args`, if it has one, to `residual`.
  Symbol AddBranch(Launch& launch, const NormArgs& args, int tokens, Symbol residual);
  // The norm of one token by the launch that takes its output.
  Symbol NormOfOneToken(Launch& launch, const NormArgs& norm, int cols);
  Symbol LogitsOf(Launch& launch, const RouterArgs& args, Symbol x);
  void Choose(Launch& launch, const ChooseExpertsArgs& args, Symbol logits);
  // The expression that rows [0, rows) of the logits hold; -1, and a problem, if they do not hold
  // one.
  Symbol LogitsHeld(Launch& launch, int rows);

  const ModelSpec& spec_;
  const LayerSpec& layer_;
  const ForwardBuffers& buffers_;
  const KvCaches kv_;
  const DeltaStates states_;
  const KernelSet& kernels_;
  // The model's layers that are in each cache, in order.
  std::vector<int> whole_layers_;
  std::vector<int> window_layers_;
  // Those that are recurrent, in order, and by their place in a state.
  std::vector<int> recurrent_layers_;
  std::map<int64_t, int> layer_of_state_;
  // Their places in what is kept of a draft.
  std::map<int, int64_t> draft_offsets_;
  // True if queries may have two F16 parts, as keys have a bias.
  std::vector<bool> splits_queries_;
  StepTables tables_;
  // All of the step's tables.
  std::optional<TableLayout> layout_;
  StepShape shape_;
  int turn_ = 0;
  cudaStream_t stream_ = nullptr;
  // Rows that the current layer computes: the step's tokens, and logit rows once they are gathered.
  int rows_ = 0;
  std::vector<KernelLaunch> recorded_;
  // The launch before the one that is performed; null for the first.
  const KernelLaunch* before_ = nullptr;
  Symbols symbols_;
  SymbolicMemory memory_;
  // The model's matrices and vectors by address, and what is known of each matrix.
  std::map<uintptr_t, Symbol> weights_;
  std::map<Symbol, Placed> matrices_;
  uintptr_t weights_end_ = 0;
  std::vector<Symbol> keys_and_values_;
  std::vector<Symbol> recurrent_states_;
  Symbol told_load_ = -1;
  // Rows of a tile of the last choice of experts.
  int tile_rows_ = 0;
  Symbol drawn_from_ = -1;
  // The block that predicts tokens, whose layer is the last: whether there is one.
  bool has_block_ = false;
  // True once a launch of the block has run in the step, and once one of predictions has.
  bool follows_ = false;
  bool predicts_ = false;
  Symbol followed_ = -1;
  Symbol kept_hidden_ = -1;
  std::vector<Symbol> predicted_from_;
  // Products with a RoPE epilogue by their first row, until those of q, k and v have all run.
  std::map<int, Symbol> qkv_products_;
  int step_ = 0;
  int scratches_ = 0;
  std::string problem_;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_FORWARD_CHECK_SYMBOLIC_GPU_H_
