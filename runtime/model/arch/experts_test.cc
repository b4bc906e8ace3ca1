// The families with experts: what their files say, and the forms in which files hold experts.
#include "runtime/model/arch/experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/model/arch/open_model_for_test.h"
#include "runtime/model/architectures.h"
#include "testing/architecture_models.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TestModel WithKeys(const std::string& architecture,
                   const std::map<std::string, TestModel::Value>& keys) {
  TestModel model = TinyModelOf(architecture);
  for (const auto& [name, value] : keys) model.keys[absl::StrCat(architecture, ".", name)] = value;
  return model;
}

// The spec of the last layer's experts; the tensors need not fit.
ExpertsSpec ExpertsOf(const TestModel& model) {
  TempDir dir;
  const auto gguf = model.WriteAndOpen(dir.File("model.gguf"));
  const auto spec = ReadModelSpec(*gguf);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? spec->layers.back().experts : ExpertsSpec();
}

TEST(ExpertsTest, OfEachFamily) {
  const ExpertsSpec mixtral = {.count = 4, .used = 2, .ffn = 256, .normalise = true};
  EXPECT_EQ(ExpertsOf(TinyMixtral()), mixtral);
  const ExpertsSpec qwen2 = {
      .count = 4, .used = 2, .ffn = 32, .shared_ffn = 96, .shared_gated = true};
  EXPECT_EQ(ExpertsOf(TinyModelOf("qwen2moe")), qwen2);
  const ExpertsSpec qwen3 = {.count = 4, .used = 2, .ffn = 32, .normalise = true};
  EXPECT_EQ(ExpertsOf(TinyModelOf("qwen3moe")), qwen3);
  const ExpertsSpec granite = {
      .count = 4, .used = 2, .ffn = 256, .shared_ffn = 64, .normalise = true};
  EXPECT_EQ(ExpertsOf(TinyModelOf("granitemoe")), granite);
  const ExpertsSpec glm = {.count = 4,
                           .used = 2,
                           .ffn = 32,
                           .shared_ffn = 64,
                           .score = RouterScore::kSigmoid,
                           .normalise = true,
                           .scale = 1.5f};
  EXPECT_EQ(ExpertsOf(TinyModelOf("glm4moe")), glm);
  const ExpertsSpec gpt_oss = {
      .count = 4, .used = 2, .ffn = 32, .score = RouterScore::kSoftmaxOfChosen};
  EXPECT_EQ(ExpertsOf(TinyModelOf("gpt-oss")), gpt_oss);
  EXPECT_EQ(ExpertsOf(TinyModelOf("llama")), ExpertsSpec());
}

TEST(ExpertsTest, WidthsMayBeLeftOut) {
  TestModel shared = TinyModelOf("qwen2moe");
  shared.keys.erase("qwen2moe.expert_shared_feed_forward_length");
  EXPECT_EQ(ExpertsOf(shared).shared_ffn, 256) << "the width of the FFN";
  TestModel none = TinyModelOf("granitemoe");
  none.keys.erase("granitemoe.expert_shared_feed_forward_length");
  EXPECT_EQ(ExpertsOf(none).shared_ffn, 0);
  TestModel glm = TinyModelOf("glm4moe");
  glm.keys.erase("glm4moe.expert_shared_count");
  EXPECT_EQ(ExpertsOf(glm).shared_ffn, 0);
}

TEST(ExpertsTest, AZeroCountIsNone) {
  TestModel model = TinyModelOf("llama");
  model.keys["llama.expert_count"] = uint32_t{0};
  const OpenModel open(model);
  EXPECT_EQ(open.spec.layers[1].experts, ExpertsSpec());
  EXPECT_EQ(open.spec.layers[1].ffn, 256);
}

TEST(ExpertsTest, ScalesOfZeroAndOneAreNone) {
  for (const float scale : {0.0f, 1.0f}) {
    EXPECT_EQ(ExpertsOf(WithKeys("qwen3moe", {{"expert_weights_scale", scale}})).scale, 1);
  }
  EXPECT_EQ(ExpertsOf(WithKeys("qwen3moe", {{"expert_weights_scale", 2.5f}})).scale, 2.5f);
}

