#include "runtime/model/predict_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/model/architectures.h"
#include "testing/architecture_models.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

// A tiny file with a block after its two layers, whose tensors are those of the second layer.
TestModel WithBlock(const std::string& architecture) {
  TestModel model = TinyModelOf(architecture);
  model.keys[architecture + ".block_count"] = uint32_t{3};
  model.keys[architecture + ".nextn_predict_layers"] = uint32_t{1};
  for (const auto& [name, tensor] : std::map(model.tensors)) {
    if (name.starts_with("blk.1.")) model.tensors["blk.2." + name.substr(6)] = tensor;
  }
  model.tensors["blk.2.nextn.eh_proj.weight"] = {TensorType::kQ8_0, {128, 64}, {}};
  for (const std::string name : {"enorm", "hnorm", "shared_head_norm"}) {
    model.AddVector("blk.2.nextn." + name + ".weight", 64);
  }
  return model;
}

// The file stays open, as the block views it.
struct OpenBlock {
  explicit OpenBlock(const TestModel& model) : gguf(model.WriteAndOpen(dir.File("model.gguf"))) {
    const auto spec = ReadModelSpec(*gguf);
    EXPECT_TRUE(spec.ok()) << spec.status();
    if (!spec.ok()) return;
    auto read = ModelWeights::FromGguf(*gguf, *spec);
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) return;
    weights = *std::move(read);
    block = PredictBlock::FromGguf(*gguf, *spec, weights);
  }
  const std::byte* data(const std::string& tensor) const {
    return gguf->FindTensor(tensor)->data.data();
  }

  TempDir dir;
  std::unique_ptr<GgufReader> gguf;
  ModelWeights weights;
  absl::StatusOr<std::optional<PredictBlock>> block = absl::UnknownError("was not read");
};

TEST(PredictBlockTest, HasALayerOfItsOwnAndTheModelsHead) {
  for (const std::string architecture : {"qwen35", "qwen35moe", "qwen3next", "glm4moe"}) {
    SCOPED_TRACE(architecture);
    const OpenBlock open(WithBlock(architecture));
    ASSERT_TRUE(open.block.ok()) << open.block.status();
    ASSERT_TRUE(open.block->has_value());
    const PredictBlock& block = **open.block;
    EXPECT_FALSE(block.spec.recurrent());
    EXPECT_EQ(block.spec.experts.count, architecture == "qwen35" ? 0 : 4);
    EXPECT_EQ(block.layer.attn_q.data, open.data("blk.2.attn_q.weight"));
    EXPECT_EQ(block.layer.attn_q.rows, block.spec.q_rows());
    EXPECT_EQ(block.projection.data, open.data("blk.2.nextn.eh_proj.weight"));
    EXPECT_EQ(block.projection.cols, 128);
    EXPECT_EQ(block.embedding_norm.size(), 64u);
    EXPECT_EQ(block.hidden_norm.size(), 64u);
    EXPECT_EQ(reinterpret_cast<const std::byte*>(block.output_norm.data()),
              open.data("blk.2.nextn.shared_head_norm.weight"));
    EXPECT_EQ(block.token_embd.data, open.weights.token_embd.data);
    EXPECT_EQ(block.output.data, open.weights.output.data);
  }
}

TEST(PredictBlockTest, MayHaveAHeadAndNoNormOfItsOwn) {
  TestModel model = WithBlock("qwen35");
  model.tensors.erase("blk.2.nextn.shared_head_norm.weight");
  for (const std::string name : {"embed_tokens", "shared_head_head"}) {
    model.tensors["blk.2.nextn." + name + ".weight"] = {TensorType::kQ8_0, {64, 260}, {}};
  }
  const OpenBlock open(model);
  ASSERT_TRUE(open.block.ok()) << open.block.status();
  const PredictBlock& block = **open.block;
  EXPECT_EQ(block.output_norm.data(), open.weights.output_norm.data());
  EXPECT_EQ(block.token_embd.data, open.data("blk.2.nextn.embed_tokens.weight"));
  EXPECT_EQ(block.output.data, open.data("blk.2.nextn.shared_head_head.weight"));
}

TEST(PredictBlockTest, FilesMayHaveNone) {
  const OpenBlock none(TinyModelOf("qwen35"));
  ASSERT_TRUE(none.block.ok()) << none.block.status();
  EXPECT_FALSE(none.block->has_value());
  // Some publishers leave the block's tensors out.
  TestModel trunk = TinyModelOf("qwen35");
  trunk.keys["qwen35.block_count"] = uint32_t{3};
  trunk.keys["qwen35.nextn_predict_layers"] = uint32_t{1};
  const OpenBlock left_out(trunk);
  ASSERT_TRUE(left_out.block.ok()) << left_out.block.status();
  EXPECT_FALSE(left_out.block->has_value());
}

TEST(PredictBlockTest, ABadBlockIsRefusedByName) {
  const struct {
    std::string tensor;
    std::function<void(TestModel&)> spoil;
    std::string message;
  } files[] = {
      {"blk.2.nextn.enorm.weight",
       [](TestModel& m) { m.tensors.erase("blk.2.nextn.enorm.weight"); }, "missing"},
      {"blk.2.attn_k.weight", [](TestModel& m) { m.tensors.erase("blk.2.attn_k.weight"); },
       "missing"},
      {"blk.2.nextn.eh_proj.weight",
       [](TestModel& m) {
         m.tensors["blk.2.nextn.eh_proj.weight"].ne = {64, 64};
       },
       "[128, 64]"},
      {"blk.2.nextn.hnorm.weight",
       [](TestModel& m) { m.AddVector("blk.2.nextn.hnorm.weight", 32); }, "[64]"},
  };
  for (const auto& file : files) {
    TestModel model = WithBlock("qwen35");
    file.spoil(model);
    const OpenBlock open(model);
    EXPECT_EQ(open.block.status().code(), absl::StatusCode::kInvalidArgument) << file.tensor;
    EXPECT_EQ(GetErrorDetails(open.block.status()).subject, file.tensor) << open.block.status();
    EXPECT_THAT(std::string(open.block.status().message()), HasSubstr(file.message));
  }
}

}  // namespace
}  // namespace orcd
