#include "runtime/model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/model/architectures.h"
#include "testing/architecture_models.h"
#include "testing/test_model.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

TEST(ModelWeightsTest, FindsEveryTensorByItsRole) {
  TempDir dir;
  const auto gguf = TestModel::Valid().WriteAndOpen(dir.File("model.gguf"));
  const auto spec = ReadModelSpec(*gguf);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto weights = ModelWeights::FromGguf(*gguf, *spec);
  ASSERT_TRUE(weights.ok()) << weights.status();

  const auto expect_matrix = [&](const Matrix& matrix, const std::string& name, int64_t rows,
                                 int64_t cols, TensorType type) {
    const TensorView& tensor = *gguf->FindTensor(name);
    EXPECT_EQ(matrix.data, tensor.data.data()) << name;
    EXPECT_EQ(matrix.rows, rows) << name;
    EXPECT_EQ(matrix.cols, cols) << name;
    EXPECT_EQ(matrix.type, type) << name;
    EXPECT_EQ(matrix.bytes(), static_cast<int64_t>(tensor.data.size())) << name;
    EXPECT_EQ(matrix.row(rows), tensor.data.data() + tensor.data.size()) << name;
  };
  const auto expect_vector = [&](const Vector& vector, const std::string& name, size_t size) {
    const TensorView& tensor = *gguf->FindTensor(name);
    EXPECT_EQ(static_cast<const void*>(vector.data()), tensor.data.data()) << name;
    EXPECT_EQ(vector.size(), size) << name;
    EXPECT_EQ(vector.back(), 1.0f) << name;
  };
  expect_matrix(weights->token_embd, "token_embd.weight", 260, 64, TensorType::kQ8_0);
  EXPECT_TRUE(weights->tied);
  expect_matrix(weights->output, "token_embd.weight", 260, 64, TensorType::kQ8_0);
  expect_vector(weights->output_norm, "output_norm.weight", 64);
  ASSERT_EQ(weights->layers.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const LayerWeights& layer = weights->layers[i];
    const std::string blk = "blk." + std::to_string(i) + ".";
    expect_vector(layer.attn_norm, blk + "attn_norm.weight", 64);
    expect_matrix(layer.attn_q, blk + "attn_q.weight", 64, 64, TensorType::kQ5_0);
    expect_matrix(layer.attn_k, blk + "attn_k.weight", 32, 64, TensorType::kQ5_0);
    expect_matrix(layer.attn_v, blk + "attn_v.weight", 32, 64, TensorType::kQ8_0);
    expect_vector(layer.attn_q_bias, blk + "attn_q.bias", 64);
    expect_vector(layer.attn_k_bias, blk + "attn_k.bias", 32);
    expect_vector(layer.attn_v_bias, blk + "attn_v.bias", 32);
    expect_matrix(layer.attn_output, blk + "attn_output.weight", 64, 64, TensorType::kQ5_0);
    expect_vector(layer.ffn_norm, blk + "ffn_norm.weight", 64);
    expect_matrix(layer.ffn_gate, blk + "ffn_gate.weight", 256, 64, TensorType::kQ5_0);
    expect_matrix(layer.ffn_up, blk + "ffn_up.weight", 256, 64, TensorType::kQ5_0);
    expect_matrix(layer.ffn_down, blk + "ffn_down.weight", 64, 256, TensorType::kQ4_K);
  }
}

TEST(ModelWeightsTest, AnUntiedHeadIsUsed) {
  TempDir dir;
  TestModel model = TestModel::Valid();
  model.tensors["output.weight"] = {TensorType::kF16, {64, 260}, {}};
  const auto gguf = model.WriteAndOpen(dir.File("model.gguf"));
  const auto spec = ReadModelSpec(*gguf);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto weights = ModelWeights::FromGguf(*gguf, *spec);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_FALSE(weights->tied);
  EXPECT_EQ(weights->output.type, TensorType::kF16);
  EXPECT_EQ(weights->output.data, gguf->FindTensor("output.weight")->data.data());
  EXPECT_EQ(weights->output.row_bytes, 128);
}