TEST(ExpertsTest, KeysThatSayWhatTheFamilyIs) {
  const ExpertsSpec plain = ExpertsOf(TinyModelOf("qwen3moe"));
  EXPECT_EQ(ExpertsOf(WithKeys("qwen3moe", {{"expert_weights_norm", true},
                                            {"expert_gating_func", uint32_t{1}},
                                            {"expert_group_count", uint32_t{1}},
                                            {"expert_group_used_count", uint32_t{1}}})),
            plain);
  EXPECT_EQ(ExpertsOf(WithKeys("qwen3moe", {{"expert_gating_func", uint32_t{0}}})), plain);
  EXPECT_FALSE(ExpertsOf(WithKeys("qwen2moe", {{"expert_weights_norm", false}})).normalise);
  EXPECT_EQ(ExpertsOf(WithKeys("gpt-oss", {{"expert_gating_func", uint32_t{3}}})).score,
            RouterScore::kSoftmaxOfChosen);
}

TEST(ExpertsTest, OfGlmTheFileDecides) {
  const auto of = [](const std::map<std::string, TestModel::Value>& keys) {
    return ExpertsOf(WithKeys("glm4moe", keys));
  };
  EXPECT_EQ(of({{"expert_gating_func", uint32_t{1}}}).score, RouterScore::kSoftmax);
  EXPECT_EQ(of({{"expert_gating_func", uint32_t{0}}}).score, RouterScore::kSigmoid);
  EXPECT_EQ(of({{"expert_gating_func", uint32_t{3}}}).score, RouterScore::kSoftmaxOfChosen);
  EXPECT_FALSE(of({{"expert_weights_norm", false}}).normalise);
  TestModel silent = TinyModelOf("glm4moe");
  silent.keys.erase("glm4moe.expert_weights_norm");
  EXPECT_FALSE(ExpertsOf(silent).normalise);
}

TEST(ExpertsTest, GroupsThatLeaveAChoice) {
  const auto of = [](uint32_t groups, uint32_t used) {
    return ExpertsOf(
        WithKeys("glm4moe", {{"expert_group_count", groups}, {"expert_group_used_count", used}}));
  };
  EXPECT_EQ(of(2, 1).groups, 2);
  EXPECT_EQ(of(2, 1).groups_used, 1);
  for (const uint32_t groups : {0, 1, 2}) {
    EXPECT_EQ(of(groups, groups).groups, 1) << groups;
    EXPECT_EQ(of(groups, groups).groups_used, 1) << groups;
  }
}

TEST(ExpertsTest, LeadingLayersOfGlmHaveNone) {
  const OpenModel glm(TinyModelOf("glm4moe"));
  EXPECT_EQ(glm.spec.layers[0].ffn, 256);
  EXPECT_EQ(glm.spec.layers[0].experts, ExpertsSpec());
  EXPECT_EQ(glm.spec.layers[1].ffn, 0);
  EXPECT_EQ(glm.weights.layers[0].ffn_up.data, glm.data("blk.0.ffn_up.weight"));
  EXPECT_TRUE(glm.weights.layers[0].experts.gate.empty());
  EXPECT_EQ(glm.spec.layers[0].rope.dims, 8);
  EXPECT_EQ(static_cast<const void*>(glm.weights.layers[1].experts.selection_bias.data()),
            glm.data("blk.1.exp_probs_b.bias"));
}

TEST(ExpertsTest, GlmHasHeadNormsIfItsFileDoes) {
  EXPECT_EQ(OpenModel(TinyModelOf("glm4moe")).spec.layers[1].qk_norm, QkNorm::kNone);
  TestModel model = TinyModelOf("glm4moe");
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    model.AddVector(layer + "attn_q_norm.weight", 16);
    model.AddVector(layer + "attn_k_norm.weight", 16);
  }
  const OpenModel open(model);
  EXPECT_EQ(open.spec.layers[1].qk_norm, QkNorm::kHead);
  EXPECT_EQ(open.weights.layers[1].attn_k_norm.size(), 16u);
}

