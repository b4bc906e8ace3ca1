// For tests: the tiny model of test_model.h as a file of each architecture.
#ifndef ORCD_TESTING_ARCHITECTURE_MODELS_H_
#define ORCD_TESTING_ARCHITECTURE_MODELS_H_

#include <cstdint>
#include <map>
#include <string>

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

// A valid file of the architecture, with the sizes of TestModel::Valid: what real files hold beside
// the tensors that all architectures share, in the form that real files have.
inline TestModel TinyModelOf(const std::string& architecture) {
  ArchitectureModel m(architecture);
  if (architecture != "qwen2" && architecture != "glm4" && architecture != "seed_oss") {
    m.EraseBiases();
  }
  if (architecture == "qwen3" || architecture == "qwen3vl" || architecture == "gemma3") {
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
  if (architecture == "granite") {
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
  if (architecture == "seed_oss") {
    m.Erase("ffn_norm.weight");
    m.Add("post_attention_norm.weight", 64);
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
