// The families with gated delta nets: what their files say, and the forms in which files hold them.
#include "runtime/model/arch/delta_net.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/model/arch/open_model_for_test.h"
#include "runtime/model/architectures.h"
#include "testing/architecture_models.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;

struct HybridModel : OpenModel {
  using OpenModel::OpenModel;

  std::vector<bool> recurrent() const {
    std::vector<bool> layers;
    for (const LayerSpec& layer : spec.layers) layers.push_back(layer.recurrent());
    return layers;
  }
};

GgufEntry RecurrentLayers(const std::vector<uint64_t>& layers) {
  auto array = std::make_shared<GgufArray>();
  array->type = GgufType::kBool;
  array->unsigned_values = layers;
  return {GgufType::kArray, std::shared_ptr<const GgufArray>(array)};
}

TEST(DeltaNetTest, OfEachFamily) {
  for (const std::string name : {"qwen35", "qwen35moe", "qwen3next"}) {
    const HybridModel model(TinyModelOf(name));
    ASSERT_THAT(model.recurrent(), ElementsAre(true, false)) << name;
    DeltaNetSpec delta = {.key_heads = 2, .value_heads = 4, .head_dim = 16, .conv = 4};
    if (name == "qwen3next") delta.pairing = HeadPairing::kDivision;
    EXPECT_EQ(model.spec.layers[0].delta, delta) << name;
    EXPECT_EQ(model.spec.layers[1].delta, DeltaNetSpec()) << name;
    EXPECT_TRUE(model.spec.recurrent());
    // Three inputs of the convolution and four matrices.
    EXPECT_EQ(model.spec.state_floats(), 3 * 128 + 4 * 16 * 16);
    const LayerSpec& attention = model.spec.layers[1];
    EXPECT_TRUE(attention.gated_attention);
    EXPECT_EQ(attention.qk_norm, QkNorm::kHead);
    EXPECT_EQ(attention.q_rows(), 128);
    EXPECT_EQ(attention.experts.count, name == "qwen35" ? 0 : 4);
    EXPECT_EQ(attention.experts.shared_gated, name != "qwen35");
    const DeltaNetWeights& w = model.weights.layers[0].delta;
    EXPECT_EQ(w.qkv.data, model.data("blk.0.attn_qkv.weight"));
    EXPECT_EQ(w.gate.data, model.data("blk.0.attn_gate.weight"));
    if (name == "qwen3next") {
      EXPECT_EQ(w.beta_alpha.data, model.data("blk.0.ssm_ba.weight"));
      EXPECT_EQ(w.beta.data, nullptr);
    } else {
      EXPECT_EQ(w.beta.data, model.data("blk.0.ssm_beta.weight"));
      EXPECT_EQ(w.alpha.data, model.data("blk.0.ssm_alpha.weight"));
      EXPECT_EQ(w.beta_alpha.data, nullptr);
    }
    EXPECT_EQ(w.conv.rows, 128);
    EXPECT_EQ(w.conv.cols, 4);
    EXPECT_EQ(w.a.size(), 4u);
    EXPECT_EQ(w.dt_bias.size(), 4u);
    EXPECT_EQ(w.norm.size(), 16u);
    EXPECT_EQ(w.output.data, model.data("blk.0.ssm_out.weight"));
    EXPECT_EQ(model.weights.layers[1].attn_q.rows, 128);
    // Every layer has the FFN's norm by this name.
    EXPECT_EQ(model.weights.layers[0].ffn_norm.size(), 64u);
    EXPECT_TRUE(model.weights.layers[0].attn_post_norm.empty());
  }
}