TEST(ExpertsTest, LayersOfGlmThatPredictFurtherTokensAreLeftOut) {
  TestModel model = TinyModelOf("glm4moe");
  model.keys["glm4moe.block_count"] = uint32_t{4};
  model.keys["glm4moe.nextn_predict_layers"] = uint32_t{2};
  model.keys["glm4moe.attention.head_count_kv"] = std::vector<int32_t>{2, 2, 2, 2};
  model.AddVector("blk.2.attn_norm.weight", 64);
  model.AddVector("blk.3.nextn.enorm.weight", 7);
  const OpenModel open(model);
  EXPECT_EQ(open.spec.num_layers(), 2);
  EXPECT_EQ(open.spec.skipped_layers, 2);
  EXPECT_EQ(open.weights.layers.size(), 2u);

  model.AddVector("blk.4.attn_norm.weight", 64);
  TempDir dir;
  const auto gguf = model.WriteAndOpen(dir.File("model.gguf"));
  const absl::Status status = ModelWeights::FromGguf(*gguf, *ReadModelSpec(*gguf)).status();
  EXPECT_EQ(GetErrorDetails(status).subject, "blk.4.attn_norm.weight");
}

TEST(ExpertsTest, GptOssHasSinksWindowsAndAClamp) {
  const OpenModel open(WithKeys("gpt-oss", {{"rope.freq_base_swa", 5000.0f}}));
  std::vector<int> windows;
  std::vector<float> bases;
  for (const LayerSpec& layer : open.spec.layers) {
    windows.push_back(layer.window);
    bases.push_back(layer.rope.base);
    EXPECT_TRUE(layer.sinks);
    EXPECT_EQ(layer.activation, Activation::kClampedSwiglu);
    EXPECT_EQ(layer.rope.scaling, RopeScaling::kYarn);
    EXPECT_EQ(layer.rope.factor, 32);
    EXPECT_FALSE(layer.rope.whole_pairs);
    EXPECT_FLOAT_EQ(layer.rope.magnitude, 1.3465736f);
  }
  EXPECT_THAT(windows, ElementsAre(16, 0));
  EXPECT_THAT(bases, ElementsAre(5000, 1e6f));
  const LayerWeights& layer = open.weights.layers[1];
  EXPECT_EQ(layer.attn_sinks.size(), 4u);
  EXPECT_EQ(static_cast<const void*>(layer.ffn_norm.data()),
            open.data("blk.1.post_attention_norm.weight"));
  EXPECT_EQ(layer.experts.router_bias.size(), 4u);
  EXPECT_EQ(layer.experts.gate_bias.size(), 4u * 32);
  EXPECT_EQ(layer.experts.up_bias.size(), 4u * 32);
  EXPECT_EQ(layer.experts.down_bias.size(), 4u * 64);
  EXPECT_EQ(static_cast<const void*>(layer.experts.down_bias.data()),
            open.data("blk.1.ffn_down_exps.bias"));
}

TEST(ExpertsTest, ADenseFfnHasItsBiasesStill) {
  TestModel model = TinyModelOf("glm4moe");
  model.AddVector("blk.0.ffn_down.bias", 64);
  EXPECT_EQ(OpenModel(model).weights.layers[0].ffn_down_bias.size(), 64u);
}

// An expert's matrix is 32 rows of two blocks of 34 bytes; down has 64 rows of one.
TEST(ExpertTensorsTest, InOneTensor) {
  const OpenModel open(TinyModelOf("qwen3moe"));
  const ExpertWeights& experts = open.weights.layers[1].experts;
  EXPECT_EQ(experts.router.data, open.data("blk.1.ffn_gate_inp.weight"));
  EXPECT_EQ(experts.router.cols, 64);
  ASSERT_EQ(experts.up.size(), 4u);
  ASSERT_EQ(experts.down.size(), 4u);
  for (int e = 0; e < 4; ++e) {
    EXPECT_EQ(experts.up[e].data, open.data("blk.1.ffn_up_exps.weight") + e * 32 * 68) << e;
    EXPECT_EQ(experts.up[e].rows, 32);
    EXPECT_EQ(experts.up[e].cols, 64);
    EXPECT_EQ(experts.up[e].row_bytes, 68);
    EXPECT_EQ(experts.down[e].data, open.data("blk.1.ffn_down_exps.weight") + e * 64 * 34) << e;
    EXPECT_EQ(experts.down[e].rows, 64);
    EXPECT_EQ(experts.down[e].cols, 32);
  }
}

