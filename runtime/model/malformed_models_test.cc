// Files of every architecture, each spoilt in one way, and what the messages say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/error.h"
#include "runtime/model/architectures.h"
#include "testing/architecture_models.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

struct Malformed {
  std::string name;
  std::string architecture;
  std::function<void(TestModel&)> spoil;
  absl::StatusCode code;
  // Key or tensor.
  std::string subject;
  std::vector<std::string> message;
};

void PrintTo(const Malformed& malformed, std::ostream* out) { *out << malformed.name; }

class MalformedModelTest : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedModelTest, IsRefused) {
  TempDir dir;
  TestModel model = TinyModelOf(GetParam().architecture);
  GetParam().spoil(model);
  const auto gguf = model.WriteAndOpen(dir.File("model.gguf"));
  ASSERT_NE(gguf, nullptr);
  const auto spec = ReadModelSpec(*gguf);
  absl::Status status = spec.status();
  if (status.ok()) status = ModelWeights::FromGguf(*gguf, *spec).status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_EQ(GetErrorDetails(status).subject, GetParam().subject) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().subject));
  for (const std::string& part : GetParam().message) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

// Collects an architecture's cases.
class Cases {
 public:
  Cases(std::string architecture, std::vector<Malformed>& all)
      : architecture_(std::move(architecture)), all_(all) {}

  std::string Key(const std::string& name) const { return architecture_ + "." + name; }

  void Add(const std::string& subject, absl::StatusCode code,
           const std::function<void(TestModel&)>& spoil, const std::vector<std::string>& message) {
    const std::string name = absl::StrCat(all_.size(), "_", architecture_, "_", subject);
    all_.push_back({absl::StrReplaceAll(name, {{".", "_"}, {"-", "_"}}), architecture_, spoil, code,
                    subject, message});
  }
  void Set(const std::string& name, const TestModel::Value& value, absl::StatusCode code,
           const std::vector<std::string>& message) {
    Add(
        Key(name), code, [key = Key(name), value](TestModel& m) { m.keys[key] = value; }, message);
  }
  // The key is a number above zero, which has to be finite.
  void AddNumber(const std::string& name, bool zero_is_invalid = true) {
    for (const float value : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(), 1e30f}) {
      if (value == 0 && !zero_is_invalid) continue;
      Set(name, value, kInvalid, {"has to be between"});
    }
    Set(name, "1", kInvalid, {"f32"});
  }

 private:
  const std::string architecture_;
  std::vector<Malformed>& all_;
};

