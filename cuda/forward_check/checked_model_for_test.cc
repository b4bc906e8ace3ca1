#include "cuda/forward_check/checked_model_for_test.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "cuda/memory_plan.h"
#include "runtime/base/error.h"
#include "runtime/model/predict_block.h"
#include "runtime/model/weights.h"
#include "runtime/sampling/token_mask.h"

namespace orcd::cuda {
namespace {

constexpr int kMostTokens = 4096;
constexpr int kMostSeqs = 1024;

// Addresses at which nothing lies, far from each other.
template <typename T = uint8_t>
T* Nowhere(int which) {
  return reinterpret_cast<T*>(uintptr_t(which) << 44);
}

// Types that differ between layers, and between the matrices of a layer. Some share a tile format.
TensorType MixedType(MatrixRole role, int layer, int cols) {
  constexpr TensorType kAny[] = {TensorType::kF32,   TensorType::kF16,  TensorType::kBF16,
                                 TensorType::kQ8_0,  TensorType::kQ4_0, TensorType::kQ5_1,
                                 TensorType::kIQ4_NL};
  constexpr TensorType kWhole[] = {TensorType::kF32,  TensorType::kF16,  TensorType::kBF16,
                                   TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ5_1,
                                   TensorType::kQ3_K, TensorType::kQ6_K, TensorType::kQ4_K,
                                   TensorType::kQ2_K, TensorType::kQ5_K, TensorType::kIQ4_NL};
  // In every third layer gate and up have one type; those of experts always have.
  if (role == MatrixRole::kFfnUp && layer % 3 == 2) role = MatrixRole::kFfnGate;
  if (role == MatrixRole::kExpertUp) role = MatrixRole::kExpertGate;
  // Roles of delta nets leave no gap.
  int which = layer + static_cast<int>(role);
  if (role > MatrixRole::kDelta) {
    which -= static_cast<int>(MatrixRole::kDelta) - static_cast<int>(MatrixRole::kAttnOutput);
  }
  return cols % 256 == 0 ? kWhole[which % std::size(kWhole)] : kAny[which % std::size(kAny)];
}

ModelSpec SpecOf(const ModelCase& c) {
  ModelSpec spec;
  spec.hidden = c.shape.hidden;
  const int head_dim = c.shape.head_dim;
  spec.layers.assign(c.layers, {.heads = c.shape.heads,
                                .kv_heads = c.shape.kv_heads,
                                .head_dim = head_dim,
                                .ffn = c.shape.ffn,
                                .score_scale = 1 / std::sqrt(static_cast<float>(head_dim)),
                                .rope = {.dims = head_dim, .base = 1e6f}});
  spec.vocab = c.shape.vocab;
  spec.norm_eps = 1e-6f;
  spec.context_length = 32768;
  if (c.form.change) c.form.change(spec);
  if (c.form.predicts) {
    spec.layers.push_back(spec.layers.back());
    spec.layers.back().delta = {};
  }
  return spec;
}

// Weights that are only shapes and types. The types are those of the model's first and last layers
// and of layers between.
ModelWeights WeightsOf(const ModelCase& c, const ModelSpec& spec) {
  const auto vector = [](int size, bool there = true) {
    return there ? Vector(Nowhere<float>(9), size) : Vector();
  };
  const auto matrix = [&](MatrixRole role, int rows, int cols, int layer = 0) {
    const int of_all = layer * (c.shape.layers - 1) / std::max(spec.num_layers() - 1, 1);
    return Matrix{.type = c.mixed ? MixedType(role, layer, cols)
                                  : ChooseTensorType(c.file_type, c.shape, role, of_all, cols),
                  .rows = rows,
                  .cols = cols};
  };
  ModelWeights weights;
  weights.tied = c.shape.tied;
  weights.token_embd = matrix(MatrixRole::kTokenEmbd, spec.vocab, spec.hidden);
  weights.output = matrix(MatrixRole::kOutput, spec.vocab, spec.hidden);
  weights.output_norm = vector(spec.hidden);
  const ModelForm& form = c.form;
  for (int i = 0; i < spec.num_layers(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const bool qk_norms = layer.qk_norm != QkNorm::kNone;
    const bool whole = layer.qk_norm == QkNorm::kProjection;
    const ExpertsSpec& experts = layer.experts;
    const DeltaNetSpec& delta = layer.delta;
    const int values = delta.value_size();
    // Delta nets are fused where heads pair by division, as in files.
    const bool fused = delta.pairing == HeadPairing::kDivision;
    const auto of_net = [&](MatrixRole role, int rows, int cols, bool there = true) {
      return layer.recurrent() && there ? matrix(role, rows, cols, i) : Matrix();
    };
    const auto each = [&](MatrixRole role, int rows, int cols) {
      return std::vector<Matrix>(experts.count, matrix(role, rows, cols, i));
    };
    weights.layers.push_back(
        {.attn_norm = vector(spec.hidden, layer.form != LayerForm::kPostNorm),
         .attn_q = matrix(MatrixRole::kAttnQ, layer.q_rows(), spec.hidden, i),
         .attn_k = matrix(MatrixRole::kAttnK, layer.kv_size(), spec.hidden, i),
         .attn_v = matrix(MatrixRole::kAttnV, layer.kv_size(), spec.hidden, i),
         .attn_q_bias = vector(layer.q_size(), form.qkv_biases),
         .attn_k_bias = vector(layer.kv_size(), form.qkv_biases),
         .attn_v_bias = vector(layer.kv_size(), form.qkv_biases),
         .attn_q_norm = vector(whole ? layer.q_size() : layer.head_dim, qk_norms),
         .attn_k_norm = vector(whole ? layer.kv_size() : layer.head_dim, qk_norms),
         .attn_output = matrix(MatrixRole::kAttnOutput, spec.hidden, layer.q_size(), i),
         .attn_output_bias = vector(spec.hidden, form.other_biases),
         .attn_post_norm = vector(spec.hidden, layer.post_norms),
         .attn_sinks = vector(layer.heads, layer.sinks),
         .ffn_norm = vector(spec.hidden, layer.form == LayerForm::kPreNorm),
         .ffn_gate = matrix(MatrixRole::kFfnGate, layer.ffn, spec.hidden, i),
         .ffn_up = matrix(MatrixRole::kFfnUp, layer.ffn, spec.hidden, i),
         .ffn_down = matrix(MatrixRole::kFfnDown, spec.hidden, layer.ffn, i),
         .ffn_gate_bias = vector(layer.ffn, form.other_biases),
         .ffn_up_bias = vector(layer.ffn, form.other_biases),
         .ffn_down_bias = vector(spec.hidden, form.other_biases && experts.count == 0),
         .ffn_post_norm = vector(spec.hidden, layer.post_norms),
         .experts = {.router = matrix(MatrixRole::kRouter, experts.count, spec.hidden, i),
                     .router_bias = vector(experts.count, form.other_biases),
                     .selection_bias = vector(experts.count, form.selection_bias),
                     .gate = each(MatrixRole::kExpertGate, experts.ffn, spec.hidden),
                     .up = each(MatrixRole::kExpertUp, experts.ffn, spec.hidden),
                     .down = each(MatrixRole::kExpertDown, spec.hidden, experts.ffn),
                     .gate_bias = vector(experts.count * experts.ffn, form.other_biases),
                     .up_bias = vector(experts.count * experts.ffn, form.other_biases),
                     .down_bias = vector(experts.count * spec.hidden, form.other_biases),
                     .shared_router = vector(spec.hidden, experts.shared_gated),
                     .shared_gate =
                         matrix(MatrixRole::kFfnGate, experts.shared_ffn, spec.hidden, i),
                     .shared_up = matrix(MatrixRole::kFfnUp, experts.shared_ffn, spec.hidden, i),
                     .shared_down =
                         matrix(MatrixRole::kFfnDown, spec.hidden, experts.shared_ffn, i)},
         .delta = {
             .qkv = of_net(MatrixRole::kAttnQkv, delta.channels(), spec.hidden, !fused),
             .gate = of_net(MatrixRole::kDelta, values, spec.hidden, !fused),
             .qkv_gate = of_net(MatrixRole::kDelta, delta.channels() + values, spec.hidden, fused),
             .beta = of_net(MatrixRole::kDeltaFactor, delta.value_heads, spec.hidden, !fused),
             .alpha = of_net(MatrixRole::kDeltaFactor, delta.value_heads, spec.hidden, !fused),
             .beta_alpha = of_net(MatrixRole::kDelta, 2 * delta.value_heads, spec.hidden, fused),
             .conv = of_net(MatrixRole::kConvolution, delta.channels(), delta.conv),
             .a = vector(delta.value_heads, layer.recurrent()),
             .dt_bias = vector(delta.value_heads, layer.recurrent()),
             .norm = vector(delta.head_dim, layer.recurrent()),
             .output = of_net(MatrixRole::kDelta, spec.hidden, values)}});
  }
  return weights;
}

// The block, whose layer is the last of the spec.
PredictBlock BlockOf(const ModelCase& c, const ModelSpec& spec, const ModelWeights& weights) {
  PredictBlock block;
  block.spec = spec.layers.back();
  block.layer = weights.layers.back();
  block.projection = {.type = c.mixed ? TensorType::kQ5_1 : weights.layers.back().attn_q.type,
                      .rows = spec.hidden,
                      .cols = 2 * spec.hidden};
  block.embedding_norm = Vector(Nowhere<float>(9), spec.hidden);
  block.hidden_norm = Vector(Nowhere<float>(9), spec.hidden);
  block.output_norm = weights.output_norm;
  block.token_embd = weights.token_embd;
  block.output = weights.output;
  if (c.form.own_head) {
    block.output_norm = Vector(Nowhere<float>(10), spec.hidden);
    block.token_embd.data = Nowhere<std::byte>(11);
    block.output.data = Nowhere<std::byte>(12);
  }
  return block;
}

// Plans the weights, with exponents that no planned model has, so that a launch that loses one
// shows.
DeviceWeights Placed(const ModelCase& c, const ModelSpec& spec) {
  const ModelWeights model = WeightsOf(c, spec);
  const PredictBlock block = BlockOf(c, spec, model);
  DeviceWeights weights =
      *DeviceWeights::Plan(spec, model, 1, Nowhere(1), c.form.predicts ? &block : nullptr);
  int exponent = kLeastExponent;
  const auto number = [&](const TiledMatrix& matrix) {
    const_cast<TiledMatrix&>(matrix).exponent = exponent++;
  };
  number(weights.output());
  for (const DeviceLayer& layer : weights.layers()) {
    for (const TiledMatrix& matrix : layer.qkv) number(matrix);
    for (const TiledMatrix& matrix : layer.delta.inputs) number(matrix);
    for (const TiledMatrix* matrix :
         {&layer.attn_output, &layer.gate_up, &layer.up, &layer.down, &layer.experts.gate_up,
          &layer.experts.down, &layer.attn_gate, &layer.delta.output}) {
      number(*matrix);
    }
  }
  if (weights.predict_block()) {
    number(weights.predict_block()->projection);
    if (c.form.own_head) number(weights.block_output());
  }
  return weights;
}

// The rows of the predictions that follow a step, if a block predicts: some, then one.
std::vector<int> PredictedRows(const StepShape& step) {
  if (step.logit_rows == 0) return {};
  return {std::min(step.logit_rows, 9), 1};
}

// The model as spec.h defines it. Tokens without logits contribute only keys and values to the last
// layer.
struct Expected {
  std::vector<Symbol> keys_and_values;
  std::vector<Symbol> recurrent_states;
  // The last choice of experts; -1: the step makes none.
  Symbol choice = -1;
  Symbol logits = -1;
  // The block that predicts tokens, as in SymbolicGpu.
  Symbol kept_hidden = -1;
  std::vector<Symbol> predicted_from;
};

class Definition {
 public:
  Definition(SymbolicGpu& gpu, const ModelSpec& spec, const DeviceWeights& weights, bool fuses)
      : gpu_(gpu), spec_(spec), weights_(weights), fuses_(fuses) {}

  Expected Of(const StepShape& step) {
    Expected expected;
    residual_ = gpu_.Embedded(At(weights_.embedding().data), spec_.embedding_scale);
    const bool predicts = weights_.predict_block().has_value();
    const int layers = spec_.num_layers() - (predicts ? 1 : 0);
    for (int i = 0; i < layers; ++i) {
      const LayerSpec& layer = spec_.layers[i];
      const DeviceLayer& w = weights_.layers()[i];
      const bool gathers = !predicts && i == layers - 1 && step.logit_rows < step.tokens;
      expected.keys_and_values.push_back(-1);
      expected.recurrent_states.push_back(-1);
      Symbol attended = layer.recurrent()
                            ? DeltaNet(i, step.drafts, expected.recurrent_states.back())
                            : Attention(layer, w, expected.keys_and_values.back());
      if (gathers && step.logit_rows == 0) break;
      if (gathers) {
        residual_ = gpu_.Rows(residual_);
        attended = gpu_.Rows(attended);
      }
      AddBranches(layer, w, attended, expected.choice);
    }
    if (predicts) {
      Predict(step, expected);
      return expected;
    }
    if (step.logit_rows == 0) return expected;
    // The output norm gathers the rows that the tables name. With one token that products
    // normalise there is none to choose.
    const DeviceLayer& last = weights_.layers().back();
    const bool in_product = fuses_ && step.tokens == 1 && last.down_bias == nullptr &&
                            last.ffn_post_norm == nullptr && spec_.norm == NormKind::kRms &&
                            spec_.hidden % kActivationCols == 0;
    if (step.logit_rows == step.tokens && !in_product) residual_ = gpu_.Rows(residual_);
    expected.logits = Logits(weights_.output(), Normed(weights_.output_norm()));
    return expected;
  }

 private:
  // The model's head takes the rows that the block takes, and in a step of prompts only some.
  void Predict(const StepShape& step, Expected& expected) {
    const Symbol hidden = Normed(weights_.output_norm());
    if (step.logit_rows > 0) {
      const bool in_product = fuses_ && step.tokens == 1 && spec_.hidden % kActivationCols == 0;
      if (!step.decode && !in_product) residual_ = gpu_.Rows(residual_);
      expected.logits = Logits(weights_.output(), Normed(weights_.output_norm()));
    }
    Symbol drawn = step.logit_rows > 0 ? gpu_.Drawn(expected.logits) : -1;
    BeginBlock({.tokens = gpu_.StepTokens(), .slots = gpu_.SlotsBefore(), .rows = hidden});
    const LayerSpec& layer = spec_.layers.back();
    const DeviceLayer& w = weights_.layers().back();
    expected.keys_and_values.push_back(QkvOf(layer, w, Normed(w.attn_norm)));
    expected.recurrent_states.push_back(-1);
    expected.kept_hidden = gpu_.Kept(hidden, drawn);
    Symbol own = -1;
    for (size_t i = 0; i < PredictedRows(step).size(); ++i) {
      BeginBlock({.tokens = drawn, .slots = i == 0 ? expected.kept_hidden : -1, .rows = own});
      Symbol unused = -1;
      AddBranches(layer, w, Attention(layer, w, unused, /*first_key=*/1), unused);
      own = Normed(weights_.predict_block()->output_norm);
      expected.predicted_from.push_back(Logits(weights_.block_output(), own));
      drawn = gpu_.Drawn(expected.predicted_from.back());
    }
  }

  void BeginBlock(const PredictParts& of) {
    const DevicePredictBlock& block = *weights_.predict_block();
    residual_ = gpu_.Zeros();
    AddBranch(gpu_.Product(At(block.projection.data),
                           gpu_.Pairs(At(weights_.block_embedding().data), At(block.embedding_norm),
                                      At(block.hidden_norm), of)),
              1, nullptr, nullptr);
  }

  // The output of attention, or of a delta net, and the FFN.
  void AddBranches(const LayerSpec& layer, const DeviceLayer& w, Symbol attended, Symbol& choice) {
    const Symbol before = Normed(w.attn_norm);
    const TiledMatrix& output = layer.recurrent() ? w.delta.output : w.attn_output;
    AddBranch(gpu_.Product(At(output.data), attended), 1, w.attn_output_bias, w.attn_post_norm);
    const Symbol x = layer.form == LayerForm::kParallel ? before : Normed(w.ffn_norm);
    if (layer.experts.count > 0) {
      AddBranch(Experts(layer, w, x, choice), 1, nullptr, w.ffn_post_norm);
      return;
    }
    AddBranch(gpu_.Product(At(w.down.data), Gate(layer, w, x)), 1 / kSwiGluScale, w.down_bias,
              w.ffn_post_norm);
  }

  Symbol Logits(const TiledMatrix& output, Symbol x) {
    const Symbol product = gpu_.Product(At(output.data), x);
    if (spec_.logit_scale == 1 && spec_.logit_softcap == 0) return product;
    return gpu_.ScaledLogits(product, spec_.logit_scale, spec_.logit_softcap);
  }

  Symbol At(const void* data) const { return gpu_.WeightAt(data); }
  Symbol Normed(const float* weight) { return gpu_.Normed(residual_, At(weight), spec_.norm); }

  Symbol Attention(const LayerSpec& layer, const DeviceLayer& w, Symbol& keys_and_values,
                   int first_key = 0) {
    const Symbol x = Normed(w.attn_norm);
    keys_and_values = QkvOf(layer, w, x);
    const AttentionRule rule = {.score_scale = layer.score_scale,
                                .score_softcap = layer.score_softcap,
                                .window = layer.window,
                                .first_key = first_key};
    const Symbol attended = gpu_.Attention(keys_and_values, At(w.attn_sinks), rule);
    if (!layer.gated_attention) return attended;
    return gpu_.GatedAttention(attended, gpu_.Product(At(w.attn_gate.data), x));
  }

  // The first draft of a step is right.
  Symbol DeltaNet(int layer, bool drafts, Symbol& state) {
    const DeviceLayer& w = weights_.layers()[layer];
    const DeviceDeltaNet& net = w.delta;
    const Symbol x = Normed(w.attn_norm);
    DeltaSymbols of;
    of.u = gpu_.Product(At(net.inputs[0].data), x);
    of.z = gpu_.Product(At(net.inputs[1].data), x);
    of.rates = gpu_.Product(At(net.inputs[2].data), x);
    of.convolved = gpu_.Convolved(of.u, At(net.conv), layer);
    of.factors = gpu_.Factors(of.rates, At(net.a), At(net.dt_bias));
    state = gpu_.MovedState(of, layer);
    if (drafts) state = gpu_.Replayed(state, gpu_.KeptDraft(of));
    return gpu_.DeltaGated(gpu_.DeltaRule(of, layer), of.z, At(net.norm));
  }

  Symbol QkvOf(const LayerSpec& layer, const DeviceLayer& w, Symbol x) {
    const bool norms = layer.qk_norm != QkNorm::kNone;
    const bool rotates = layer.rope.kind != RopeKind::kNone;
    const bool neighbours = layer.rope.kind == RopeKind::kNorm && !w.halves;
    return gpu_.Qkv({.q = gpu_.Product(At(w.qkv[0].data), x),
                     .k = gpu_.Product(At(w.qkv[1].data), x),
                     .v = gpu_.Product(At(w.qkv[2].data), x),
                     .bias = At(w.qkv_bias),
                     .q_norm = norms ? At(w.q_norm) : -1,
                     .k_norm = norms ? At(w.k_norm) : -1,
                     .angles = rotates ? gpu_.Angles(layer.rope) : -1,
                     .rules = QkvRules(neighbours ? RopePairs::kNeighbours : RopePairs::kHalves,
                                       rotates ? layer.rope.dims : 0, norms,
                                       layer.qk_norm == QkNorm::kProjection, layer.temperature,
                                       layer.temperature_length)});
  }

  Symbol Gate(const LayerSpec& layer, const DeviceLayer& w, Symbol x) {
    const Symbol gate = gpu_.Product(At(w.gate_up.data), x);
    if (!w.gate_apart()) return gpu_.Gate(gate, layer.activation);
    return gpu_.Gate(gate, gpu_.Product(At(w.up.data), x), At(w.gate_up_bias), layer.activation);
  }

  Symbol Experts(const LayerSpec& layer, const DeviceLayer& w, Symbol x, Symbol& choice) {
    const ExpertsSpec& spec = layer.experts;
    const DeviceExperts& e = w.experts;
    choice =
        gpu_.Choice(spec, e.shared_joins, gpu_.RouterLogits(At(e.router), x, At(e.router_bias)),
                    At(e.selection_bias));
    const Symbol gated = gpu_.Gate(
        gpu_.ExpertProduct(At(e.gate_up.data), gpu_.Sorted(x, choice), choice, At(e.gate_up_bias)),
        layer.activation);
    const Symbol y = gpu_.ExpertProduct(At(e.down.data), gated, choice, -1);
    const bool apart = spec.shared_ffn > 0 && !e.shared_joins;
    const Symbol shared = apart ? gpu_.Product(At(w.down.data), Gate(layer, w, x)) : -1;
    return gpu_.Combined(y, choice, At(e.down_bias), shared, 1 / kSwiGluScale,
                         apart && spec.shared_gated);
  }

  void AddBranch(Symbol product, float scale, const float* bias, const float* post_norm) {
    if (bias == nullptr && post_norm == nullptr) {
      residual_ = gpu_.Add(residual_, product, scale * spec_.residual_scale);
      return;
    }
    residual_ =
        gpu_.Add(residual_, gpu_.Branch(product, scale, At(bias), At(post_norm), spec_.norm),
                 spec_.residual_scale);
  }

  SymbolicGpu& gpu_;
  const ModelSpec& spec_;
  const DeviceWeights& weights_;
  const bool fuses_;
  Symbol residual_ = -1;
};

KvCacheView CacheOf(const ModelSpec& spec, int where, int blocks) {
  return {.data = Nowhere<__half>(where),
          .blocks = blocks,
          .block_tokens = 16,
          .kv_heads = spec.layers[0].kv_heads,
          .head_dim = spec.layers[0].head_dim};
}

DeltaStates StatesOf(const ModelSpec& spec) {
  DeltaStates states = {.data = Nowhere<float>(12)};
  for (const LayerSpec& layer : spec.layers) {
    if (layer.recurrent()) states.state_floats += DeltaStateFloats(layer.delta);
  }
  return states;
}

// Wider than attention, and with odd sizes where the model's are.
DeltaNetSpec DeltaNetOf(const ModelSpec& spec, HeadPairing pairing) {
  const bool odd = spec.hidden % 64 != 0;
  return {.key_heads = odd ? 3 : 16,
          .value_heads = odd ? 9 : 48,
          .head_dim = odd ? 32 : 128,
          .conv = 4,
          .pairing = pairing};
}

// Makes layer `i` recurrent; of four, one has gated attention.
void MakeHybrid(const ModelSpec& spec, HeadPairing pairing, int i, LayerSpec& layer) {
  layer.qk_norm = QkNorm::kHead;
  layer.gated_attention = true;
  layer.rope.dims = layer.head_dim / 4;
  if (i % 4 != 1) layer.delta = DeltaNetOf(spec, pairing);
}

DeviceInfo DeviceOf(const KernelSet& kernels) {
  DeviceInfo device;
  device.traits.sms = 132;
  device.kernels = &kernels;
  return device;
}

}  // namespace

std::string ModelCase::name() const {
  std::string name = absl::StrCat(std::string(shape.size), "_",
                                  mixed ? "mixed" : std::string(file_type.name), "_", layers);
  std::erase(name, '.');
  if (!fuses) name += "_unfused";
  return form.name == "qwen2" ? name : absl::StrCat(form.name, "_", name);
}

RandomModelShape OddShape() {
  RandomModelShape shape = *FindModelShape("qwen2", "nano");
  shape.size = "odd";
  shape.hidden = 96;
  shape.heads = 7;
  shape.kv_heads = 7;
  shape.head_dim = 32;
  shape.ffn = 160;
  return shape;
}

std::vector<ModelForm> AllForms() {
  const auto each = [](ModelSpec& spec, const std::function<void(LayerSpec&, int)>& change) {
    for (int i = 0; i < spec.num_layers(); ++i) change(spec.layers[i], i);
  };
  // The first layer has no experts, and is as wide as none of them.
  const auto glm4moe = [=](ModelSpec& spec) {
    each(spec, [](LayerSpec& layer, int i) {
      layer.qk_norm = QkNorm::kHead;
      if (i == 0) return;
      layer.ffn = 0;
      layer.experts = {.count = 8,
                       .used = 2,
                       .ffn = 256,
                       .shared_ffn = 256,
                       .score = RouterScore::kSigmoid,
                       .groups = 2,
                       .groups_used = 1,
                       .normalise = true,
                       .scale = 2.5f};
    });
  };
  // Recurrent layers, of which every fourth has gated attention in its place.
  const auto qwen35 = [=](ModelSpec& spec) {
    each(spec, [&](LayerSpec& layer, int i) { MakeHybrid(spec, HeadPairing::kModulo, i, layer); });
  };
  return {
      {.name = "qwen2", .qkv_biases = true},
      {.name = "llama",
       .change =
           [=](ModelSpec& spec) {
             each(spec, [](LayerSpec& layer, int) { layer.rope.kind = RopeKind::kNorm; });
           }},
      {.name = "qwen3",
       .change =
           [=](ModelSpec& spec) {
             each(spec, [](LayerSpec& layer, int) { layer.qk_norm = QkNorm::kHead; });
           }},
      {.name = "mistral3",
       .change =
           [=](ModelSpec& spec) {
             each(spec, [](LayerSpec& layer, int) {
               layer.rope.kind = RopeKind::kNorm;
               layer.temperature = 0.1f;
               layer.temperature_length = 16384;
             });
           }},
      {.name = "gemma2",
       .change =
           [=](ModelSpec& spec) {
             spec.embedding_scale = 60;
             spec.logit_softcap = 30;
             each(spec, [](LayerSpec& layer, int i) {
               layer.post_norms = true;
               layer.activation = Activation::kGeluTanh;
               layer.score_softcap = 50;
               layer.window = i % 2 == 0 ? 4096 : 0;
             });
           }},
      {.name = "gemma3",
       .change =
           [=](ModelSpec& spec) {
             spec.embedding_scale = 60;
             each(spec, [](LayerSpec& layer, int i) {
               layer.post_norms = true;
               layer.activation = Activation::kGeluTanh;
               layer.qk_norm = QkNorm::kHead;
               layer.window = i % 3 != 1 ? 1024 : 0;
               if (layer.window > 0) layer.rope.base = 10'000;
             });
           }},
      {.name = "granite",
       .change =
           [=](ModelSpec& spec) {
             spec.embedding_scale = 12;
             spec.residual_scale = 0.22f;
             spec.logit_scale = 0.125f;
             each(spec, [](LayerSpec& layer, int) {
               layer.rope.kind = RopeKind::kNorm;
               layer.score_scale = 0.015625f;
             });
           }},
      {.name = "olmo2",
       .change =
           [=](ModelSpec& spec) {
             each(spec, [](LayerSpec& layer, int) {
               layer.form = LayerForm::kPostNorm;
               layer.post_norms = true;
               layer.qk_norm = QkNorm::kProjection;
             });
           }},
      {.name = "glm4",
       .qkv_biases = true,
       .change =
           [=](ModelSpec& spec) {
             each(spec, [](LayerSpec& layer, int) {
               layer.post_norms = true;
               layer.rope.kind = RopeKind::kNorm;
               layer.rope.dims = layer.head_dim / 2;
             });
           }},
      {.name = "smollm3",
       .change =
           [=](ModelSpec& spec) {
             each(spec, [](LayerSpec& layer, int i) {
               layer.rope.kind = i % 4 == 3 ? RopeKind::kNone : RopeKind::kNorm;
             });
           }},
      {.name = "cohere2",
       .change =
           [=](ModelSpec& spec) {
             spec.norm = NormKind::kLayer;
             spec.logit_scale = 0.25f;
             each(spec, [](LayerSpec& layer, int i) {
               layer.form = LayerForm::kParallel;
               layer.window = i % 4 == 3 ? 0 : 4096;
               layer.rope.kind = i % 4 == 3 ? RopeKind::kNone : RopeKind::kNorm;
             });
           }},
      {.name = "qwen3moe",
       .change =
           [=](ModelSpec& spec) {
             each(spec, [](LayerSpec& layer, int) {
               layer.qk_norm = QkNorm::kHead;
               layer.ffn = 0;
               layer.experts = {.count = 6, .used = 3, .ffn = 256, .normalise = true};
             });
           }},
      {.name = "qwen2moe",
       .qkv_biases = true,
       .change =
           [=](ModelSpec& spec) {
             spec.residual_scale = 0.22f;
             each(spec, [](LayerSpec& layer, int) {
               layer.ffn = 0;
               layer.experts = {
                   .count = 6, .used = 2, .ffn = 256, .shared_ffn = 512, .shared_gated = true};
             });
           }},
      {.name = "glm4moe", .qkv_biases = true, .selection_bias = true, .change = glm4moe},
      {.name = "gpt_oss",
       .qkv_biases = true,
       .other_biases = true,
       .change =
           [=](ModelSpec& spec) {
             each(spec, [](LayerSpec& layer, int i) {
               layer.window = i % 2 == 0 ? 128 : 0;
               layer.sinks = true;
               layer.activation = Activation::kClampedSwiglu;
               layer.ffn = 0;
               layer.experts = {
                   .count = 5, .used = 4, .ffn = 160, .score = RouterScore::kSoftmaxOfChosen};
             });
           }},
      {.name = "qwen35", .change = qwen35},
      {.name = "qwen3next",
       .change =
           [=](ModelSpec& spec) {
             each(spec, [&](LayerSpec& layer, int i) {
               MakeHybrid(spec, HeadPairing::kDivision, i, layer);
               layer.ffn = 0;
               layer.experts = {.count = 6,
                                .used = 3,
                                .ffn = 256,
                                .shared_ffn = 256,
                                .shared_gated = true,
                                .normalise = true};
             });
           }},
      // With a block that predicts tokens: with the model's head, and with its own.
      {.name = "qwen35_predicts", .predicts = true, .change = qwen35},
      {.name = "glm4moe_predicts",
       .qkv_biases = true,
       .selection_bias = true,
       .predicts = true,
       .own_head = true,
       .change = glm4moe},
      {.name = "biases", .qkv_biases = true, .other_biases = true},
      // All at once: the branches have a bias, a norm and a scale.
      {.name = "scaled_branches",
       .qkv_biases = true,
       .other_biases = true,
       .change =
           [=](ModelSpec& spec) {
             spec.residual_scale = 0.22f;
             each(spec, [](LayerSpec& layer, int) { layer.post_norms = true; });
           }},
  };
}

ModelForm FormOf(const std::string& name) {
  const std::vector<ModelForm> forms = AllForms();
  const auto found =
      std::ranges::find_if(forms, [&](const ModelForm& form) { return form.name == name; });
  if (found == forms.end()) std::abort();
  return *found;
}

StepShape DecodeStep(int sequences) {
  return {.tokens = sequences,
          .sequences = sequences,
          .logit_rows = sequences,
          .decode = true,
          .key_splits = 4};
}

StepShape DraftedStep(int sequences) {
  StepShape step = DecodeStep(sequences);
  step.drafts = true;
  return step;
}

StepShape PromptStep(int tokens, int logit_rows) {
  return {.tokens = tokens,
          .sequences = logit_rows + 1,
          .logit_rows = logit_rows,
          .query_tiles = tokens};
}

CheckedModel::CheckedModel(const ModelCase& c)
    : spec_(SpecOf(c)),
      weights_(Placed(c, spec_)),
      buffers_(spec_, weights_,
               {.max_tokens = kMostTokens,
                .max_seqs = kMostSeqs,
                .max_drafts = kMaxStepDrafts,
                .max_key_tiles = 1000,
                .context_length = spec_.context_length,
                .kv_tokens = 100'000},
               Nowhere(2)),
      kv_({.whole = CacheOf(spec_, 3, 1000), .windows = CacheOf(spec_, 10, 500)}),
      states_(StatesOf(spec_)),
      kernels_(SymbolicKernels(c.fuses)),
      device_(DeviceOf(kernels_)),
      forward_(spec_, weights_, buffers_, kv_, states_, device_),
      gpu_(spec_, weights_, buffers_, kv_, states_, kernels_) {}

absl::Status CheckedModel::EnqueueBlock(const TableLayout& tables, const StepShape& step,
                                        cudaStream_t stream) {
  const StepDraws draws = tables.step_draws(buffers_);
  ORCD_RETURN_IF_ERROR(forward_.FollowSequences(draws, step, stream));
  return forward_.Predict(draws, tables.predictions(), PredictedRows(step), Nowhere<DrawResult>(13),
                          kMostSeqs, stream);
}

std::string CheckedModel::Check(const StepShape& step,
                                const std::function<void(const Recorded&)>& fault) {
  // Two steps are in flight, each with its tables.
  const StepLimits limits = {.max_tokens = kMostTokens,
                             .max_seqs = kMostSeqs,
                             .max_blocks = 1000,
                             .max_window_blocks = 500,
                             .max_biases = 100,
                             .mask_words = static_cast<int64_t>(TokenMask::WordsFor(spec_.vocab)),
                             .recurrent = spec_.recurrent(),
                             .max_predicting = weights_.predict_block() ? kMostSeqs : 0};
  const auto tables_of = [&](int which) {
    return TableLayout(step, limits, Nowhere(4) + which * TableBytes(limits));
  };
  const int which = steps_++ % 2;
  const TableLayout tables = tables_of(which);
  const auto stream = Nowhere<CUstream_st>(8);
  gpu_.BeginStep(tables, step, which, stream);
  const absl::Status enqueued = forward_.Enqueue(tables.tables(), tables.step_runs(), step, which,
                                                 stream, nullptr, Nowhere<ExpertLoad>(11));
  if (!enqueued.ok()) return enqueued.ToString();
  if (step.logit_rows > 0) {
    const SampleArgs draws =
        SampleArgsOf(tables, step, buffers_, spec_, kv_.whole.block_tokens, nullptr);
    static_cast<void>(kernels_.sample(draws, device_.traits, stream));
  }
  if (weights_.predict_block()) {
    const absl::Status followed = EnqueueBlock(tables, step, stream);
    if (!followed.ok()) return followed.ToString();
  }
  if (step.drafts && spec_.recurrent()) {
    const DeltaReplayArgs::Replay first = {.slot = 0, .first_draft = 0, .drafts = 1, .position = 1};
    static_cast<void>(forward_.Replay({&first, 1}, which, stream));
  }
  if (fault) fault({gpu_.recorded(), buffers_, weights_, tables_of(1 - which)});
  gpu_.Run();
  const Expected expected = Definition(gpu_, spec_, weights_, kernels_.fuses).Of(step);
  for (int layer = 0; layer < spec_.num_layers() && gpu_.problem().empty(); ++layer) {
    const bool of_block = layer == static_cast<int>(expected.keys_and_values.size()) - 1 &&
                          weights_.predict_block().has_value();
    const Symbol found = of_block ? gpu_.followed() : gpu_.keys_and_values(layer);
    if (found != expected.keys_and_values[layer]) {
      return absl::StrCat("layer ", layer, " has keys and values ",
                          gpu_.symbols().Describe(found, 8));
    }
    const Symbol state = gpu_.recurrent_state(layer);
    if (state != expected.recurrent_states[layer]) {
      return absl::StrCat("layer ", layer, " has the recurrent state ",
                          gpu_.symbols().Describe(state, 8));
    }
  }
  if (!gpu_.problem().empty()) return gpu_.problem();
  if (gpu_.told_load() != expected.choice) return "the host gets another load of experts";
  if (gpu_.kept_hidden() != expected.kept_hidden) return "slots keep other hidden states";
  for (size_t i = 0; i < expected.predicted_from.size(); ++i) {
    if (i == gpu_.predicted_from().size()) return "too few are predicted";
    const Symbol from = gpu_.predicted_from()[i];
    if (from != expected.predicted_from[i]) {
      return absl::StrCat("prediction ", i, " is made from ", gpu_.symbols().Describe(from, 12));
    }
  }
  if (step.logit_rows == 0) return "";
  const Symbol logits = gpu_.drawn_from();
  if (logits < 0) return "nothing is drawn";
  if (logits == expected.logits) return "";
  return absl::StrCat("the logits are ", gpu_.symbols().Describe(logits, 8), ", and not ",
                      gpu_.symbols().Describe(expected.logits, 8));
}

}  // namespace orcd::cuda
