// The rules that follow from a family's files, and the defaults of its keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/model/architectures.h"
#include "testing/architecture_models.h"
#include "testing/test_name.h"

namespace orcd {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr RopeKind kNone = RopeKind::kNone;
constexpr RopeKind kNorm = RopeKind::kNorm;

using NewKeys = std::map<std::string, TestModel::Value>;

TestModel With(const std::string& architecture, const NewKeys& keys) {
  TestModel model = TinyModelOf(architecture);
  for (const auto& [name, value] : keys) model.keys[absl::StrCat(architecture, ".", name)] = value;
  return model;
}

// The spec alone: the tensors need not fit.
absl::StatusOr<ModelSpec> TrySpec(const TestModel& model) {
  TempDir dir;
  model.Write(dir.File("model.gguf"));
  ORCD_ASSIGN_OR_RETURN(const auto gguf, GgufReader::Open(dir.File("model.gguf")));
  return ReadModelSpec(*gguf);
}

ModelSpec Spec(const TestModel& model) {
  const auto spec = TrySpec(model);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : ModelSpec();
}

ModelSpec Spec(const std::string& architecture, const NewKeys& keys = {}) {
  return Spec(With(architecture, keys));
}

TestModel Without(const std::string& architecture, const std::vector<std::string>& names) {
  TestModel model = TinyModelOf(architecture);
  for (const std::string& name : names) model.keys.erase(absl::StrCat(architecture, ".", name));
  return model;
}

std::vector<int> Windows(const ModelSpec& spec) {
  std::vector<int> windows;
  for (const LayerSpec& layer : spec.layers) windows.push_back(layer.window);
  return windows;
}

std::vector<float> Bases(const ModelSpec& spec) {
  std::vector<float> bases;
  for (const LayerSpec& layer : spec.layers) bases.push_back(layer.rope.base);
  return bases;
}

std::vector<RopeKind> Kinds(const ModelSpec& spec) {
  std::vector<RopeKind> kinds;
  for (const LayerSpec& layer : spec.layers) kinds.push_back(layer.rope.kind);
  return kinds;
}

// A bool array, which GgufWriter::Set takes.
GgufEntry Bools(const std::vector<uint64_t>& values) {
  auto array = std::make_shared<GgufArray>();
  array->type = GgufType::kBool;
  array->unsigned_values = values;
  return {GgufType::kArray, std::shared_ptr<const GgufArray>(array)};
}

class EveryArchitectureTest : public ::testing::TestWithParam<const Architecture*> {
 protected:
  std::string name() const { return std::string(GetParam()->name); }
};

INSTANTIATE_TEST_SUITE_P(All, EveryArchitectureTest, ::testing::ValuesIn(AllArchitectures()),
                         [](const auto& info) { return TestNameOf(info.param->name); });

TEST_P(EveryArchitectureTest, ReadsItsTinyFile) {
  TempDir dir;
  const auto gguf = TinyModelOf(name()).WriteAndOpen(dir.File("model.gguf"));
  const auto spec = ReadModelSpec(*gguf);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->architecture, name());
  EXPECT_EQ(spec->num_layers(), 2);
  EXPECT_EQ(spec->hidden, 64);
  EXPECT_EQ(spec->vocab, 260);
  EXPECT_EQ(spec->layers[0].heads, 4);
  EXPECT_EQ(spec->layers[0].kv_heads, 2);
  EXPECT_EQ(spec->layers[0].head_dim, 16);
  for (const LayerSpec& layer : spec->layers) {
    EXPECT_EQ(layer.ffn, layer.experts.count == 0 ? 256 : 0);
  }
  const auto weights = ModelWeights::FromGguf(*gguf, *spec);
  ASSERT_TRUE(weights.ok()) << weights.status();
}