bool IsAmong(const std::string& name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool HasWindows(const std::string& architecture) {
  return IsAmong(architecture, {"gemma2", "gemma3", "cohere2", "olmo2", "gpt-oss"});
}

// Files of these have experts in the last layer.
bool HasExperts(const std::string& architecture) {
  return IsAmong(architecture, {"glm4moe", "gpt-oss", "granitemoe", "qwen2moe", "qwen35moe",
                                "qwen3moe", "qwen3next"});
}

// The first layer of these files is recurrent, the second has gated attention.
bool IsHybrid(const std::string& architecture) {
  return IsAmong(architecture, {"qwen35", "qwen35moe", "qwen3next"});
}

// A bool array.
GgufEntry BoolsOf(const std::vector<uint64_t>& values) {
  auto array = std::make_shared<GgufArray>();
  array->type = GgufType::kBool;
  array->unsigned_values = values;
  return GgufEntry{GgufType::kArray, std::shared_ptr<const GgufArray>(array)};
}

// Keys of these files scale RoPE, or their tensors do.
bool ScalesRope(const std::string& architecture) {
  return IsAmong(architecture, {"phi3", "mistral3", "gpt-oss"});
}

void AddKeys(const std::string& architecture, Cases& cases) {
  // Models of other kinds.
  if (!HasExperts(architecture) && architecture != "llama") {
    cases.Set("expert_count", uint32_t{8}, kUnimplemented,
              {"is 8", "mixtures of experts", architecture});
  }
  if (architecture != "glm4moe" && !IsHybrid(architecture)) {
    cases.Set("nextn_predict_layers", uint32_t{1}, kUnimplemented,
              {"is 1", "predict further", architecture});
  }
  cases.Set("attention.causal", false, kUnimplemented, {"embeddings"});
  // Heads.
  cases.Set("attention.head_count_kv", uint32_t{3}, kInvalid, {"is 3", "divide", "is 4"});
  cases.Set("attention.head_count", uint32_t{6}, kInvalid, {"is 6", "64"});
  cases.Set("attention.value_length", uint32_t{32}, kUnimplemented, {"is 32", "16 dimensions"});
  // Layers that differ.
  for (const std::string name :
       {"attention.head_count", "attention.head_count_kv", "feed_forward_length"}) {
    cases.Set(name, std::vector<int32_t>{4, 2}, kUnimplemented,
              {"differs between layers", "4", "2"});
    cases.Set(name, std::vector<int32_t>{4, 4, 4}, kInvalid, {"3 numbers for 2 layers"});
    cases.Set(name, std::vector<int32_t>{0, 0}, kInvalid, {"holds 0"});
  }
  // Numbers.
  cases.AddNumber(architecture == "cohere2" ? "attention.layer_norm_epsilon"
                                            : "attention.layer_norm_rms_epsilon");
  cases.AddNumber("rope.freq_base");
  cases.AddNumber("rope.scaling.attn_factor");
  cases.AddNumber("attention.scale", false);
  // RoPE.
  cases.Set("rope.dimension_count", uint32_t{18}, kInvalid, {"is 18", "16"});
  cases.Set("rope.dimension_count", uint32_t{7}, kInvalid, {"is 7", "even"});
  cases.Set("rope.dimension_sections", std::vector<int32_t>{4, 4, 4, 4}, kInvalid, {"16", "half"});
  cases.Set("rope.dimension_sections", std::vector<int32_t>{4, -4, 4, 0}, kInvalid,
            {"numbers from 0"});
  cases.Set("rope.scaling.type", "su", kUnimplemented, {"\"su\"", "none, linear, yarn"});
}

// Keys that scale RoPE, in files that do not scale it already.
void AddScaling(Cases& cases) {
  cases.AddNumber("rope.scaling.factor", false);
  cases.Add(cases.Key("rope.scaling.factor"), kInvalid,
            [key = cases.Key("rope.scaling.type")](TestModel& m) { m.keys[key] = "yarn"; },
            {"is missing", "at least 1"});
  cases.Add("rope_factors_short.weight", kInvalid,
            [key = cases.Key("rope.scaling.type")](TestModel& m) { m.keys[key] = "longrope"; },
            {"missing", "longrope"});
  const auto yarn = [&](const std::string& name, const TestModel::Value& value,
                        absl::StatusCode code, const std::vector<std::string>& message) {
    cases.Add(
        cases.Key(name), code,
        [type = cases.Key("rope.scaling.type"), factor = cases.Key("rope.scaling.factor"),
         key = cases.Key(name), value](TestModel& m) {
          m.keys[type] = "yarn";
          m.keys[factor] = 4.0f;
          m.keys[key] = value;
        },
        message);
  };
  yarn("rope.scaling.factor", 0.5f, kInvalid, {"is 0.5", "at least 1"});
  yarn("rope.scaling.original_context_length", uint32_t{0}, kInvalid, {"is 0"});
  yarn("rope.scaling.yarn_beta_fast", 0.5f, kInvalid, {"is 0.5", "at least", "which is 1"});
  yarn("rope.scaling.yarn_beta_fast", NAN, kInvalid, {"between"});
  yarn("rope.scaling.yarn_beta_slow", 0.0f, kInvalid, {"between"});
  yarn("rope.scaling.yarn_log_multiplier", -1.0f, kInvalid, {"between"});
  yarn("rope.scaling.yarn_ext_factor", 0.5f, kUnimplemented, {"is 0.5", "only 1"});
  yarn("rope.scaling.yarn_attn_factor", 2.0f, kUnimplemented, {"is 2", "only 1"});
}

void AddWindows(const std::string& architecture, Cases& cases) {
  if (architecture == "phi3") return;
  if (!HasWindows(architecture)) {
    cases.Set("attention.sliding_window", uint32_t{16}, kUnimplemented, {"is 16", architecture});
    return;
  }
  cases.Set("attention.sliding_window", uint32_t{0}, kInvalid, {"is 0", "from 1"});
  cases.Set("attention.sliding_window", int32_t{-1}, kInvalid, {"-1"});
  const std::string window = cases.Key("attention.sliding_window");
  const std::string pattern = cases.Key("attention.sliding_window_pattern");
  const auto with_pattern = [&](const std::string& subject, const TestModel::Value& value,
                                absl::StatusCode code, const std::vector<std::string>& message) {
    cases.Add(
        subject, code,
        [window, pattern, value](TestModel& m) {
          m.keys[window] = uint32_t{16};
          m.keys[pattern] = value;
        },
        message);
  };
  with_pattern(window, BoolsOf({1, 1}), kUnimplemented, {"each of the 2 layers", "16 positions"});
  with_pattern(window, uint32_t{3}, kUnimplemented, {"each of the 2 layers"});
  with_pattern(pattern, BoolsOf({1, 0, 1}), kInvalid, {"3 bool", "2 layers"});
  with_pattern(pattern, std::vector<int32_t>{1, 0}, kInvalid, {"2 i32", "2 layers"});
  with_pattern(pattern, uint32_t{0}, kInvalid, {"is 0"});
  with_pattern(pattern, "every", kInvalid, {"an integer"});
}

// Scales that the architecture has, and those of others.
void AddScales(const std::string& architecture, Cases& cases) {
  const struct {
    std::string name;
    std::vector<std::string> architectures;
  } scales[] = {{"embedding_scale", {"granite", "granitemoe"}},
                {"residual_scale", {"granite", "granitemoe"}},
                {"logit_scale", {"granite", "granitemoe", "cohere2"}},
                {"attn_logit_softcapping", {"gemma2"}},
                {"final_logit_softcapping", {"gemma2", "gemma3"}}};
  for (const auto& [name, architectures] : scales) {
    if (std::ranges::find(architectures, architecture) != architectures.end()) {
      cases.AddNumber(name);
    } else {
      cases.Set(name, 7.5f, kUnimplemented, {"is 7.5", architecture});
      cases.Set(name, NAN, kUnimplemented, {"no number"});
    }
  }
  if (architecture == "mistral3") {
    cases.AddNumber("attention.temperature_scale", false);
    cases.Set("attention.temperature_length", uint32_t{64}, kInvalid, {"is 64", "which is 32"});
  } else {
    cases.Set("attention.temperature_scale", 0.1f, kUnimplemented, {"is 0.1"});
    cases.Set("attention.temperature_length", uint32_t{64}, kUnimplemented, {"is 64"});
  }
  if (architecture == "gemma3" || architecture == "gpt-oss") cases.AddNumber("rope.freq_base_swa");
  if (IsAmong(architecture, {"cohere2", "granite", "granitemoe"})) {
    cases.Add(cases.Key("logit_scale"), kInvalid,
              [key = cases.Key("logit_scale")](TestModel& m) { m.keys.erase(key); }, {"missing"});
  }
}

// The keys and tensors of experts. `model` is a file whose last layer has 4 of `ffn`, of which 2
// are chosen.
void AddExperts(const std::string& architecture, const TestModel& model, uint32_t ffn,
                Cases& cases) {
  const auto set = [&](const std::string& name, const TestModel::Value& value,
                       absl::StatusCode code, const std::vector<std::string>& message) {
    cases.Add(
        cases.Key(name), code,
        [model, key = cases.Key(name), value](TestModel& m) {
          m = model;
          m.keys[key] = value;
        },
        message);
  };
  const auto spoil = [&](const std::string& subject, absl::StatusCode code,
                         const std::function<void(TestModel&)>& change,
                         const std::vector<std::string>& message) {
    cases.Add(
        subject, code,
        [model, change](TestModel& m) {
          m = model;
          change(m);
        },
        message);
  };
  const bool by_keys = architecture == "glm4moe";
  // Counts that lie.
  if (architecture != "llama") {
    set("expert_count", uint32_t{0}, kInvalid, {"is 0", "from 1 to 4096"});
    spoil(cases.Key("expert_count"), kInvalid,
          [key = cases.Key("expert_count")](TestModel& m) { m.keys.erase(key); }, {"missing"});
  }
  set("expert_count", uint32_t{4097}, kInvalid, {"is 4097", "4096"});
  set("expert_count", int32_t{-1}, kInvalid, {"-1"});
  set("expert_used_count", uint32_t{0}, kInvalid, {"is 0", "from 1"});
  set("expert_used_count", uint32_t{5}, kInvalid, {"is 5", "at most", "which is 4"});
  spoil(cases.Key("expert_used_count"), kInvalid,
        [key = cases.Key("expert_used_count")](TestModel& m) { m.keys.erase(key); }, {"missing"});
  const std::string layer = architecture == "glm4moe" ? "blk.1." : "blk.0.";
  for (const uint32_t count : {3, 8}) {
    spoil(layer + "ffn_gate_inp.weight", kInvalid,
          [key = cases.Key("expert_count"), count](TestModel& m) { m.keys[key] = count; },
          {"shape [64, 4]", absl::StrFormat("[64, %d]", count)});
  }
  spoil(layer + "ffn_gate_exps.weight", kInvalid,
        [key = cases.Key("expert_feed_forward_length"), ffn](TestModel& m) {
          m.keys[key] = ffn + 32;
        },
        {absl::StrFormat("[64, %d, 4]", ffn), absl::StrFormat("[64, %d, 4]", ffn + 32)});
  // Routers that the family does not have.
  set("expert_gating_func", uint32_t{4}, kUnimplemented, {"is 4", architecture});
  if (!by_keys) {
    set("expert_gating_func", uint32_t{2}, kUnimplemented, {"is 2", architecture});
    if (architecture != "gpt-oss") {
      const bool normalises = architecture != "qwen2moe";
      set("expert_weights_norm", !normalises, kUnimplemented,
          {normalises ? "is false" : "is true", architecture});
    }
  }
  if (architecture != "gpt-oss") set("expert_weights_norm", "yes", kInvalid, {"bool"});
  for (const float value : {-1.0f, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(), 1e30f}) {
    set("expert_weights_scale", value, kInvalid, {"has to be between"});
  }
  // Groups.
  set("expert_group_count", uint32_t{3}, kInvalid, {"is 3", "divide", "which is 4"});
  set("expert_group_count", uint32_t{4}, kInvalid, {"is 4", "two or more"});
  const auto groups = [&](const std::string& subject, uint32_t used, uint32_t experts,
                          const std::vector<std::string>& message) {
    spoil(
        cases.Key(subject), kInvalid,
        [architecture, used, experts](TestModel& m) {
          m.keys[architecture + ".expert_group_count"] = uint32_t{2};
          m.keys[architecture + ".expert_group_used_count"] = used;
          m.keys[architecture + ".expert_used_count"] = experts;
        },
        message);
  };
  groups("expert_group_used_count", 0, 2, {"is 0"});
  groups("expert_group_used_count", 3, 2, {"is 3", "from 1 to 2"});
  groups("expert_used_count", 1, 3, {"is 3", "1 groups", "2 experts"});
  // Matrices of another shape.
  const auto reshape = [&](const std::string& name, const std::vector<uint64_t>& shape) {
    spoil(layer + name, kInvalid,
          [tensor = layer + name, shape](TestModel& m) { m.tensors[tensor].ne = shape; },
          {"shape", absl::StrFormat("[%d, ", shape[0])});
  };
  reshape("ffn_gate_inp.weight", {4, 64});
  reshape("ffn_gate_inp.weight", {64, 5});
  reshape("ffn_gate_inp.weight", {32, 4});
  reshape("ffn_gate_exps.weight", {64, ffn, 3});
  reshape("ffn_gate_exps.weight", {64, ffn * 4});
  reshape("ffn_up_exps.weight", {64, ffn, 5});
  reshape("ffn_down_exps.weight", {64, ffn, 4, 2});
  spoil(layer + "ffn_gate_exps.weight", kInvalid,
        [layer](TestModel& m) { m.tensors.erase(layer + "ffn_gate_exps.weight"); },
        {"missing", layer + "ffn_gate_up_exps.weight", "4 experts"});
  // Fused, of another size, and twice.
  spoil(layer + "ffn_gate_up_exps.weight", kInvalid,
        [layer, ffn](TestModel& m) {
          m.tensors.erase(layer + "ffn_gate_exps.weight");
          m.tensors.erase(layer + "ffn_up_exps.weight");
          m.tensors[layer + "ffn_gate_up_exps.weight"] = {TensorType::kQ8_0, {64, ffn, 4}, {}};
        },
        {absl::StrFormat("[64, %d, 4]", ffn), absl::StrFormat("[64, %d, 4]", 2 * ffn)});
  spoil(layer + "ffn_gate_exps.weight", kInvalid,
        [layer, ffn](TestModel& m) {
          m.tensors[layer + "ffn_gate_up_exps.weight"] = {TensorType::kQ8_0, {64, 2 * ffn, 4}, {}};
        },
        {layer + "ffn_gate_up_exps.weight", "same rows"});
  // An FFN beside the experts.
  const auto surplus = [&](const std::string& name) {
    spoil(layer + name, kUnimplemented,
          [tensor = layer + name](TestModel& m) { m.AddVector(tensor, 64); }, {"no part"});
  };
  surplus("ffn_down.bias");
  surplus("ffn_up.weight");
  if (!by_keys) surplus("exp_probs_b.bias");
  if (architecture != "qwen2moe" && !IsHybrid(architecture)) surplus("ffn_gate_inp_shexp.weight");
}

bool IsFusedTensor(const std::string& name, const TestModel& model) {
  return (name.ends_with("attn_qkv.weight") && !model.tensors.contains("blk.0.ssm_a")) ||
         (name.ends_with("ffn_up.weight") && !model.tensors.contains("blk.0.ffn_gate.weight"));
}

// Matrices may be of any type, also those that are F32 here.
bool IsF32Vector(const std::string& name, const TestModel::Tensor& tensor) {
  return tensor.type == TensorType::kF32 && !name.ends_with("ffn_gate_inp.weight") &&
         !name.ends_with("ssm_conv1d.weight");
}

void AddTensors(const std::string& architecture, Cases& cases) {
  const TestModel valid = TinyModelOf(architecture);
  for (const auto& [name, tensor] : valid.tensors) {
    if (!IsFusedTensor(name, valid)) {
      cases.Add(name, kInvalid, [name = name](TestModel& m) { m.tensors.erase(name); },
                {"missing"});
    }
    cases.Add(name, kInvalid, [name = name](TestModel& m) { m.tensors[name].ne.push_back(2); },
              {name == "token_embd.weight" ? "520 rows" : "shape"});
    cases.Add(name, kInvalid, [name = name](TestModel& m) { m.tensors[name].ne.back() += 32; },
              {name == "token_embd.weight" ? "292 rows" : "shape"});
    if (!IsF32Vector(name, tensor)) continue;
    cases.Add(name, kInvalid,
              [name = name](TestModel& m) {
                m.tensors[name].type = TensorType::kF16;
                m.tensors[name].data.clear();
              },
              {"F16", "F32"});
  }
  // Tensors that no model of the family has.
  const auto surplus = [&](const std::string& name, const std::vector<std::string>& message) {
    cases.Add(
        name, kUnimplemented, [name](TestModel& m) { m.AddVector(name, 64); }, message);
  };
  if (architecture != "gpt-oss") surplus("blk.0.attn_sinks.weight", {"no part", "2 layers"});
  surplus("blk.2.attn_norm.weight", {"no part", "2 layers"});
  surplus("cls.output.weight", {"no part"});
  surplus("blk.1.ffn_down.scale", {"NVFP4"});
  surplus("blk.1.ffn_down.input_scale", {"NVFP4"});
  if (architecture != "phi3") surplus("rope_factors_other.weight", {"scales RoPE"});
  // A bias in one layer alone.
  if (architecture != "gpt-oss" && !IsHybrid(architecture)) {
    cases.Add("blk.0.attn_output.bias", kInvalid,
              [](TestModel& m) { m.AddVector("blk.1.attn_output.bias", 64); },
              {"missing", "layer 1 has it"});
  }
  // The same rows twice.
  const auto matrix = [](uint64_t rows) {
    return TestModel::Tensor{TensorType::kQ8_0, {64, rows}, {}};
  };
  cases.Add("blk.1.attn_q.weight", kInvalid,
            [matrix](TestModel& m) {
              m.tensors["blk.1.attn_q.weight"] = matrix(64);
              m.tensors["blk.1.attn_qkv.weight"] = matrix(128);
            },
            {"blk.1.attn_qkv.weight", "same rows"});
  const std::string attention = IsHybrid(architecture) ? "blk.1." : "blk.0.";
  const uint64_t qkv_rows = IsHybrid(architecture) ? 192 : 128;
  cases.Add(attention + "attn_k.bias", kInvalid,
            [qkv_rows](TestModel& m) {
              for (const std::string layer : {"blk.0.", "blk.1."}) {
                m.tensors.erase(layer + "attn_q.bias");
                m.AddVector(layer + "attn_k.bias", 32);
                m.AddVector(layer + "attn_qkv.bias", qkv_rows);
              }
            },
            {attention + "attn_qkv.bias", "same rows"});
  // A fused tensor of another size.
  cases.Add(attention + "attn_qkv.weight", kInvalid,
            [matrix, attention](TestModel& m) {
              for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
                m.tensors.erase(absl::StrCat(attention, name, ".weight"));
              }
              m.tensors[attention + "attn_qkv.weight"] = matrix(96);
            },
            {"[64, 96]", absl::StrFormat("[64, %d]", qkv_rows)});
  const Architecture& row = **std::ranges::find(AllArchitectures(), architecture,
                                                [](const Architecture* a) { return a->name; });
  if (row.fused_ffn) {
    // With a gate of its own, up has half the rows.
    cases.Add("blk.0.ffn_up.weight", kInvalid,
              [matrix](TestModel& m) { m.tensors["blk.0.ffn_gate.weight"] = matrix(256); },
              {"[64, 512]", "[64, 256]"});
    cases.Add("blk.1.ffn_gate.weight", kInvalid,
              [](TestModel& m) { m.tensors.erase("blk.1.ffn_up.weight"); },
              {"missing", "blk.1.ffn_up.weight"});
  } else if (valid.tensors.contains("blk.0.ffn_gate.weight")) {
    cases.Add("blk.0.ffn_gate.weight", kInvalid,
              [matrix](TestModel& m) {
                m.tensors.erase("blk.0.ffn_gate.weight");
                m.tensors["blk.0.ffn_up.weight"] = matrix(512);
              },
              {"missing"});
  }
}

