// Small models of random weights in the shapes that matter to the GPU: head sizes, groups of query
// heads and widths of the real ones, with few layers and tokens.
#ifndef ORCD_CUDA_SHAPED_MODEL_FOR_TEST_H_
#define ORCD_CUDA_SHAPED_MODEL_FOR_TEST_H_

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/base/load_observer.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/gguf/gguf_writer.h"
#include "runtime/model/model.h"
#include "testing/random_model/random_weights.h"

namespace orcd::cuda {

struct ModelShape {
  std::string name;
  int layers = 2;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int ffn = 0;
  int vocab = 1000;
  bool tied = false;
  TensorType type = TensorType::kF16;
  // Type of attn_v, ffn_down and the head.
  TensorType better_type = TensorType::kF16;
  int context_length = 8192;
  // If above 0, the model is a Qwen3 with as many experts of width `ffn`, in place of a Qwen2.
  int experts = 0;
  int experts_used = 0;
  // The layers hold their experts in each form that files have, in turn: a tensor for each of gate,
  // up and down; one for gate and up; one for each expert's. Otherwise all in the first.
  bool all_expert_forms = false;
  // If set, chooses the type of a matrix in place of the two above.
  std::function<TensorType(const std::string& tensor)> type_of = {};
  // May change a row of a matrix before it is written.
  std::function<void(const std::string& tensor, uint64_t row, std::span<std::byte> bytes)> edit =
      {};
};

inline void PrintTo(const ModelShape& shape, std::ostream* out) { *out << shape.name; }

// A shape with all matrices of one type.
inline ModelShape InType(ModelShape shape, std::string name, TensorType type) {
  shape.name = std::move(name);
  shape.type = type;
  shape.better_type = type;
  return shape;
}

// Shapes of the published models, in the types of their usual files.
inline std::vector<ModelShape> RealShapes() {
  const ModelShape wide3b_f16 = {.name = "wide3b_f16",
                                 .hidden = 2048,
                                 .heads = 16,
                                 .kv_heads = 2,
                                 .head_dim = 128,
                                 .ffn = 2816};
  // Three layers: one of them is neither the first nor the last.
  ModelShape wide3b_q8_0 = InType(wide3b_f16, "wide3b_q8_0", TensorType::kQ8_0);
  wide3b_q8_0.layers = 3;
  // Matrices of many types. Gate and up have one type in layer 0, two types with one tile format in
  // layers 1 and 2, and two tile formats in layer 3.
  ModelShape mixed = wide3b_f16;
  mixed.name = "wide3b_mixed";
  mixed.layers = 4;
  mixed.type_of = [](const std::string& tensor) {
    static const std::map<std::string, TensorType> types = {
        {"blk.0.attn_q", TensorType::kF32},     {"blk.0.attn_k", TensorType::kQ8_0},
        {"blk.0.attn_v", TensorType::kQ2_K},    {"blk.0.ffn_gate", TensorType::kQ4_K},
        {"blk.0.ffn_up", TensorType::kQ4_K},    {"blk.1.attn_q", TensorType::kQ3_K},
        {"blk.1.attn_k", TensorType::kQ6_K},    {"blk.1.ffn_gate", TensorType::kQ3_K},
        {"blk.1.ffn_up", TensorType::kQ6_K},    {"blk.1.ffn_down", TensorType::kBF16},
        {"blk.2.ffn_gate", TensorType::kF32},   {"blk.2.ffn_up", TensorType::kBF16},
        {"blk.3.ffn_gate", TensorType::kQ5_0},  {"blk.3.ffn_up", TensorType::kF16},
        {"blk.3.attn_output", TensorType::kF32}};
    const auto found = types.find(tensor.substr(0, tensor.rfind('.')));
    return found == types.end() ? TensorType::kQ8_0 : found->second;
  };
  return {{.name = "wide05b_q5_0",
           .hidden = 896,
           .heads = 14,
           .kv_heads = 2,
           .head_dim = 64,
           .ffn = 4864,
           .tied = true,
           .type = TensorType::kQ5_0,
           .better_type = TensorType::kQ8_0},
          {.name = "wide15b_q4_k",
           .hidden = 1536,
           .heads = 12,
           .kv_heads = 2,
           .head_dim = 128,
           .ffn = 8960,
           .vocab = 1501,
           .tied = true,
           .type = TensorType::kQ4_K,
           .better_type = TensorType::kQ6_K},
          wide3b_f16,
          wide3b_q8_0,
          mixed,
          // Four key-value heads, and a layer that is neither the first nor the last.
          {.name = "wide7b_q4_k",
           .layers = 3,
           .hidden = 3584,
           .heads = 28,
           .kv_heads = 4,
           .head_dim = 128,
           .ffn = 3840,
           .vocab = 2003,
           .type = TensorType::kQ4_K,
           .better_type = TensorType::kQ6_K}};
}

// Small shapes with experts: in all forms of files; and of sizes that pad the tiles of each expert.
inline std::vector<ModelShape> ExpertShapes() {
  return {{.name = "experts_in_all_forms",
           .layers = 3,
           .hidden = 256,
           .heads = 4,
           .kv_heads = 2,
           .head_dim = 64,
           .ffn = 192,
           .type = TensorType::kQ8_0,
           .better_type = TensorType::kQ5_0,
           .experts = 7,
           .experts_used = 3,
           .all_expert_forms = true},
          {.name = "padded_experts",
           .hidden = 264,
           .heads = 4,
           .kv_heads = 2,
           .head_dim = 64,
           .ffn = 72,
           .experts = 6,
           .experts_used = 2,
           .all_expert_forms = true}};
}

// Null, and a failed test, if the model cannot be made.
inline std::shared_ptr<const Model> MakeShapedModel(const ModelShape& shape) {
  // The tokens spell nothing, since no text is encoded.
  std::vector<std::string> tokens;
  for (int i = 0; i < shape.vocab; ++i) tokens.push_back("t" + std::to_string(i));
  const bool experts = shape.experts > 0;
  const std::string architecture = experts ? "qwen3moe" : "qwen2";
  const auto key = [&](const char* name) { return architecture + "." + name; };
  GgufWriter writer;
  writer.SetString("general.architecture", architecture);
  writer.SetString("general.name", shape.name);
  writer.SetU32(key("block_count"), shape.layers);
  writer.SetU32(key("context_length"), shape.context_length);
  writer.SetU32(key("embedding_length"), shape.hidden);
  writer.SetU32(key("feed_forward_length"), shape.ffn);
  writer.SetU32(key("attention.head_count"), shape.heads);
  writer.SetU32(key("attention.head_count_kv"), shape.kv_heads);
  writer.SetU32(key("attention.key_length"), shape.head_dim);
  writer.SetU32(key("attention.value_length"), shape.head_dim);
  writer.SetF32(key("rope.freq_base"), 1e6f);
  writer.SetF32(key("attention.layer_norm_rms_epsilon"), 1e-6f);
  if (experts) {
    writer.SetU32(key("expert_count"), shape.experts);
    writer.SetU32(key("expert_used_count"), shape.experts_used);
    writer.SetU32(key("expert_feed_forward_length"), shape.ffn);
  }
  writer.SetString("tokenizer.ggml.model", "gpt2");
  writer.SetString("tokenizer.ggml.pre", "qwen2");
  writer.SetStrings("tokenizer.ggml.tokens", tokens);
  writer.SetI32s("tokenizer.ggml.token_type", std::vector<int32_t>(tokens.size(), 1));

  struct Tensor {
    std::string name;
    TensorType type;
    uint64_t cols;
    // Those of all experts together; 0: a vector.
    uint64_t rows;
    uint64_t experts = 0;
  };
  std::vector<Tensor> tensors;
  const auto matrix = [&](const std::string& name, int cols, int rows, TensorType type) {
    const std::string tensor = name + ".weight";
    tensors.push_back({tensor, shape.type_of ? shape.type_of(tensor) : type,
                       static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)});
  };
  const auto expert_matrices = [&](const std::string& name, int cols, int rows, TensorType type) {
    matrix(name, cols, rows * shape.experts, type);
    tensors.back().experts = static_cast<uint64_t>(shape.experts);
  };
  const auto vector = [&](const std::string& name, int size) {
    tensors.push_back({name, TensorType::kF32, static_cast<uint64_t>(size), 0});
  };
  const int q_size = shape.heads * shape.head_dim;
  const int kv_size = shape.kv_heads * shape.head_dim;
  matrix("token_embd", shape.hidden, shape.vocab, shape.tied ? shape.better_type : shape.type);
  vector("output_norm.weight", shape.hidden);
  if (!shape.tied) matrix("output", shape.hidden, shape.vocab, shape.better_type);
  for (int i = 0; i < shape.layers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    vector(layer + "attn_norm.weight", shape.hidden);
    vector(layer + "ffn_norm.weight", shape.hidden);
    if (experts) {
      vector(layer + "attn_q_norm.weight", shape.head_dim);
      vector(layer + "attn_k_norm.weight", shape.head_dim);
    } else {
      vector(layer + "attn_q.bias", q_size);
      vector(layer + "attn_k.bias", kv_size);
      vector(layer + "attn_v.bias", kv_size);
    }
    matrix(layer + "attn_q", shape.hidden, q_size, shape.type);
    matrix(layer + "attn_k", shape.hidden, kv_size, shape.type);
    matrix(layer + "attn_v", shape.hidden, kv_size, shape.better_type);
    matrix(layer + "attn_output", q_size, shape.hidden, shape.type);
    if (experts) {
      matrix(layer + "ffn_gate_inp", shape.hidden, shape.experts, TensorType::kF32);
      const int form = shape.all_expert_forms ? i % 3 : 0;
      if (form == 2) {
        for (int e = 0; e < shape.experts; ++e) {
          const std::string number = "." + std::to_string(e);
          matrix(absl::StrCat(layer, "ffn_gate", number), shape.hidden, shape.ffn, shape.type);
          matrix(absl::StrCat(layer, "ffn_up", number), shape.hidden, shape.ffn, shape.type);
          matrix(absl::StrCat(layer, "ffn_down", number), shape.ffn, shape.hidden,
                 shape.better_type);
        }
        continue;
      }
      if (form == 1) {
        expert_matrices(layer + "ffn_gate_up_exps", shape.hidden, 2 * shape.ffn, shape.type);
      } else {
        expert_matrices(layer + "ffn_gate_exps", shape.hidden, shape.ffn, shape.type);
        expert_matrices(layer + "ffn_up_exps", shape.hidden, shape.ffn, shape.type);
      }
      expert_matrices(layer + "ffn_down_exps", shape.ffn, shape.hidden, shape.better_type);
      continue;
    }
    matrix(layer + "ffn_gate", shape.hidden, shape.ffn, shape.type);
    matrix(layer + "ffn_up", shape.hidden, shape.ffn, shape.type);
    matrix(layer + "ffn_down", shape.ffn, shape.hidden, shape.better_type);
  }
  for (const Tensor& tensor : tensors) {
    std::vector<uint64_t> ne = {tensor.cols};
    if (tensor.experts > 0) {
      ne.insert(ne.end(), {tensor.rows / tensor.experts, tensor.experts});
    } else if (tensor.rows > 0) {
      ne.push_back(tensor.rows);
    }
    writer.AddTensor(tensor.name, tensor.type, ne);
  }