// Loads the model's weights, and keeps the file open.
struct Loaded {
  explicit Loaded(const TestModel& model) : gguf(model.WriteAndOpen(dir.File("model.gguf"))) {
    const auto spec = ReadModelSpec(*gguf);
    EXPECT_TRUE(spec.ok()) << spec.status();
    if (!spec.ok()) return;
    auto read = ModelWeights::FromGguf(*gguf, *spec);
    EXPECT_TRUE(read.ok()) << read.status();
    if (read.ok()) weights = *std::move(read);
  }
  const std::byte* data(const std::string& tensor) const {
    return gguf->FindTensor(tensor)->data.data();
  }

  TempDir dir;
  std::unique_ptr<GgufReader> gguf;
  ModelWeights weights;
};

TEST(ModelWeightsTest, FusedTensorsAreSplitByRows) {
  TestModel model = TestModel::Valid();
  for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
    model.tensors.erase(absl::StrCat("blk.1.", name, ".weight"));
    for (const char* layer : {"blk.0.", "blk.1."}) {
      model.tensors.erase(absl::StrCat(layer, name, ".bias"));
    }
  }
  model.tensors["blk.1.attn_qkv.weight"] = {TensorType::kQ5_0, {64, 128}, {}};
  model.AddVector("blk.0.attn_qkv.bias", 128);
  model.AddVector("blk.1.attn_qkv.bias", 128);
  const Loaded loaded(model);
  ASSERT_EQ(loaded.weights.layers.size(), 2u);
  const LayerWeights& layer = loaded.weights.layers[1];
  const std::byte* const qkv = loaded.data("blk.1.attn_qkv.weight");
  // 64 weights are two blocks of 22 bytes.
  EXPECT_EQ(layer.attn_q.data, qkv);
  EXPECT_EQ(layer.attn_q.rows, 64);
  EXPECT_EQ(layer.attn_k.data, qkv + 64 * 44);
  EXPECT_EQ(layer.attn_k.rows, 32);
  EXPECT_EQ(layer.attn_v.data, qkv + 96 * 44);
  EXPECT_EQ(layer.attn_v.rows, 32);
  EXPECT_EQ(layer.attn_v.row_bytes, 44);
  EXPECT_EQ(layer.attn_v.cols, 64);
  const void* const bias = loaded.data("blk.1.attn_qkv.bias");
  EXPECT_EQ(layer.attn_q_bias.data(), bias);
  EXPECT_EQ(layer.attn_q_bias.size(), 64u);
  EXPECT_EQ(layer.attn_k_bias.data(), layer.attn_q_bias.data() + 64);
  EXPECT_EQ(layer.attn_k_bias.size(), 32u);
  EXPECT_EQ(layer.attn_v_bias.data(), layer.attn_q_bias.data() + 96);
  EXPECT_EQ(layer.attn_v_bias.size(), 32u);
  // The other layer's matrices are not fused.
  EXPECT_EQ(loaded.weights.layers[0].attn_k.data, loaded.data("blk.0.attn_k.weight"));
}