void AddFactors(const std::string& architecture, Cases& cases) {
  const auto factor = [&](const std::string& name) {
    for (const float value : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity()}) {
      cases.Add(name, kInvalid,
                [name, value](TestModel& m) {
                  m.AddVector(name, 8);
                  std::memcpy(&m.tensors[name].data[3 * sizeof(value)], &value, sizeof(value));
                },
                {absl::StrFormat("%g", value), "above zero"});
    }
  };
  if (architecture == "phi3") {
    factor("rope_factors_short.weight");
    factor("rope_factors_long.weight");
    cases.Set("rope.scaling.factor", 4.0f, kUnimplemented, {"is 4", "as a tensor"});
    return;
  }
  if (IsAmong(architecture, {"llama", "granite", "granitemoe"})) {
    factor("rope_freqs.weight");
    cases.Add(cases.Key("rope.scaling.factor"), kUnimplemented,
              [key = cases.Key("rope.scaling.factor")](TestModel& m) {
                m.AddVector("rope_freqs.weight", 8);
                m.keys[key] = 4.0f;
              },
              {"is 4", "as a tensor"});
    return;
  }
  if (ScalesRope(architecture)) return;
  cases.Add("rope_freqs.weight", kUnimplemented,
            [](TestModel& m) { m.AddVector("rope_freqs.weight", 8); }, {"scales RoPE"});
}

