// For tests: the tiny model of test_model.h as a file of each architecture.
#ifndef ORCD_TESTING_ARCHITECTURE_MODELS_H_
#define ORCD_TESTING_ARCHITECTURE_MODELS_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "testing/test_model.h"

namespace orcd {

// Edits the tiny model towards another architecture's.
class ArchitectureModel {
 public:
  explicit ArchitectureModel(const std::string& architecture) : prefix_(architecture + ".") {
    model.keys["general.architecture"] = architecture;
    for (const auto& [key, value] : std::map(model.keys)) {
      if (!key.starts_with("qwen2.")) continue;
      model.keys.erase(key);
      model.keys[prefix_ + key.substr(6)] = value;
    }
  }

  void Set(const std::string& name, const TestModel::Value& value) {
    model.keys[prefix_ + name] = value;
  }
  void Erase(const std::string& name) {
    for (const std::string layer : {"blk.0.", "blk.1."}) model.tensors.erase(layer + name);
  }
  void EraseBiases() {
    for (const char* name : {"attn_q.bias", "attn_k.bias", "attn_v.bias"}) Erase(name);
  }
  void Add(const std::string& name, uint64_t size) {
    for (const std::string layer : {"blk.0.", "blk.1."}) model.AddVector(layer + name, size);
  }
  void AddMatrix(const std::string& name, uint64_t rows, uint64_t cols) {
    for (const std::string layer : {"blk.0.", "blk.1."}) {
      model.tensors[layer + name] = {TensorType::kQ8_0, {cols, rows}, {}};
    }
  }
  void FuseFfn() {
    Erase("ffn_gate.weight");
    AddMatrix("ffn_up.weight", 2 * 256, 64);
  }
  void FuseQkv() {
    for (const char* name : {"attn_q.weight", "attn_k.weight", "attn_v.weight"}) Erase(name);
    AddMatrix("attn_qkv.weight", 64 + 2 * 32, 64);
  }
  // Experts of `ffn` in place of the FFN, from layer `first` on; 2 of 4 are chosen.
  void AddExperts(uint64_t ffn, int first = 0) {
    Set("expert_count", uint32_t{4});
    Set("expert_used_count", uint32_t{2});
    for (int i = first; i < 2; ++i) {
      const std::string layer = absl::StrCat("blk.", i, ".");
      for (const char* name : {"ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"}) {
        model.tensors.erase(layer + name);
      }
      model.tensors[layer + "ffn_gate_inp.weight"] = {TensorType::kF32, {64, 4}, {}};
      model.tensors[layer + "ffn_gate_exps.weight"] = {TensorType::kQ8_0, {64, ffn, 4}, {}};
      model.tensors[layer + "ffn_up_exps.weight"] = {TensorType::kQ8_0, {64, ffn, 4}, {}};
      model.tensors[layer + "ffn_down_exps.weight"] = {TensorType::kQ8_0, {ffn, 64, 4}, {}};
    }
  }
  // A shared expert of `ffn` in the layers from `first` on.
  void AddSharedExpert(uint64_t ffn, int first = 0) {
    for (int i = first; i < 2; ++i) {
      const std::string layer = absl::StrCat("blk.", i, ".");
      model.tensors[layer + "ffn_gate_shexp.weight"] = {TensorType::kQ8_0, {64, ffn}, {}};
      model.tensors[layer + "ffn_up_shexp.weight"] = {TensorType::kQ8_0, {64, ffn}, {}};
      model.tensors[layer + "ffn_down_shexp.weight"] = {TensorType::kQ8_0, {ffn, 64}, {}};
    }
  }
  // A vector of `size` for each of the experts.
  void AddOfExperts(const std::string& name, uint64_t size) {
    for (const std::string layer : {"blk.0.", "blk.1."}) {
      model.AddVector(layer + name, size * 4);
      model.tensors[layer + name].ne = {size, 4};
    }
  }
  // A delta net of 4 value heads on 2 key heads of 16 in place of the first layer's attention, and
  // gated attention in the second.
  void MakeHybrid(bool fused_factors) {
    Set("ssm.conv_kernel", uint32_t{4});
    Set("ssm.state_size", uint32_t{16});
    Set("ssm.group_count", uint32_t{2});
    Set("ssm.time_step_rank", uint32_t{4});
    Set("ssm.inner_size", uint32_t{64});
    Set("full_attention_interval", uint32_t{2});
    for (const std::string name : {"q", "k", "v", "output"}) {
      model.tensors.erase("blk.0.attn_" + name + ".weight");
    }
    const auto matrix = [&](const std::string& name, uint64_t rows) {
      model.tensors[name + ".weight"] = {TensorType::kQ8_0, {64, rows}, {}};
    };
    matrix("blk.0.attn_qkv", 128);
    matrix("blk.0.attn_gate", 64);
    matrix("blk.0.ssm_out", 64);
    if (fused_factors) {
      matrix("blk.0.ssm_ba", 8);
    } else {
      matrix("blk.0.ssm_beta", 4);
      matrix("blk.0.ssm_alpha", 4);
    }
    model.tensors["blk.0.ssm_conv1d.weight"] = {TensorType::kF32, {4, 128}, {}};
    model.AddVector("blk.0.ssm_a", 4);
    model.AddVector("blk.0.ssm_dt.bias", 4);
    model.AddVector("blk.0.ssm_norm.weight", 16);
    matrix("blk.1.attn_q", 128);
    model.AddVector("blk.1.attn_q_norm.weight", 16);
    model.AddVector("blk.1.attn_k_norm.weight", 16);
  }
  void AddPostNorms() {
    Add("post_attention_norm.weight", 64);
    Add("post_ffw_norm.weight", 64);
  }
  // A window of 16 positions in the first of the two layers.
  void AddWindow(bool with_pattern) {
    Set("attention.sliding_window", uint32_t{16});
    if (with_pattern) Set("attention.sliding_window_pattern", uint32_t{2});
  }