TEST(ModelWeightsTest, TheGateIsTheFirstHalfOfAFusedFfn) {
  const Loaded fused(TinyModelOf("phi3"));
  ASSERT_EQ(fused.weights.layers.size(), 2u);
  const LayerWeights& layer = fused.weights.layers[1];
  EXPECT_EQ(layer.ffn_gate.data, fused.data("blk.1.ffn_up.weight"));
  EXPECT_EQ(layer.ffn_gate.rows, 256);
  EXPECT_EQ(layer.ffn_up.data, layer.ffn_gate.data + layer.ffn_gate.bytes());
  EXPECT_EQ(layer.ffn_up.rows, 256);
  EXPECT_EQ(layer.attn_v.data, layer.attn_q.data + layer.attn_q.bytes() + layer.attn_k.bytes());
  EXPECT_EQ(fused.weights.rope_factors_short.size(), 8u);
  EXPECT_EQ(fused.weights.rope_factors_long.size(), 8u);

  TestModel model = TinyModelOf("glm4");
  for (const std::string blk : {"blk.0.", "blk.1."}) {
    model.tensors[blk + "ffn_gate.weight"] = {TensorType::kQ8_0, {64, 256}, {}};
    model.tensors[blk + "ffn_up.weight"] = {TensorType::kQ8_0, {64, 256}, {}};
  }
  const Loaded split(model);
  ASSERT_EQ(split.weights.layers.size(), 2u);
  EXPECT_EQ(split.weights.layers[0].ffn_gate.data, split.data("blk.0.ffn_gate.weight"));
  EXPECT_EQ(split.weights.layers[0].ffn_up.data, split.data("blk.0.ffn_up.weight"));
}

TEST(ModelWeightsTest, AnyMatrixOfALayerMayHaveABias) {
  TestModel model = TinyModelOf("llama");
  const struct {
    std::string name;
    uint64_t size;
    Vector LayerWeights::*role;
  } biases[] = {{"attn_q", 64, &LayerWeights::attn_q_bias},
                {"attn_k", 32, &LayerWeights::attn_k_bias},
                {"attn_v", 32, &LayerWeights::attn_v_bias},
                {"attn_output", 64, &LayerWeights::attn_output_bias},
                {"ffn_gate", 256, &LayerWeights::ffn_gate_bias},
                {"ffn_up", 256, &LayerWeights::ffn_up_bias},
                {"ffn_down", 64, &LayerWeights::ffn_down_bias}};
  for (const auto& bias : biases) {
    for (const std::string blk : {"blk.0.", "blk.1."}) {
      model.AddVector(blk + bias.name + ".bias", bias.size);
    }
  }
  const Loaded loaded(model);
  ASSERT_EQ(loaded.weights.layers.size(), 2u);
  for (const auto& bias : biases) {
    const Vector& vector = loaded.weights.layers[1].*bias.role;
    EXPECT_EQ(vector.size(), bias.size) << bias.name;
    EXPECT_EQ(static_cast<const void*>(vector.data()), loaded.data("blk.1." + bias.name + ".bias"));
  }
}

TEST(ModelWeightsTest, FactorsAreAsManyAsTheRotatedPairs) {
  TestModel model = TinyModelOf("phi3");
  model.keys["phi3.rope.dimension_count"] = uint32_t{12};
  model.AddVector("rope_factors_short.weight", 6);
  model.AddVector("rope_factors_long.weight", 6);
  EXPECT_EQ(Loaded(model).weights.rope_factors_long.size(), 6u);
}

struct Refusal {
  std::string name;
  std::function<void(TestModel&)> spoil;
  absl::StatusCode code;
  std::string tensor;
  std::vector<std::string> message;
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class ModelWeightsRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(ModelWeightsRefusalTest, NamesTheTensor) {
  TempDir dir;
  TestModel model = TestModel::Valid();
  GetParam().spoil(model);
  const std::string path = dir.File("model.gguf");
  model.Write(path);
  const auto gguf = GgufReader::Open(path, AllowedTensorTypes::kSized);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const auto spec = ReadModelSpec(**gguf);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto weights = ModelWeights::FromGguf(**gguf, *spec);
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.status().code(), GetParam().code) << weights.status();
  EXPECT_EQ(
      GetErrorDetails(weights.status()).reason,
      GetParam().code == absl::StatusCode::kUnimplemented ? "MODEL_UNSUPPORTED" : "MODEL_INVALID");
  EXPECT_EQ(GetErrorDetails(weights.status()).subject, GetParam().tensor);
  EXPECT_THAT(std::string(weights.status().message()), HasSubstr("\"" + GetParam().tensor + "\""));
  for (const std::string& part : GetParam().message) {
    EXPECT_THAT(std::string(weights.status().message()), HasSubstr(part));
  }
}