  const std::string path =
      ::testing::TempDir() + "gpu_" + shape.name + "_" + std::to_string(getpid()) + ".gguf";
  auto file = writer.CreateFile(path);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return nullptr;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    const TensorTypeInfo& info = GetTensorTypeInfo(tensor.type);
    const uint64_t row_bytes = tensor.cols / info.block_weights * info.block_bytes;
    std::vector<std::byte> bytes(std::max<uint64_t>(tensor.rows, 1) * row_bytes);
    Random random(1, tensor.name, 0);
    if (tensor.rows == 0) {
      const bool norm = tensor.name.ends_with("norm.weight");
      for (uint64_t c = 0; c < tensor.cols; ++c) {
        const float value = norm ? 1 + 0.1f * random.Normal() : 0.3f * random.Normal();
        std::memcpy(&bytes[c * sizeof(float)], &value, sizeof(value));
      }
    }
    for (uint64_t row = 0; row < tensor.rows; ++row) {
      const auto part = std::span(bytes).subspan(row * row_bytes, row_bytes);
      // Rows of experts are many: they come from a smaller number of random rows, whose number is a
      // prime, so that no two experts are the same.
      constexpr uint64_t kRandomRows = 1009;
      if (tensor.experts > 0 && row >= kRandomRows) {
        std::ranges::copy(std::span(bytes).subspan(row % kRandomRows * row_bytes, row_bytes),
                          part.begin());
        continue;
      }
      FillRandomWeights(tensor.type, 1 / std::sqrt(static_cast<float>(tensor.cols)), random, part);
      if (shape.edit) shape.edit(tensor.name, row, part);
    }
    const absl::Status written = file->Write(i, 0, bytes);
    EXPECT_TRUE(written.ok()) << written;
  }
  const absl::Status finished = file->Finish();
  EXPECT_TRUE(finished.ok()) << finished;
  NullLoadObserver observer;
  auto model = Model::Load(path, {.with_text = false}, observer);
  EXPECT_TRUE(model.ok()) << model.status();
  unlink(path.c_str());
  return model.ok() ? *std::move(model) : nullptr;
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_SHAPED_MODEL_FOR_TEST_H_