// The keys and tensors of delta nets, which have 4 value heads of 16 on 2 key heads.
void AddDeltaNets(const std::string& architecture, Cases& cases) {
  for (const std::string name : {"ssm.conv_kernel", "ssm.state_size", "ssm.group_count",
                                 "ssm.time_step_rank", "ssm.inner_size"}) {
    cases.Set(name, uint32_t{0}, kInvalid, {"is 0", "from 1"});
    cases.Set(name, int32_t{-1}, kInvalid, {"-1"});
    cases.Set(name, uint32_t{1} << 31, kInvalid, {"is 2147483648", "from 1 to"});
    cases.Set(name, 4.0f, kInvalid, {"an integer"});
    cases.Add(cases.Key(name), kInvalid,
              [key = cases.Key(name)](TestModel& m) { m.keys.erase(key); }, {"missing"});
  }
  cases.Set("ssm.conv_kernel", uint32_t{17}, kInvalid, {"is 17", "from 1 to 16"});
  cases.Set("ssm.time_step_rank", uint32_t{3}, kInvalid, {"is 3", "multiple", "which is 2"});
  cases.Set("ssm.inner_size", uint32_t{66}, kInvalid, {"is 66", "multiple", "which is 4"});
  cases.Set("ssm.inner_size", uint32_t{128}, kUnimplemented,
            {"is 128", "32 dimensions", "have 16"});
  cases.Add(cases.Key("ssm.state_size"), kUnimplemented,
            [architecture](TestModel& m) {
              m.keys[architecture + ".ssm.state_size"] = uint32_t{24};
              m.keys[architecture + ".ssm.inner_size"] = uint32_t{96};
            },
            {"is 24", "multiples of 16"});
  // Layers that are recurrent.
  cases.Set("full_attention_interval", uint32_t{0}, kInvalid, {"is 0", "from 1"});
  cases.Set("full_attention_interval", uint32_t{3}, kUnimplemented,
            {"each of the 2 layers", "attention"});
  cases.Set("attention.recurrent_layers", BoolsOf({1, 1}), kUnimplemented,
            {"each of the 2 layers", "attention"});
  cases.Set("attention.recurrent_layers", BoolsOf({1, 0, 0}), kInvalid, {"each of 2 blocks"});
  cases.Set("attention.recurrent_layers", std::vector<int32_t>{1, 0}, kInvalid, {"bool"});
  cases.Set("attention.recurrent_layers", true, kInvalid, {"bool"});
  cases.Set("nextn_predict_layers", uint32_t{2}, kInvalid, {"is 2", "from 0 to 1"});
  const auto with_key = [&](const std::string& tensor, const std::string& name,
                            const TestModel::Value& value,
                            const std::vector<std::string>& message) {
    cases.Add(
        tensor, kInvalid, [key = cases.Key(name), value](TestModel& m) { m.keys[key] = value; },
        message);
  };
  // The fused matrix of an attention with a gate has more rows.
  with_key("blk.0.attn_qkv.weight", "full_attention_interval", uint32_t{1},
           {"[64, 128]", "[64, 192]"});
  with_key("blk.0.attn_qkv.weight", "attention.recurrent_layers", BoolsOf({0, 1}),
           {"[64, 128]", "[64, 192]"});
  with_key("blk.0.ssm_conv1d.weight", "ssm.conv_kernel", uint32_t{3}, {"[4, 128]", "[3, 128]"});
  with_key("blk.0.ssm_conv1d.weight", "ssm.group_count", uint32_t{4}, {"[4, 128]", "[4, 192]"});
  const auto matrix = [](uint64_t rows) {
    return TestModel::Tensor{TensorType::kQ8_0, {64, rows}, {}};
  };
  // Attention without a gate.
  cases.Add("blk.1.attn_q.weight", kInvalid,
            [matrix](TestModel& m) { m.tensors["blk.1.attn_q.weight"] = matrix(64); },
            {"[64, 64]", "[64, 128]"});
  const auto surplus = [&](const std::string& name) {
    cases.Add(name, kUnimplemented, [name, matrix](TestModel& m) { m.tensors[name] = matrix(64); },
              {"no part"});
  };
  surplus("blk.1.attn_gate.weight");
  surplus("blk.1.ssm_out.weight");
  surplus("blk.0.attn_output.weight");
  surplus("blk.0.ssm_conv1d.bias");
  if (architecture != "qwen3next") {
    surplus("blk.0.ssm_ba.weight");
    surplus("blk.0.ssm_in.weight");
    return;
  }
  surplus("blk.0.ssm_beta.weight");
  cases.Add("blk.0.attn_qkv.weight", kInvalid,
            [matrix](TestModel& m) { m.tensors["blk.0.ssm_in.weight"] = matrix(192); },
            {"blk.0.ssm_in.weight", "same rows"});
  cases.Add("blk.0.attn_gate.weight", kInvalid,
            [matrix](TestModel& m) {
              m.tensors.erase("blk.0.attn_qkv.weight");
              m.tensors["blk.0.ssm_in.weight"] = matrix(192);
            },
            {"blk.0.ssm_in.weight", "same rows"});
  cases.Add("blk.0.attn_qkv.weight", kInvalid,
            [](TestModel& m) {
              m.tensors.erase("blk.0.attn_qkv.weight");
              m.tensors.erase("blk.0.attn_gate.weight");
            },
            {"missing", "blk.0.ssm_in.weight"});
  cases.Add("blk.0.ssm_in.weight", kInvalid,
            [matrix](TestModel& m) {
              m.tensors.erase("blk.0.attn_qkv.weight");
              m.tensors.erase("blk.0.attn_gate.weight");
              m.tensors["blk.0.ssm_in.weight"] = matrix(128);
            },
            {"[64, 128]", "[64, 192]"});
}

