// Edits a valid file of each architecture as libFuzzer's inputs say, keys and list of tensors, and
// reads it as a model. A file that passes has to be one that backends can rely on.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/model/architectures.h"
#include "runtime/model/predict_block.h"
#include "runtime/model/rope.h"
#include "testing/architecture_models.h"

namespace {

using orcd::LayerSpec;
using orcd::TestModel;

constexpr std::string_view kKeys[] = {"block_count",
                                      "embedding_length",
                                      "feed_forward_length",
                                      "context_length",
                                      "attention.head_count",
                                      "attention.head_count_kv",
                                      "attention.key_length",
                                      "attention.value_length",
                                      "attention.layer_norm_rms_epsilon",
                                      "attention.layer_norm_epsilon",
                                      "attention.scale",
                                      "attention.causal",
                                      "attention.sliding_window",
                                      "attention.sliding_window_pattern",
                                      "attention.temperature_scale",
                                      "attn_logit_softcapping",
                                      "final_logit_softcapping",
                                      "logit_scale",
                                      "embedding_scale",
                                      "residual_scale",
                                      "rope.dimension_count",
                                      "rope.dimension_sections",
                                      "rope.freq_base",
                                      "rope.freq_base_swa",
                                      "rope.scale_linear",
                                      "rope.scaling.type",
                                      "rope.scaling.factor",
                                      "rope.scaling.attn_factor",
                                      "rope.scaling.original_context_length",
                                      "rope.scaling.finetuned",
                                      "rope.scaling.yarn_log_multiplier",
                                      "rope.scaling.yarn_beta_fast",
                                      "rope.scaling.yarn_beta_slow",
                                      "expert_count",
                                      "expert_used_count",
                                      "expert_feed_forward_length",
                                      "expert_shared_count",
                                      "expert_shared_feed_forward_length",
                                      "expert_weights_scale",
                                      "expert_weights_norm",
                                      "expert_gating_func",
                                      "expert_group_count",
                                      "expert_group_used_count",
                                      "leading_dense_block_count",
                                      "nextn_predict_layers",
                                      "ssm.conv_kernel",
                                      "ssm.state_size",
                                      "ssm.group_count",
                                      "ssm.time_step_rank",
                                      "ssm.inner_size",
                                      "full_attention_interval",
                                      "attention.recurrent_layers"};

constexpr const char* kTensors[] = {"output.weight",
                                    "rope_freqs.weight",
                                    "rope_factors_short.weight",
                                    "rope_factors_long.weight",
                                    "blk.0.attn_qkv.weight",
                                    "blk.1.attn_qkv.weight",
                                    "blk.0.attn_qkv.bias",
                                    "blk.1.attn_qkv.bias",
                                    "blk.0.attn_q.bias",
                                    "blk.1.attn_q.bias",
                                    "blk.0.attn_output.bias",
                                    "blk.1.attn_output.bias",
                                    "blk.0.ffn_gate.weight",
                                    "blk.1.ffn_gate.weight",
                                    "blk.0.ffn_up.weight",
                                    "blk.1.ffn_up.weight",
                                    "blk.0.ffn_gate_inp.weight",
                                    "blk.1.ffn_gate_inp.weight",
                                    "blk.0.ffn_gate_exps.weight",
                                    "blk.1.ffn_gate_exps.weight",
                                    "blk.1.ffn_gate_up_exps.weight",
                                    "blk.1.ffn_down_exps.weight",
                                    "blk.1.ffn_gate.0.weight",
                                    "blk.1.ffn_gate.1.weight",
                                    "blk.1.ffn_down_exps.bias",
                                    "blk.1.ffn_up_shexp.weight",
                                    "blk.1.exp_probs_b.bias",
                                    "blk.0.attn_sinks.weight",
                                    "blk.2.attn_norm.weight",
                                    "blk.1.nextn.eh_proj.weight",
                                    "blk.1.nextn.enorm.weight",
                                    "blk.1.nextn.hnorm.weight",
                                    "blk.1.nextn.shared_head_norm.weight",
                                    "blk.0.attn_gate.weight",
                                    "blk.0.ssm_in.weight",
                                    "blk.0.ssm_ba.weight",
                                    "blk.0.ssm_beta.weight",
                                    "blk.0.ssm_conv1d.weight",
                                    "blk.0.ssm_a",
                                    "blk.0.ssm_out.weight",
                                    "blk.1.attn_gate.weight",
                                    "blk.0.ffn_down.scale"};

constexpr const char* kTexts[] = {"none", "linear", "yarn", "longrope", "su", ""};

// Takes numbers from the input; zeros after its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  uint32_t Byte() {
    if (empty()) return 0;
    --size_;
    return *data_++;
  }
  uint32_t Word() {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word = word << 8 | Byte();
    return word;
  }
  template <typename List>
  const auto& Of(const List& list) {
    return *std::next(std::begin(list), Byte() % std::size(list));
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

TestModel::Value TakeValue(Input& input) {
  // Small numbers are what most keys hold.
  const auto small = [&] { return static_cast<int32_t>(input.Byte()); };
  switch (input.Byte() % 8) {
    case 0:
      return static_cast<uint32_t>(small());
    case 1:
      return input.Word();
    case 2:
      return static_cast<int32_t>(input.Word());
    case 3:
      return std::bit_cast<float>(input.Word());
    case 4:
      return static_cast<float>(small()) / 8;
    case 5:
      return input.Byte() % 2 != 0;
    case 6:
      return std::string(input.Of(kTexts));
    default:
      break;
  }
  auto array = std::make_shared<orcd::GgufArray>();
  array->type = input.Byte() % 2 == 0 ? orcd::GgufType::kBool : orcd::GgufType::kU32;
  const uint32_t size = input.Byte() % 6;
  for (uint32_t i = 0; i < size; ++i) {
    const uint32_t value = input.Byte();
    array->unsigned_values.push_back(array->type == orcd::GgufType::kBool ? value % 2 : value);
  }
  return orcd::GgufEntry{orcd::GgufType::kArray,
                         std::shared_ptr<const orcd::GgufArray>(std::move(array))};
}

TestModel::Tensor TakeTensor(Input& input) {
  const orcd::TensorTypeInfo& type = input.Of(orcd::AllTensorTypes());
  TestModel::Tensor tensor = {type.type, {}, {}};
  const uint32_t dims = 1 + input.Byte() % 3;
  for (uint32_t i = 0; i < dims; ++i) tensor.ne.push_back(1 + input.Byte() % 160);
  tensor.ne[0] = (tensor.ne[0] + type.block_weights - 1) / type.block_weights * type.block_weights;
  return tensor;
}

void Edit(Input& input, const std::string& architecture, TestModel& model) {
  switch (input.Byte() % 6) {
    case 0:
    case 1:
      model.keys[absl::StrCat(architecture, ".", std::string(input.Of(kKeys)))] = TakeValue(input);
      return;
    case 2:
      if (!model.keys.empty()) model.keys.erase(std::string(input.Of(model.keys).first));
      return;
    case 3:
      if (!model.tensors.empty()) model.tensors.erase(std::string(input.Of(model.tensors).first));
      return;
    case 4:
      if (!model.tensors.empty()) {
        model.tensors[std::string(input.Of(model.tensors).first)] = TakeTensor(input);
      }
      return;
    default:
      model.tensors[input.Of(kTensors)] = TakeTensor(input);
      return;
  }
}

// A file in memory. Its tensors hold 0.747 in F32.
std::unique_ptr<orcd::GgufReader> Open(const TestModel& model) {
  const orcd::GgufWriter writer = model.Writer();
  const std::string bytes = writer.Header() + std::string(writer.data_bytes(), '\x3f');
  const int fd = memfd_create("model", MFD_CLOEXEC);
  if (fd < 0 || write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    std::perror("memfd_create");
    std::abort();
  }
  auto gguf = orcd::GgufReader::Open(absl::StrCat("/proc/self/fd/", fd));
  close(fd);
  return gguf.ok() ? *std::move(gguf) : nullptr;
}

void Require(bool condition) {
  if (!condition) std::abort();
}

bool IsScale(float value) { return value > 0 && std::isfinite(value); }

void CheckExperts(const LayerSpec& layer) {
  const orcd::ExpertsSpec& experts = layer.experts;
  Require((layer.ffn > 0) == (experts.count == 0) && layer.ffn <= orcd::kMaxFfn);
  if (experts.count == 0) {
    Require(experts == orcd::ExpertsSpec());
    return;
  }
  Require(experts.count > 0 && experts.count <= orcd::kMaxExperts);
  Require(experts.used > 0 && experts.used <= experts.count);
  Require(experts.ffn > 0 && experts.ffn <= orcd::kMaxFfn);
  Require(experts.shared_ffn >= 0 && experts.shared_ffn <= orcd::kMaxFfn);
  Require(experts.groups > 0 && experts.count % experts.groups == 0);
  Require(experts.groups == 1 || experts.count / experts.groups > 1);
  Require(experts.groups_used > 0 && experts.groups_used <= experts.groups);
  Require(experts.used <= experts.count / experts.groups * experts.groups_used);
  Require(IsScale(experts.scale));
}

void CheckDeltaNet(const LayerSpec& layer) {
  const orcd::DeltaNetSpec& delta = layer.delta;
  if (!layer.recurrent()) {
    Require(delta == orcd::DeltaNetSpec() && delta.state_floats() == 0);
    return;
  }
  Require(layer.window == 0);
  Require(delta.key_heads > 0 && delta.key_heads <= orcd::kMaxHeads);
  Require(delta.value_heads > 0 && delta.value_heads <= orcd::kMaxHeads);
  Require(delta.value_heads % delta.key_heads == 0);
  Require(delta.head_dim > 0 && delta.head_dim <= orcd::kMaxHeadDim && delta.head_dim % 16 == 0);
  Require(delta.conv > 0 && delta.conv <= orcd::kMaxConvolution);
  Require(delta.state_floats() > 0);
  for (int head = 0; head < delta.value_heads; ++head) {
    Require(delta.key_head_of(head) >= 0 && delta.key_head_of(head) < delta.key_heads);
  }
}

void CheckSpec(const orcd::ModelSpec& spec) {
  Require(!spec.layers.empty() && spec.num_layers() <= orcd::kMaxLayers);
  Require(spec.skipped_layers >= 0);
  Require(IsScale(spec.norm_eps) && IsScale(spec.embedding_scale) && IsScale(spec.residual_scale) &&
          IsScale(spec.logit_scale) && std::isfinite(spec.logit_softcap) &&
          spec.logit_softcap >= 0);
  Require(spec.context_length > 0 && spec.context_length <= orcd::kMaxContextLength);
  bool whole = false;
  for (LayerSpec layer : spec.layers) {
    Require(layer.window >= 0 && layer.window < spec.context_length);
    whole |= layer.window == 0 && !layer.recurrent();
    Require(layer.heads > 0 && layer.kv_heads > 0 && layer.heads % layer.kv_heads == 0);
    Require(layer.head_dim > 0 && layer.head_dim % 2 == 0 && layer.head_dim <= orcd::kMaxHeadDim);
    Require(layer.rope.dims % 2 == 0 && layer.rope.dims <= layer.head_dim);
    Require(IsScale(layer.score_scale) && IsScale(layer.rope.magnitude) &&
            IsScale(layer.rope.factor));
    Require(layer.score_softcap >= 0 && std::isfinite(layer.score_softcap));
    Require(layer.temperature >= 0 && std::isfinite(layer.temperature) &&
            layer.temperature_length > 0);
    CheckExperts(layer);
    CheckDeltaNet(layer);
    // Layers differ in these alone.
    layer.delta = spec.layers[0].delta;
    layer.window = spec.layers[0].window;
    layer.rope = spec.layers[0].rope;
    layer.ffn = spec.layers[0].ffn;
    layer.experts = spec.layers[0].experts;
    Require(layer == spec.layers[0]);
  }
  Require(whole);
}

// Reads the ends of what a role views, so that a view past the file faults.
class ViewReader {
 public:
  void Read(const std::vector<orcd::Matrix>& matrices, int count, int64_t rows, int64_t cols) {
    Require(matrices.size() == static_cast<size_t>(count));
    for (const orcd::Matrix& matrix : matrices) Read(matrix, rows, cols);
  }
  void Read(const orcd::Matrix& matrix, int64_t rows, int64_t cols) {
    Require(matrix.rows == rows && matrix.cols == cols);
    sum_ += static_cast<int>(matrix.data[0]) + static_cast<int>(matrix.data[matrix.bytes() - 1]);
  }
  void Read(orcd::Vector vector, int64_t size, bool needed) {
    Require(vector.size() == static_cast<size_t>(size) || (vector.empty() && !needed));
    if (!vector.empty()) sum_ += static_cast<int>(vector.front() + vector.back());
  }
  // Keeps the reads from being optimised away.
  ~ViewReader() { asm volatile("" : : "r"(sum_)); }

 private:
  int sum_ = 0;
};

void CheckFfn(const orcd::ModelSpec& spec, const LayerSpec& layer, const orcd::LayerWeights& w,
              ViewReader& reader) {
  const orcd::ExpertsSpec& experts = layer.experts;
  if (experts.count == 0) {
    reader.Read(w.ffn_gate, layer.ffn, spec.hidden);
    reader.Read(w.ffn_up, layer.ffn, spec.hidden);
    reader.Read(w.ffn_down, spec.hidden, layer.ffn);
    reader.Read(w.ffn_gate_bias, layer.ffn, false);
    reader.Read(w.ffn_up_bias, layer.ffn, false);
    reader.Read(w.ffn_down_bias, spec.hidden, false);
    return;
  }
  const orcd::ExpertWeights& e = w.experts;
  const int64_t rows = int64_t{experts.count} * experts.ffn;
  Require(w.ffn_down_bias.empty());
  reader.Read(e.router, experts.count, spec.hidden);
  reader.Read(e.router_bias, experts.count, false);
  reader.Read(e.selection_bias, experts.count, false);
  reader.Read(e.gate, experts.count, experts.ffn, spec.hidden);
  reader.Read(e.up, experts.count, experts.ffn, spec.hidden);
  reader.Read(e.down, experts.count, spec.hidden, experts.ffn);
  reader.Read(e.gate_bias, rows, false);
  reader.Read(e.up_bias, rows, false);
  reader.Read(e.down_bias, int64_t{experts.count} * spec.hidden, false);
  if (experts.shared_ffn == 0) return;
  reader.Read(e.shared_router, spec.hidden, experts.shared_gated);
  reader.Read(e.shared_gate, experts.shared_ffn, spec.hidden);
  reader.Read(e.shared_up, experts.shared_ffn, spec.hidden);
  reader.Read(e.shared_down, spec.hidden, experts.shared_ffn);
}

void ReadAttention(const orcd::ModelSpec& spec, const LayerSpec& layer, const orcd::LayerWeights& w,
                   ViewReader& reader) {
  reader.Read(w.attn_q, layer.q_rows(), spec.hidden);
  reader.Read(w.attn_k, layer.kv_size(), spec.hidden);
  reader.Read(w.attn_v, layer.kv_size(), spec.hidden);
  reader.Read(w.attn_output, spec.hidden, layer.q_size());
  reader.Read(w.attn_sinks, layer.heads, layer.sinks);
  reader.Read(w.attn_q_bias, layer.q_rows(), false);
  reader.Read(w.attn_k_bias, layer.kv_size(), false);
  reader.Read(w.attn_v_bias, layer.kv_size(), false);
  reader.Read(w.attn_output_bias, spec.hidden, false);
  const bool projection = layer.qk_norm == orcd::QkNorm::kProjection;
  const bool has_norm = layer.qk_norm != orcd::QkNorm::kNone;
  reader.Read(w.attn_q_norm, projection ? layer.q_size() : layer.head_dim, has_norm);
  reader.Read(w.attn_k_norm, projection ? layer.kv_size() : layer.head_dim, has_norm);
}

void ReadDeltaNet(const orcd::ModelSpec& spec, const orcd::DeltaNetSpec& delta,
                  const orcd::DeltaNetWeights& w, ViewReader& reader) {
  const int values = delta.value_size();
  if (w.qkv_gate.data != nullptr) {
    Require(w.qkv.data == nullptr && w.gate.data == nullptr);
    reader.Read(w.qkv_gate, delta.channels() + values, spec.hidden);
  } else {
    reader.Read(w.qkv, delta.channels(), spec.hidden);
    reader.Read(w.gate, values, spec.hidden);
  }
  if (w.beta_alpha.data != nullptr) {
    Require(w.beta.data == nullptr && w.alpha.data == nullptr);
    Require(delta.pairing == orcd::HeadPairing::kDivision);
    reader.Read(w.beta_alpha, 2 * delta.value_heads, spec.hidden);
  } else {
    reader.Read(w.beta, delta.value_heads, spec.hidden);
    reader.Read(w.alpha, delta.value_heads, spec.hidden);
  }
  reader.Read(w.conv, delta.channels(), delta.conv);
  reader.Read(w.a, delta.value_heads, true);
  reader.Read(w.dt_bias, delta.value_heads, true);
  reader.Read(w.norm, delta.head_dim, true);
  reader.Read(w.output, spec.hidden, values);
}

void CheckWeights(const orcd::ModelSpec& spec, const orcd::ModelWeights& weights) {
  Require(weights.layers.size() == spec.layers.size());
  ViewReader reader;
  reader.Read(weights.token_embd, spec.vocab, spec.hidden);
  reader.Read(weights.output, spec.vocab, spec.hidden);
  reader.Read(weights.output_norm, spec.hidden, true);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const orcd::LayerWeights& w = weights.layers[i];
    const bool pre_norm = layer.form == orcd::LayerForm::kPreNorm;
    reader.Read(w.attn_norm, spec.hidden, layer.form != orcd::LayerForm::kPostNorm);
    reader.Read(w.ffn_norm, spec.hidden, pre_norm);
    reader.Read(w.attn_post_norm, spec.hidden, layer.post_norms);
    reader.Read(w.ffn_post_norm, spec.hidden, layer.post_norms);
    CheckFfn(spec, layer, w, reader);
    if (layer.recurrent()) {
      ReadDeltaNet(spec, layer.delta, w.delta, reader);
    } else {
      ReadAttention(spec, layer, w, reader);
    }
    for (const double frequency : orcd::RopeFrequencies(layer.rope, weights, spec.context_length)) {
      Require(frequency > 0 && std::isfinite(frequency));
    }
  }
}