// Backends rely on it.
TEST_P(EveryArchitectureTest, WeightsAreThoseThatTheSpecCallsFor) {
  TempDir dir;
  const auto gguf = TinyModelOf(name()).WriteAndOpen(dir.File("model.gguf"));
  const auto spec = ReadModelSpec(*gguf);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto weights = ModelWeights::FromGguf(*gguf, *spec);
  ASSERT_TRUE(weights.ok()) << weights.status();
  for (size_t i = 0; i < weights->layers.size(); ++i) {
    const LayerSpec& layer = spec->layers[i];
    const LayerWeights& w = weights->layers[i];
    EXPECT_EQ(w.attn_norm.empty(), layer.form == LayerForm::kPostNorm);
    EXPECT_EQ(w.ffn_norm.empty(), layer.form != LayerForm::kPreNorm);
    EXPECT_EQ(w.attn_post_norm.empty(), !layer.post_norms);
    EXPECT_EQ(w.ffn_post_norm.empty(), !layer.post_norms);
    const bool has_qk_norms = layer.qk_norm != QkNorm::kNone && !layer.recurrent();
    EXPECT_EQ(w.attn_q_norm.size(), !has_qk_norms                          ? 0u
                                    : layer.qk_norm == QkNorm::kProjection ? 64u
                                                                           : 16u);
    EXPECT_EQ(w.attn_k_norm.size(), !has_qk_norms                          ? 0u
                                    : layer.qk_norm == QkNorm::kProjection ? 32u
                                                                           : 16u);
    EXPECT_EQ(w.attn_q.rows, layer.recurrent() ? 0 : layer.q_rows());
    EXPECT_EQ(w.delta.conv.rows, layer.delta.channels());
    EXPECT_EQ(w.delta.output.cols, layer.delta.value_size());
    EXPECT_EQ(w.attn_sinks.size(), layer.sinks ? 4u : 0u);
    const ExpertsSpec& experts = layer.experts;
    EXPECT_EQ(w.ffn_gate.data == nullptr, experts.count > 0);
    EXPECT_EQ(w.ffn_down.data == nullptr, experts.count > 0);
    EXPECT_EQ(w.experts.router.rows, experts.count);
    for (const auto* matrices : {&w.experts.gate, &w.experts.up, &w.experts.down}) {
      EXPECT_EQ(matrices->size(), static_cast<size_t>(experts.count));
    }
    EXPECT_EQ(w.experts.shared_gate.rows, experts.shared_ffn);
    EXPECT_EQ(w.experts.shared_router.empty(), !experts.shared_gated);
  }
}

TEST_P(EveryArchitectureTest, HasTextForDocuments) {
  EXPECT_NE(GetParam()->family, "");
  EXPECT_NE(GetParam()->models, "");
  EXPECT_NE(GetParam()->status, "");
}

// A worker that is to be told of a model it cannot run names those that it runs.
TEST(AllArchitecturesTest, AreInOrderOfName) {
  std::vector<std::string_view> names;
  for (const Architecture* row : AllArchitectures()) names.push_back(row->name);
  EXPECT_TRUE(std::ranges::is_sorted(names));
  EXPECT_EQ(names.size(), 22u);
}

TEST(RopePairsTest, AreThoseOfTheFamily) {
  const std::map<std::string, RopeKind> kinds = {
      {"cohere2", RopeKind::kNorm},    {"gemma2", RopeKind::kNeox},
      {"gemma3", RopeKind::kNeox},     {"glm4", RopeKind::kNorm},
      {"granite", RopeKind::kNorm},    {"llama", RopeKind::kNorm},
      {"mistral3", RopeKind::kNorm},   {"olmo2", RopeKind::kNeox},
      {"phi3", RopeKind::kNeox},       {"qwen2", RopeKind::kNeox},
      {"qwen3", RopeKind::kNeox},      {"qwen3vl", RopeKind::kNeox},
      {"seed_oss", RopeKind::kNeox},   {"smollm3", RopeKind::kNorm},
      {"glm4moe", RopeKind::kNeox},    {"gpt-oss", RopeKind::kNeox},
      {"qwen2moe", RopeKind::kNeox},   {"qwen3moe", RopeKind::kNeox},
      {"granitemoe", RopeKind::kNorm}, {"qwen35", RopeKind::kNeox},
      {"qwen35moe", RopeKind::kNeox},  {"qwen3next", RopeKind::kNeox}};
  for (const Architecture* row : AllArchitectures()) {
    EXPECT_EQ(Spec(std::string(row->name)).layers[0].rope.kind, kinds.at(std::string(row->name)))
        << row->name;
  }
}

TEST(LlamaTest, RopeBaseHasADefault) {
  EXPECT_THAT(Bases(Spec(Without("llama", {"rope.freq_base"}))), Each(10000));
}

