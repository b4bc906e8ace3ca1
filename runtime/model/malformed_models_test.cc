// Files of every architecture, each spoilt in one way, and what the messages say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
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

bool HasWindows(const std::string& architecture) {
  return architecture == "gemma2" || architecture == "gemma3" || architecture == "cohere2" ||
         architecture == "olmo2";
}

void AddKeys(const std::string& architecture, Cases& cases) {
  // Models of other kinds.
  cases.Set("expert_count", uint32_t{8}, kUnimplemented, {"is 8", "mixtures of experts"});
  cases.Set("nextn_predict_layers", uint32_t{1}, kUnimplemented, {"is 1", "predict further"});
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

// All but phi3, whose tensors scale RoPE already, and mistral3, whose keys do.
void AddScaling(Cases& cases) {
  cases.AddNumber("rope.scaling.factor", false);
  cases.Add(cases.Key("rope.scaling.factor"), kInvalid,
            [key = cases.Key("rope.scaling.type")](TestModel& m) { m.keys[key] = "yarn"; },
            {"missing or 0"});
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
  const auto bools = [](const std::vector<uint64_t>& values) {
    auto array = std::make_shared<GgufArray>();
    array->type = GgufType::kBool;
    array->unsigned_values = values;
    return GgufEntry{GgufType::kArray, std::shared_ptr<const GgufArray>(array)};
  };
  with_pattern(window, bools({1, 1}), kUnimplemented, {"each of the 2 layers", "16 positions"});
  with_pattern(window, uint32_t{3}, kUnimplemented, {"each of the 2 layers"});
  with_pattern(pattern, bools({1, 0, 1}), kInvalid, {"3 bool", "2 layers"});
  with_pattern(pattern, std::vector<int32_t>{1, 0}, kInvalid, {"2 i32", "2 layers"});
  with_pattern(pattern, uint32_t{0}, kInvalid, {"is 0"});
  with_pattern(pattern, "every", kInvalid, {"an integer"});
}

// Scales that the architecture has, and those of others.
void AddScales(const std::string& architecture, Cases& cases) {
  const struct {
    std::string name;
    std::vector<std::string> architectures;
  } scales[] = {{"embedding_scale", {"granite"}},
                {"residual_scale", {"granite"}},
                {"logit_scale", {"granite", "cohere2"}},
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
  } else {
    cases.Set("attention.temperature_scale", 0.1f, kUnimplemented, {"is 0.1"});
  }
  if (architecture == "gemma3") cases.AddNumber("rope.freq_base_swa");
  if (architecture == "cohere2" || architecture == "granite") {
    cases.Add(cases.Key("logit_scale"), kInvalid,
              [key = cases.Key("logit_scale")](TestModel& m) { m.keys.erase(key); }, {"missing"});
  }
}

bool IsFusedTensor(const std::string& name, const TestModel& model) {
  return name.ends_with("attn_qkv.weight") ||
         (name.ends_with("ffn_up.weight") && !model.tensors.contains("blk.0.ffn_gate.weight"));
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
    if (tensor.type != TensorType::kF32) continue;
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
  surplus("blk.0.attn_sinks.weight", {"no part", "2 layers"});
  surplus("blk.2.attn_norm.weight", {"no part", "2 layers"});
  surplus("cls.output.weight", {"no part"});
  surplus("blk.1.ffn_down.scale", {"NVFP4"});
  surplus("blk.1.ffn_down.input_scale", {"NVFP4"});
  if (architecture != "phi3") surplus("rope_factors_other.weight", {"scales RoPE"});
  // A bias in one layer alone.
  cases.Add("blk.0.attn_output.bias", kInvalid,
            [](TestModel& m) { m.AddVector("blk.1.attn_output.bias", 64); },
            {"missing", "layer 1 has it"});
  // The same rows twice.
  const auto matrix = [](uint64_t rows) {
    return TestModel::Tensor{TensorType::kQ8_0, {64, rows}, {}};
  };
  cases.Add("blk.1.attn_q.weight", kInvalid,
            [matrix](TestModel& m) {
              m.tensors["blk.1.attn_q.weight"] = matrix(64);
              m.tensors["blk.1.attn_qkv.weight"] = matrix(128);
              if (!m.tensors.contains("blk.0.attn_q.weight")) return;
              m.tensors["blk.1.attn_k.weight"] = matrix(32);
            },
            {"blk.1.attn_qkv.weight", "same rows"});
  cases.Add("blk.0.attn_k.bias", kInvalid,
            [](TestModel& m) {
              for (const std::string layer : {"blk.0.", "blk.1."}) {
                m.tensors.erase(layer + "attn_q.bias");
                m.AddVector(layer + "attn_k.bias", 32);
                m.AddVector(layer + "attn_qkv.bias", 128);
              }
            },
            {"blk.0.attn_qkv.bias", "same rows"});
  // A fused tensor of another size.
  cases.Add("blk.0.attn_qkv.weight", kInvalid,
            [matrix](TestModel& m) {
              for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
                m.tensors.erase(absl::StrCat("blk.0.", name, ".weight"));
              }
              m.tensors["blk.0.attn_qkv.weight"] = matrix(96);
            },
            {"[64, 96]", "[64, 128]"});
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
  } else {
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
  if (architecture == "llama" || architecture == "granite") {
    factor("rope_freqs.weight");
    cases.Add(cases.Key("rope.scaling.factor"), kUnimplemented,
              [key = cases.Key("rope.scaling.factor")](TestModel& m) {
                m.AddVector("rope_freqs.weight", 8);
                m.keys[key] = 4.0f;
              },
              {"is 4", "as a tensor"});
    return;
  }
  if (architecture == "mistral3") return;
  cases.Add("rope_freqs.weight", kUnimplemented,
            [](TestModel& m) { m.AddVector("rope_freqs.weight", 8); }, {"scales RoPE"});
}

std::vector<Malformed> AllMalformed() {
  std::vector<Malformed> all;
  for (const Architecture* row : AllArchitectures()) {
    const std::string architecture(row->name);
    Cases cases(architecture, all);
    AddKeys(architecture, cases);
    if (architecture != "phi3" && architecture != "mistral3") AddScaling(cases);
    AddWindows(architecture, cases);
    AddScales(architecture, cases);
    AddTensors(architecture, cases);
    AddFactors(architecture, cases);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, MalformedModelTest, ::testing::ValuesIn(AllMalformed()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace orcd