std::vector<Malformed> AllMalformed() {
  std::vector<Malformed> all;
  for (const Architecture* row : AllArchitectures()) {
    const std::string architecture(row->name);
    Cases cases(architecture, all);
    AddKeys(architecture, cases);
    if (!ScalesRope(architecture)) AddScaling(cases);
    AddWindows(architecture, cases);
    AddScales(architecture, cases);
    if (architecture == "llama") AddExperts(architecture, TinyMixtral(), 256, cases);
    if (HasExperts(architecture)) {
      AddExperts(architecture, TinyModelOf(architecture), architecture == "granitemoe" ? 256 : 32,
                 cases);
    }
    if (architecture == "glm4moe") {
      cases.Set("nextn_predict_layers", uint32_t{2}, kInvalid, {"is 2", "from 0 to 1"});
      cases.Set("leading_dense_block_count", uint32_t{3}, kInvalid, {"is 3", "from 0 to 2"});
      cases.Set("expert_shared_count", uint32_t{1 << 20}, kInvalid, {"is 1048576"});
    }
    if (IsHybrid(architecture)) AddDeltaNets(architecture, cases);
    AddTensors(architecture, cases);
    AddFactors(architecture, cases);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, MalformedModelTest, ::testing::ValuesIn(AllMalformed()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace orcd