  TestModel model = TestModel::Valid();

 private:
  const std::string prefix_;
};

// A file of Mixtral, whose architecture is llama: 2 of 4 experts of the FFN's width.
inline TestModel TinyMixtral() {
  ArchitectureModel m("llama");
  m.EraseBiases();
  m.AddExperts(256);
  return m.model;
}

// A valid file of the architecture, with the sizes of TestModel::Valid: what real files hold beside
// the tensors that all architectures share, in the form that real files have.
inline TestModel TinyModelOf(const std::string& architecture) {
  ArchitectureModel m(architecture);
  const auto is = [&](std::initializer_list<const char*> architectures) {
    return std::find(architectures.begin(), architectures.end(), architecture) !=
           architectures.end();
  };
  if (!is({"qwen2", "qwen2moe", "glm4", "glm4moe", "gpt-oss", "seed_oss"})) m.EraseBiases();
  if (is({"qwen3", "qwen3moe", "qwen3vl", "gemma3"})) {
    m.Add("attn_q_norm.weight", 16);
    m.Add("attn_k_norm.weight", 16);
  }
  if (architecture == "gemma2" || architecture == "gemma3") {
    m.AddPostNorms();
    m.AddWindow(architecture == "gemma3");
  }
  if (architecture == "gemma2") {
    m.Set("attn_logit_softcapping", 50.0f);
    m.Set("final_logit_softcapping", 30.0f);
  }
  if (architecture == "qwen3vl") {
    m.Set("rope.dimension_sections", std::vector<int32_t>{3, 3, 2, 0});
  }
  if (architecture == "mistral3") {
    m.Set("rope.scaling.type", "yarn");
    m.Set("rope.scaling.factor", 16.0f);
    m.Set("rope.scaling.original_context_length", uint32_t{32});
    m.Set("rope.scaling.yarn_log_multiplier", 1.0f);
    m.Set("attention.temperature_scale", 0.1f);
  }
  if (architecture == "phi3") {
    m.FuseQkv();
    m.FuseFfn();
    m.model.AddVector("rope_factors_short.weight", 8);
    m.model.AddVector("rope_factors_long.weight", 8);
    m.Set("rope.scaling.original_context_length", uint32_t{64});
    m.Set("rope.scaling.attn_factor", 1.19f);
    m.Set("attention.sliding_window", uint32_t{16});
  }
  if (is({"granite", "granitemoe"})) {
    m.Set("embedding_scale", 12.0f);
    m.Set("residual_scale", 0.22f);
    m.Set("attention.scale", 0.05f);
    m.Set("logit_scale", 4.0f);
  }
  if (architecture == "olmo2") {
    m.Erase("attn_norm.weight");
    m.Erase("ffn_norm.weight");
    m.AddPostNorms();
    m.Add("attn_q_norm.weight", 64);
    m.Add("attn_k_norm.weight", 32);
  }
  if (architecture == "glm4") {
    m.AddPostNorms();
    m.FuseFfn();
    m.Set("rope.dimension_count", uint32_t{8});
  }
  if (is({"qwen35", "qwen35moe", "qwen3next"})) m.MakeHybrid(architecture == "qwen3next");
  if (is({"qwen35", "qwen35moe"})) {
    m.Set("rope.dimension_sections", std::vector<int32_t>{3, 3, 2, 0});
  }
  if (is({"seed_oss", "glm4moe", "gpt-oss", "qwen35", "qwen35moe", "qwen3next"})) {
    m.Erase("ffn_norm.weight");
    m.Add("post_attention_norm.weight", 64);
  }
  if (is({"qwen2moe", "qwen3moe", "gpt-oss", "qwen35moe", "qwen3next"})) {
    m.AddExperts(32);
    m.Set("expert_feed_forward_length", uint32_t{32});
  }
  if (architecture == "qwen35moe") m.model.keys.erase("qwen35moe.feed_forward_length");
  if (is({"qwen2moe", "qwen35moe", "qwen3next"})) {
    m.AddSharedExpert(96);
    m.Add("ffn_gate_inp_shexp.weight", 64);
    m.Set("expert_shared_feed_forward_length", uint32_t{96});
  }
  if (architecture == "granitemoe") {
    m.AddExperts(256);
    m.AddSharedExpert(64);
    m.Set("expert_shared_feed_forward_length", uint32_t{64});
  }
  if (architecture == "glm4moe") {
    m.AddExperts(32, 1);
    m.AddSharedExpert(64, 1);
    m.model.AddVector("blk.1.exp_probs_b.bias", 4);
    m.Set("leading_dense_block_count", uint32_t{1});
    m.Set("expert_feed_forward_length", uint32_t{32});
    m.Set("expert_shared_count", uint32_t{2});
    m.Set("expert_gating_func", uint32_t{2});
    m.Set("expert_weights_norm", true);
    m.Set("expert_weights_scale", 1.5f);
    m.Set("rope.dimension_count", uint32_t{8});
  }
  if (architecture == "gpt-oss") {
    m.Add("attn_output.bias", 64);
    m.Add("attn_sinks.weight", 4);
    m.Add("ffn_gate_inp.bias", 4);
    m.AddOfExperts("ffn_gate_exps.bias", 32);
    m.AddOfExperts("ffn_up_exps.bias", 32);
    m.AddOfExperts("ffn_down_exps.bias", 64);
    m.AddWindow(false);
    m.Set("rope.scaling.type", "yarn");
    m.Set("rope.scaling.factor", 32.0f);
    m.Set("rope.scaling.original_context_length", uint32_t{16});
  }
  if (architecture == "cohere2") {
    m.Erase("ffn_norm.weight");
    m.model.keys.erase("cohere2.attention.layer_norm_rms_epsilon");
    m.Set("attention.layer_norm_epsilon", 1e-5f);
    m.Set("logit_scale", 0.25f);
    m.AddWindow(true);
  }
  return m.model;
}

}  // namespace orcd

#endif  // ORCD_TESTING_ARCHITECTURE_MODELS_H_