TEST(LlamaTest, FactorsOfRopeAreToldByTheirTensor) {
  EXPECT_EQ(Spec("llama").layers[1].rope.scaling, RopeScaling::kNone);
  TestModel model = TinyModelOf("llama");
  model.AddVector("rope_freqs.weight", 8);
  EXPECT_EQ(Spec(model).layers[1].rope.scaling, RopeScaling::kFactors);
}

TEST(LlamaTest, ScoresHaveTheFilesScale) {
  EXPECT_FLOAT_EQ(Spec("llama").layers[0].score_scale, 0.25f);
  EXPECT_FLOAT_EQ(Spec("llama", {{"attention.scale", 0.0f}}).layers[0].score_scale, 0.25f);
  EXPECT_FLOAT_EQ(Spec("llama", {{"attention.scale", 0.1f}}).layers[0].score_scale, 0.1f);
}

TEST(RopeScalingTest, FactorWithoutATypeIsLinear) {
  for (const char* name : {"rope.scaling.factor", "rope.scale_linear"}) {
    const RopeSpec rope = Spec("llama", {{name, 4.0f}}).layers[1].rope;
    EXPECT_EQ(rope.scaling, RopeScaling::kLinear) << name;
    EXPECT_EQ(rope.factor, 4) << name;
    EXPECT_EQ(rope.magnitude, 1) << name;
  }
}

TEST(RopeScalingTest, OfNothing) {
  for (const NewKeys& keys :
       std::vector<NewKeys>{{{"rope.scaling.type", "none"}, {"rope.scaling.factor", 4.0f}},
                            {{"rope.scaling.type", "linear"}},
                            {{"rope.scaling.type", "linear"}, {"rope.scaling.factor", 1.0f}},
                            {{"rope.scaling.factor", 0.0f}},
                            {{"rope.scale_linear", 1.0f}}}) {
    EXPECT_EQ(Spec("qwen3", keys).layers[0].rope, Spec("qwen3").layers[0].rope);
  }
}

TEST(RopeScalingTest, YarnReadsItsKeys) {
  const NewKeys keys = {{"rope.scaling.type", "yarn"}, {"rope.scaling.factor", 4.0f}};
  RopeSpec wanted = {.kind = RopeKind::kNeox,
                     .dims = 16,
                     .base = 1e6f,
                     .scaling = RopeScaling::kYarn,
                     .factor = 4,
                     // The model's context.
                     .original_context = 512,
                     .magnitude = 1.1386294f};
  EXPECT_EQ(Spec("qwen3", keys).layers[0].rope, wanted);

  NewKeys all = keys;
  all["rope.scaling.original_context_length"] = uint32_t{128};
  all["rope.scaling.yarn_beta_fast"] = 16.0f;
  all["rope.scaling.yarn_beta_slow"] = 2.0f;
  all["rope.scaling.yarn_ext_factor"] = 1.0f;
  all["rope.scaling.yarn_log_multiplier"] = 0.5f;
  all["rope.scaling.attn_factor"] = 3.0f;
  const RopeSpec rope = Spec("qwen3", all).layers[0].rope;
  EXPECT_EQ(rope.original_context, 128);
  EXPECT_EQ(rope.beta_fast, 16);
  EXPECT_EQ(rope.beta_slow, 2);
  EXPECT_FLOAT_EQ(rope.magnitude,
                  static_cast<float>(3 * (1 + 0.1 * std::log(4)) / (1 + 0.05 * std::log(4))));
}

TEST(RopeScalingTest, AnOverrideReplacesNone) {
  TempDir dir;
  const auto gguf = TinyModelOf("qwen3").WriteAndOpen(dir.File("model.gguf"));
  const auto spec = ReadModelSpec(*gguf, RopeOverride{.factor = 4});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->context_length, 2048);
  EXPECT_EQ(spec->layers[0].rope.scaling, RopeScaling::kYarn);
}

TEST(RopeTest, PartOfAHeadMayRotate) {
  EXPECT_EQ(Spec("llama", {{"rope.dimension_count", uint32_t{8}}}).layers[0].rope.dims, 8);
}