std::vector<Refusal> Refusals() {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  std::vector<Refusal> refusals;
  const auto add = [&](std::string name, const std::string& tensor, absl::StatusCode code,
                       std::function<void(TestModel&)> spoil, std::vector<std::string> message) {
    refusals.push_back({name, spoil, code, tensor, message});
  };
  // Each tensor is missing, has an extra dimension, or has another size. The embedding's rows have
  // a separate message.
  for (const auto& [name, tensor] : TestModel::Valid().tensors) {
    std::string id = name;
    for (char& c : id) c = c == '.' ? '_' : c;
    add(id + "_missing", name, kInvalid, [name = name](TestModel& m) { m.tensors.erase(name); },
        {"missing"});
    if (name == "token_embd.weight") continue;
    add(id + "_longer", name, kInvalid,
        [name = name](TestModel& m) { m.tensors[name].ne.back() += 32; }, {"shape"});
    add(id + "_dimension", name, kInvalid,
        [name = name](TestModel& m) { m.tensors[name].ne.push_back(2); }, {"shape"});
  }
  add("shape_figures", "blk.1.attn_k.weight", kInvalid,
      [](TestModel& m) {
        m.tensors["blk.1.attn_k.weight"].ne = {64, 64};
      },
      {"[64, 64]", "[64, 32]"});
  add("transposed", "blk.0.ffn_down.weight", kInvalid,
      [](TestModel& m) {
        m.tensors["blk.0.ffn_down.weight"] = {TensorType::kF16, {64, 256}, {}};
      },
      {"[64, 256]", "[256, 64]"});
  add("embedding_rows", "token_embd.weight", kInvalid,
      [](TestModel& m) { m.tensors["token_embd.weight"].ne[1] = 259; },
      {"259 rows", "260 tokens", "equal"});
  add("embedding_cols", "token_embd.weight", kInvalid,
      [](TestModel& m) { m.tensors["token_embd.weight"].ne[0] = 32; }, {"[32, 260]", "[64, 260]"});
  add("output_rows", "output.weight", kInvalid,
      [](TestModel& m) {
        m.tensors["output.weight"] = {TensorType::kF16, {64, 300}, {}};
      },
      {"300 rows", "260 tokens"});
  add("bias_type", "blk.0.attn_v.bias", kInvalid,
      [](TestModel& m) {
        m.tensors["blk.0.attn_v.bias"] = {TensorType::kF16, {32}, {}};
      },
      {"F16", "F32"});
  add("norm_type", "output_norm.weight", kInvalid,
      [](TestModel& m) {
        m.tensors["output_norm.weight"] = {TensorType::kBF16, {64}, {}};
      },
      {"BF16", "F32"});
  add("matrix_type", "blk.0.attn_q.weight", kUnimplemented,
      // Q8_1: a type whose size is known but whose weights cannot be read.
      [](TestModel& m) { m.tensors["blk.0.attn_q.weight"].type = static_cast<TensorType>(9); },
      {"Q8_1"});
  add("rope_scaling", "rope_freqs.weight", kUnimplemented,
      [](TestModel& m) { m.AddVector("rope_freqs.weight", 8); }, {"RoPE"});
  add("more_layers", "blk.2.attn_norm.weight", kUnimplemented,
      [](TestModel& m) { m.AddVector("blk.2.attn_norm.weight", 64); }, {"2 layers"});
  add("other_tensor", "blk.0.attn_gate.weight", kUnimplemented,
      [](TestModel& m) { m.AddVector("blk.0.attn_gate.weight", 64); }, {"no part"});
  return refusals;
}

INSTANTIATE_TEST_SUITE_P(All, ModelWeightsRefusalTest, ::testing::ValuesIn(Refusals()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace orcd