TEST(ExpertTensorsTest, GateAndUpFused) {
  TestModel model = TinyModelOf("qwen3moe");
  model.tensors.erase("blk.1.ffn_gate_exps.weight");
  model.tensors.erase("blk.1.ffn_up_exps.weight");
  model.tensors["blk.1.ffn_gate_up_exps.weight"] = {TensorType::kQ8_0, {64, 64, 4}, {}};
  const OpenModel open(model);
  const ExpertWeights& experts = open.weights.layers[1].experts;
  const std::byte* const fused = open.data("blk.1.ffn_gate_up_exps.weight");
  ASSERT_EQ(experts.gate.size(), 4u);
  ASSERT_EQ(experts.up.size(), 4u);
  for (int e = 0; e < 4; ++e) {
    EXPECT_EQ(experts.gate[e].data, fused + e * 64 * 68) << e;
    EXPECT_EQ(experts.gate[e].rows, 32);
    EXPECT_EQ(experts.up[e].data, fused + (e * 64 + 32) * 68) << e;
    EXPECT_EQ(experts.up[e].rows, 32);
  }
  // The other layer's are not fused.
  EXPECT_EQ(open.weights.layers[0].experts.up[0].data, open.data("blk.0.ffn_up_exps.weight"));
}

// A file of Mixtral from before experts shared a tensor, with another type for one of them.
TestModel OldMixtral() {
  TestModel model = TinyMixtral();
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    for (const std::string name : {"ffn_gate", "ffn_up", "ffn_down"}) {
      model.tensors.erase(layer + name + "_exps.weight");
      for (int e = 0; e < 4; ++e) {
        const std::vector<uint64_t> shape =
            name == "ffn_down" ? std::vector<uint64_t>{256, 64} : std::vector<uint64_t>{64, 256};
        model.tensors[absl::StrCat(layer, name, ".", e, ".weight")] = {
            e == 2 ? TensorType::kF16 : TensorType::kQ8_0, shape, {}};
      }
    }
  }
  return model;
}

TEST(ExpertTensorsTest, InATensorForEachExpert) {
  const OpenModel open(OldMixtral());
  const ExpertWeights& experts = open.weights.layers[1].experts;
  ASSERT_EQ(experts.gate.size(), 4u);
  ASSERT_EQ(experts.down.size(), 4u);
  for (int e = 0; e < 4; ++e) {
    const TensorType type = e == 2 ? TensorType::kF16 : TensorType::kQ8_0;
    EXPECT_EQ(experts.gate[e].data, open.data(absl::StrCat("blk.1.ffn_gate.", e, ".weight")));
    EXPECT_EQ(experts.gate[e].type, type);
    EXPECT_EQ(experts.down[e].data, open.data(absl::StrCat("blk.1.ffn_down.", e, ".weight")));
    EXPECT_EQ(experts.down[e].type, type);
    EXPECT_EQ(experts.down[e].rows, 64);
    EXPECT_EQ(experts.down[e].cols, 256);
  }
}

absl::Status RefusalOf(const TestModel& model) {
  TempDir dir;
  const auto gguf = model.WriteAndOpen(dir.File("model.gguf"));
  const auto spec = ReadModelSpec(*gguf);
  return spec.ok() ? ModelWeights::FromGguf(*gguf, *spec).status() : spec.status();
}

TEST(ExpertTensorsTest, ATensorForEachExpertIsMissingOrWrong) {
  TestModel missing = OldMixtral();
  missing.tensors.erase("blk.0.ffn_up.3.weight");
  absl::Status status = RefusalOf(missing);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(status).subject, "blk.0.ffn_up.3.weight");
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 of 4 experts"));

  TestModel more = OldMixtral();
  more.tensors["blk.1.ffn_up.4.weight"] = {TensorType::kQ8_0, {64, 256}, {}};
  EXPECT_EQ(GetErrorDetails(RefusalOf(more)).subject, "blk.1.ffn_up.4.weight");

  TestModel narrow = OldMixtral();
  narrow.tensors["blk.1.ffn_down.0.weight"].ne = {64, 64};
  status = RefusalOf(narrow);
  EXPECT_EQ(GetErrorDetails(status).subject, "blk.1.ffn_down.0.weight");
  EXPECT_THAT(std::string(status.message()), HasSubstr("[256, 64]"));

  // Both forms at once.
  TestModel twice = OldMixtral();
  twice.tensors["blk.0.ffn_up_exps.weight"] = {TensorType::kQ8_0, {64, 256, 4}, {}};
  EXPECT_EQ(GetErrorDetails(RefusalOf(twice)).subject, "blk.0.ffn_up.0.weight");
}

}  // namespace
}  // namespace orcd