TEST(Mistral3Test, YarnsMagnitudeIsOneAndQueriesGrow) {
  const ModelSpec spec = Spec("mistral3");
  EXPECT_EQ(spec.layers[0].rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(spec.layers[0].rope.original_context, 32);
  EXPECT_EQ(spec.layers[0].rope.magnitude, 1);
  EXPECT_EQ(spec.layers[1].temperature, 0.1f);
  EXPECT_EQ(spec.layers[1].temperature_length, 32);
  // Without the multiplier, the magnitude is YaRN's own.
  EXPECT_FLOAT_EQ(
      Spec(Without("mistral3", {"rope.scaling.yarn_log_multiplier"})).layers[0].rope.magnitude,
      1.2772589f);
  EXPECT_EQ(Spec(Without("mistral3", {"attention.temperature_scale"})).layers[0].temperature, 0);
}

TEST(Gemma2Test, SoftcapsWindowsAndScales) {
  const ModelSpec spec = Spec("gemma2");
  EXPECT_EQ(spec.embedding_scale, 8);
  EXPECT_EQ(spec.logit_softcap, 30);
  EXPECT_THAT(Windows(spec), ElementsAre(16, 0));
  for (const LayerSpec& layer : spec.layers) {
    EXPECT_EQ(layer.score_softcap, 50);
    EXPECT_EQ(layer.score_scale, 0.25f);
    EXPECT_TRUE(layer.post_norms);
    EXPECT_EQ(layer.form, LayerForm::kPreNorm);
    EXPECT_EQ(layer.activation, Activation::kGeluTanh);
    EXPECT_EQ(layer.qk_norm, QkNorm::kNone);
  }
}

TEST(Gemma2Test, KeysHaveDefaults) {
  TestModel model = Without(
      "gemma2", {"attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window"});
  model.keys["gemma2.context_length"] = uint32_t{8192};
  model.keys["gemma2.block_count"] = uint32_t{5};
  const ModelSpec spec = Spec(model);
  EXPECT_EQ(spec.logit_softcap, 30);
  EXPECT_EQ(spec.layers[0].score_softcap, 50);
  EXPECT_THAT(Windows(spec), ElementsAre(4096, 0, 4096, 0, 4096));
}

TEST(Gemma2Test, ScoresOfThe27bAreScaledByHiddenOverHeads) {
  const auto scale = [](uint32_t layers) {
    return Spec("gemma2", {{"block_count", layers},
                           {"attention.head_count", uint32_t{2}},
                           {"attention.key_length", uint32_t{16}}})
        .layers[0]
        .score_scale;
  };
  EXPECT_FLOAT_EQ(scale(45), 0.25f);
  EXPECT_FLOAT_EQ(scale(46), std::sqrt(2.0f / 64));
}

TEST(Gemma3Test, EverySixthLayerIsGlobal) {
  TestModel model = Without("gemma3", {"attention.sliding_window_pattern"});
  model.keys["gemma3.block_count"] = uint32_t{13};
  model.keys["gemma3.rope.scaling.type"] = "linear";
  model.keys["gemma3.rope.scaling.factor"] = 8.0f;
  const ModelSpec spec = Spec(model);
  EXPECT_THAT(Windows(spec), ElementsAre(16, 16, 16, 16, 16, 0, 16, 16, 16, 16, 16, 0, 16));
  // Layers with a window have a base of their own, and no scaling.
  EXPECT_EQ(spec.layers[4].rope, (RopeSpec{.kind = RopeKind::kNeox, .dims = 16, .base = 10000}));
  EXPECT_EQ(spec.layers[5].rope, (RopeSpec{.kind = RopeKind::kNeox,
                                           .dims = 16,
                                           .base = 1e6f,
                                           .scaling = RopeScaling::kLinear,
                                           .factor = 8}));
  EXPECT_EQ(spec.layers[5].qk_norm, QkNorm::kHead);
  EXPECT_EQ(spec.embedding_scale, 8);
  EXPECT_EQ(spec.layers[5].score_softcap, 0);
  EXPECT_EQ(spec.logit_softcap, 0);
}

TEST(Gemma3Test, KeysOfLocalLayers) {
  EXPECT_THAT(Bases(Spec("gemma3", {{"rope.freq_base_swa", 5000.0f}})), ElementsAre(5000, 1e6f));
  EXPECT_EQ(Spec("gemma3", {{"final_logit_softcapping", 30.0f}}).logit_softcap, 30);
  // Without a window, all layers are global.
  const ModelSpec whole = Spec(Without("gemma3", {"attention.sliding_window"}));
  EXPECT_THAT(Windows(whole), ElementsAre(0, 0));
  EXPECT_THAT(Bases(whole), Each(1e6f));
  // The pattern as a bool for each layer.
  EXPECT_THAT(Windows(Spec("gemma3", {{"attention.sliding_window_pattern", Bools({0, 1})}})),
              ElementsAre(0, 16));
}

TEST(Gemma3Test, AWindowAsLongAsTheContextIsNone) {
  const ModelSpec spec = Spec("gemma3", {{"attention.sliding_window", uint32_t{512}}});
  EXPECT_THAT(Windows(spec), ElementsAre(0, 0));
  // The layer stays local in all else.
  EXPECT_THAT(Bases(spec), ElementsAre(10000, 1e6f));
  EXPECT_THAT(Windows(Spec("gemma3", {{"attention.sliding_window", uint32_t{511}}})),
              ElementsAre(511, 0));
}

// The longer context makes a window of what was none.
TEST(Gemma3Test, AnOverrideComesBeforeWindowsAreCompared) {
  TempDir dir;
  const auto gguf = With("gemma3", {{"attention.sliding_window", uint32_t{512}}})
                        .WriteAndOpen(dir.File("model.gguf"));
  const auto spec = ReadModelSpec(*gguf, RopeOverride{.factor = 2});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(Windows(*spec), ElementsAre(512, 0));
  EXPECT_EQ(spec->layers[0].rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(spec->layers[1].rope.scaling, RopeScaling::kYarn);
}

TEST(Gemma3Test, ScoresOfThe27bAreScaledByHiddenOverHeads) {
  const auto scale = [](uint32_t layers) {
    return Spec("gemma3", {{"block_count", layers},
                           {"attention.head_count", uint32_t{2}},
                           {"attention.key_length", uint32_t{16}}})
        .layers[0]
        .score_scale;
  };
  EXPECT_FLOAT_EQ(scale(48), 0.25f);
  EXPECT_FLOAT_EQ(scale(62), std::sqrt(2.0f / 64));
}

TEST(Phi3Test, HasNoWindowAndFactorsByContext) {
  const ModelSpec spec = Spec("phi3");
  EXPECT_THAT(Windows(spec), ElementsAre(0, 0));
  EXPECT_EQ(spec.layers[0].rope.scaling, RopeScaling::kLong);
  EXPECT_EQ(spec.layers[0].rope.original_context, 64);
  EXPECT_EQ(spec.layers[0].rope.magnitude, 1.19f);
}

TEST(Phi3Test, MayHaveNoFactors) {
  TestModel model = TinyModelOf("phi3");
  model.tensors.erase("rope_factors_short.weight");
  model.tensors.erase("rope_factors_long.weight");
  EXPECT_EQ(Spec(model).layers[0].rope.scaling, RopeScaling::kNone);
}

TEST(GraniteTest, HasFourScales) {
  const ModelSpec spec = Spec("granite");
  EXPECT_EQ(spec.embedding_scale, 12);
  EXPECT_EQ(spec.residual_scale, 0.22f);
  EXPECT_EQ(spec.logit_scale, 0.25f);
  EXPECT_EQ(spec.layers[0].score_scale, 0.05f);
}

TEST(GraniteTest, MayHaveNoRope) {
  const ModelSpec spec = Spec("granite", {{"rope.scaling.finetuned", false}});
  EXPECT_THAT(Kinds(spec), Each(RopeKind::kNone));
  EXPECT_THAT(Kinds(Spec("granite", {{"rope.scaling.finetuned", true}})), Each(RopeKind::kNorm));
}

TEST(Olmo2Test, NormsAreAfterAndOverTheProjection) {
  for (const LayerSpec& layer : Spec("olmo2").layers) {
    EXPECT_EQ(layer.form, LayerForm::kPostNorm);
    EXPECT_TRUE(layer.post_norms);
    EXPECT_EQ(layer.qk_norm, QkNorm::kProjection);
    EXPECT_EQ(layer.window, 0);
  }
}

TEST(Olmo2Test, Olmo3HasWindowsWithoutScaling) {
  const ModelSpec spec = Spec("olmo2", {{"block_count", uint32_t{5}},
                                        {"attention.sliding_window", uint32_t{32}},
                                        {"rope.scaling.type", "yarn"},
                                        {"rope.scaling.factor", 8.0f}});
  EXPECT_THAT(Windows(spec), ElementsAre(32, 32, 32, 0, 32));
  EXPECT_EQ(spec.layers[0].rope, (RopeSpec{.kind = RopeKind::kNeox, .dims = 16, .base = 1e6f}));
  EXPECT_EQ(spec.layers[3].rope.scaling, RopeScaling::kYarn);
  EXPECT_FLOAT_EQ(spec.layers[3].rope.magnitude, 1.2079442f);
}

TEST(Olmo2Test, TheFileMayHaveTheWholeMagnitude) {
  const ModelSpec spec = Spec("olmo2", {{"rope.scaling.type", "yarn"},
                                        {"rope.scaling.factor", 8.0f},
                                        {"rope.scaling.attn_factor", 1.5f}});
  EXPECT_EQ(spec.layers[1].rope.magnitude, 1.5f);
}

TEST(Glm4Test, NormsAreBeforeAndAfterAndAPartRotates) {
  const ModelSpec spec = Spec("glm4");
  EXPECT_EQ(spec.layers[0].rope.dims, 8);
  EXPECT_EQ(spec.layers[0].form, LayerForm::kPreNorm);
  EXPECT_TRUE(spec.layers[0].post_norms);
}

TEST(Glm4Test, OfAModelWithAxesOtherPairsRotate) {
  EXPECT_THAT(Kinds(Spec("glm4", {{"rope.dimension_sections", std::vector<int32_t>{2, 1, 1, 0}}})),
              Each(RopeKind::kNeox));
  EXPECT_THAT(Kinds(Spec("glm4", {{"rope.dimension_sections", std::vector<int32_t>{0, 0, 0, 0}}})),
              Each(RopeKind::kNorm));
}

TEST(SeedOssTest, TheFfnsNormHasAnotherName) {
  TempDir dir;
  const auto gguf = TinyModelOf("seed_oss").WriteAndOpen(dir.File("model.gguf"));
  const auto weights = ModelWeights::FromGguf(*gguf, *ReadModelSpec(*gguf));
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(static_cast<const void*>(weights->layers[1].ffn_norm.data()),
            gguf->FindTensor("blk.1.post_attention_norm.weight")->data.data());
  EXPECT_TRUE(weights->layers[1].attn_post_norm.empty());
  EXPECT_EQ(weights->layers[1].attn_q_bias.size(), 64u);
}

TEST(SmolLm3Test, EveryFourthLayerHasNoRope) {
  EXPECT_THAT(Kinds(Spec("smollm3", {{"block_count", uint32_t{9}}})),
              ElementsAre(kNorm, kNorm, kNorm, kNone, kNorm, kNorm, kNorm, kNone, kNorm));
}

TEST(Cohere2Test, LocalLayersAloneHaveRope) {
  TestModel model = Without("cohere2", {"attention.sliding_window_pattern"});
  model.keys["cohere2.block_count"] = uint32_t{5};
  model.keys["cohere2.rope.scaling.type"] = "none";
  const ModelSpec spec = Spec(model);
  EXPECT_THAT(Windows(spec), ElementsAre(16, 16, 16, 0, 16));
  EXPECT_THAT(Kinds(spec), ElementsAre(kNorm, kNorm, kNorm, kNone, kNorm));
  EXPECT_EQ(spec.norm, NormKind::kLayer);
  EXPECT_EQ(spec.norm_eps, 1e-5f);
  EXPECT_EQ(spec.logit_scale, 0.25f);
  EXPECT_EQ(spec.layers[3].form, LayerForm::kParallel);
}

// Shapes as an array with a number for each layer, as some converters write them.
TEST(LayersTest, ArraysOfOneNumberAreFine) {
  const ModelSpec spec = Spec("llama", {{"attention.head_count", std::vector<int32_t>{8, 8}},
                                        {"attention.head_count_kv", std::vector<int32_t>{4, 4}},
                                        {"feed_forward_length", std::vector<int32_t>{96, 96}}});
  EXPECT_EQ(spec.layers[1].heads, 8);
  EXPECT_EQ(spec.layers[1].kv_heads, 4);
  EXPECT_EQ(spec.layers[1].ffn, 96);
}

TEST(ProjectorTest, IsNoModel) {
  TestModel clip = TinyModelOf("qwen3vl");
  clip.keys["general.architecture"] = "clip";
  TestModel mmproj = TinyModelOf("gemma3");
  mmproj.keys["general.type"] = "mmproj";
  for (const TestModel& model : {clip, mmproj}) {
    const absl::Status status = TrySpec(model).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr("vision projector"));
  }
}

}  // namespace
}  // namespace orcd