void CheckBlock(const orcd::ModelSpec& spec, const orcd::PredictBlock& block) {
  ViewReader reader;
  Require(!block.spec.recurrent());
  CheckExperts(block.spec);
  CheckFfn(spec, block.spec, block.layer, reader);
  ReadAttention(spec, block.spec, block.layer, reader);
  reader.Read(block.projection, spec.hidden, 2 * int64_t{spec.hidden});
  reader.Read(block.embedding_norm, spec.hidden, true);
  reader.Read(block.hidden_norm, spec.hidden, true);
  reader.Read(block.output_norm, spec.hidden, true);
  reader.Read(block.token_embd, spec.vocab, spec.hidden);
  reader.Read(block.output, spec.vocab, spec.hidden);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const std::string architecture(input.Of(orcd::AllArchitectures())->name);
  std::optional<orcd::RopeOverride> scaling;
  if (const uint32_t factor = input.Byte(); factor % 4 == 1) {
    scaling = orcd::RopeOverride{.factor = static_cast<float>(factor) / 16};
  }
  TestModel model = orcd::TinyModelOf(architecture);
  for (int edits = 0; edits < 16 && !input.empty(); ++edits) Edit(input, architecture, model);
  const auto gguf = Open(model);
  if (gguf == nullptr) return 0;
  const auto spec = orcd::ReadModelSpec(*gguf, scaling);
  if (!spec.ok()) return 0;
  CheckSpec(*spec);
  const auto weights = orcd::ModelWeights::FromGguf(*gguf, *spec);
  if (!weights.ok()) return 0;
  CheckWeights(*spec, *weights);
  const auto block = orcd::PredictBlock::FromGguf(*gguf, *spec, *weights);
  if (block.ok() && block->has_value()) CheckBlock(*spec, **block);
  return 0;
}