TEST(DeltaNetTest, ValueHeadsBelongToKeyHeads) {
  DeltaNetSpec delta = {.key_heads = 2, .value_heads = 6, .head_dim = 16, .conv = 4};
  std::vector<int> modulo;
  for (int head = 0; head < 6; ++head) modulo.push_back(delta.key_head_of(head));
  EXPECT_THAT(modulo, ElementsAre(0, 1, 0, 1, 0, 1));
  delta.pairing = HeadPairing::kDivision;
  std::vector<int> division;
  for (int head = 0; head < 6; ++head) division.push_back(delta.key_head_of(head));
  EXPECT_THAT(division, ElementsAre(0, 0, 0, 1, 1, 1));
}

TEST(DeltaNetTest, KeysAndValuesAreOfOtherLayersAlone) {
  const HybridModel model(TinyModelOf("qwen35"));
  const KvLayout layout(model.spec.layers);
  EXPECT_EQ(layout.layers[0].kv_heads, 0);
  EXPECT_EQ(layout.layers[1].offset, 0);
  EXPECT_EQ(layout.whole_size, 2 * 2 * 16);
  EXPECT_EQ(layout.window_size, 0);
}

TEST(DeltaNetTest, TheArrayOfLayersDecides) {
  TestModel model = TinyModelOf("qwen35");
  model.keys["qwen35.attention.recurrent_layers"] = RecurrentLayers({1, 0});
  model.keys["qwen35.full_attention_interval"] = uint32_t{1};
  EXPECT_THAT(HybridModel(model).recurrent(), ElementsAre(true, false));
}

TEST(DeltaNetTest, EveryFourthLayerHasAttentionIfTheFileDoesNotSay) {
  TestModel model = TinyModelOf("qwen35");
  model.keys.erase("qwen35.full_attention_interval");
  model.keys["qwen35.block_count"] = uint32_t{8};
  TempDir dir;
  const auto gguf = model.WriteAndOpen(dir.File("model.gguf"));
  const auto spec = ReadModelSpec(*gguf);
  ASSERT_TRUE(spec.ok()) << spec.status();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(spec->layers[i].recurrent(), i % 4 != 3) << i;
}

// The array has an entry for each block of the file, and the block that predicts has attention,
// whatever its place says.
TEST(DeltaNetTest, LayersThatPredictFurtherTokensAreLeftOut) {
  for (const bool array : {false, true}) {
    TestModel model = TinyModelOf("qwen35moe");
    model.keys["qwen35moe.block_count"] = uint32_t{3};
    model.keys["qwen35moe.nextn_predict_layers"] = uint32_t{1};
    if (array) model.keys["qwen35moe.attention.recurrent_layers"] = RecurrentLayers({1, 0, 0});
    model.AddVector("blk.2.attn_norm.weight", 64);
    model.AddVector("blk.2.nextn.hnorm.weight", 64);
    const HybridModel open(model);
    EXPECT_EQ(open.spec.skipped_layers, 1);
    EXPECT_THAT(open.recurrent(), ElementsAre(true, false));
  }
}

TEST(DeltaNetTest, OldFilesHoldAllInputsInOneTensor) {
  TestModel model = TinyModelOf("qwen3next");
  model.tensors.erase("blk.0.attn_qkv.weight");
  model.tensors.erase("blk.0.attn_gate.weight");
  model.tensors["blk.0.ssm_in.weight"] = {TensorType::kQ8_0, {64, 192}, {}};
  const HybridModel open(model);
  const DeltaNetWeights& w = open.weights.layers[0].delta;
  EXPECT_EQ(w.qkv_gate.data, open.data("blk.0.ssm_in.weight"));
  EXPECT_EQ(w.qkv_gate.rows, 192);
  EXPECT_EQ(w.qkv.data, nullptr);
  EXPECT_EQ(w.gate.data, nullptr);
}

TEST(DeltaNetTest, TheConvolutionMayBeOfAnyType) {
  TestModel model = TinyModelOf("qwen35");
  model.tensors["blk.0.ssm_conv1d.weight"].type = TensorType::kBF16;
  const HybridModel open(model);
  EXPECT_EQ(open.weights.layers[0].delta.conv.type, TensorType::kBF16);
}

}  // namespace
}  // namespace orcd
