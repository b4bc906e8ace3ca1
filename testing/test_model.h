// For tests: a tiny valid model that a test can spoil in one way and write to a file.
#ifndef ORCD_TESTING_TEST_MODEL_H_
#define ORCD_TESTING_TEST_MODEL_H_

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/gguf/block_formats.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/gguf/gguf_writer.h"
#include "runtime/text/byte_map.h"
#include "testing/files.h"

namespace orcd {

// The metadata and tensors of a file, as values that a test can change.
struct TestModel {
  // A GgufEntry is for types that are not among the others.
  using Value = std::variant<uint16_t, uint32_t, int32_t, float, bool, std::string,
                             std::vector<std::string>, std::vector<int32_t>, GgufEntry>;
  struct Tensor {
    TensorType type;
    std::vector<uint64_t> ne;
    // Written at the start of the tensor; the rest is zeros.
    std::vector<std::byte> data;
  };

  std::map<std::string, Value> keys;
  std::map<std::string, Tensor> tensors;

  static TensorType MatrixType(const std::string& part) {
    if (part == "ffn_down") return TensorType::kQ4_K;
    return part == "attn_v" ? TensorType::kQ8_0 : TensorType::kQ5_0;
  }

  void AddVector(const std::string& name, uint64_t size) {
    std::vector<std::byte> ones(size * sizeof(float));
    for (uint64_t i = 0; i < size; ++i) {
      const float one = 1;
      std::memcpy(&ones[i * sizeof(float)], &one, sizeof(one));
    }
    tensors[name] = {TensorType::kF32, {size}, ones};
  }

  // 2 layers, hidden 64, 4 heads of 16 and 2 KV heads, FFN 256; a vocabulary of the 256 bytes, 3
  // control tokens and one merged token. The head is tied to the embedding.
  static TestModel Valid() {
    TestModel m;
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) {
      tokens.push_back(SpellByte(static_cast<uint8_t>(byte)));
    }
    std::vector<int32_t> types(tokens.size(), 1);
    for (const char* control : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
      tokens.push_back(control);
      types.push_back(3);
    }
    m.keys = {
        {"general.architecture", "qwen2"},
        {"general.name", "tiny"},
        {"qwen2.block_count", uint32_t{2}},
        {"qwen2.embedding_length", uint32_t{64}},
        {"qwen2.feed_forward_length", uint32_t{256}},
        {"qwen2.context_length", uint32_t{512}},
        {"qwen2.attention.head_count", uint32_t{4}},
        {"qwen2.attention.head_count_kv", uint32_t{2}},
        {"qwen2.attention.layer_norm_rms_epsilon", 1e-6f},
        {"qwen2.rope.freq_base", 1e6f},
        {"tokenizer.ggml.model", "gpt2"},
        {"tokenizer.ggml.pre", "qwen2"},
        {"tokenizer.ggml.tokens", tokens},
        {"tokenizer.ggml.token_type", types},
        {"tokenizer.ggml.merges", std::vector<std::string>{"h i"}},
        {"tokenizer.ggml.eos_token_id", uint32_t{258}},
    };
    // The token that results from the merge.
    std::get<std::vector<std::string>>(m.keys["tokenizer.ggml.tokens"]).push_back("hi");
    std::get<std::vector<int32_t>>(m.keys["tokenizer.ggml.token_type"]).push_back(1);
    const uint64_t vocab = tokens.size() + 1;
    m.tensors["token_embd.weight"] = {TensorType::kQ8_0, {64, vocab}, {}};
    m.AddVector("output_norm.weight", 64);
    for (const std::string layer : {"blk.0.", "blk.1."}) {
      const struct {
        std::string part;
        uint64_t rows;
        uint64_t cols;
      } matrices[] = {{"attn_q", 64, 64},      {"attn_k", 32, 64},    {"attn_v", 32, 64},
                      {"attn_output", 64, 64}, {"ffn_gate", 256, 64}, {"ffn_up", 256, 64},
                      {"ffn_down", 64, 256}};
      for (const auto& [part, rows, cols] : matrices) {
        m.tensors[layer + part + ".weight"] = {MatrixType(part), {cols, rows}, {}};
      }
      m.AddVector(layer + "attn_norm.weight", 64);
      m.AddVector(layer + "ffn_norm.weight", 64);
      m.AddVector(layer + "attn_q.bias", 64);
      m.AddVector(layer + "attn_k.bias", 32);
      m.AddVector(layer + "attn_v.bias", 32);
    }
    return m;
  }

  GgufWriter Writer() const {
    GgufWriter writer;
    for (const auto& [key, value] : keys) {
      std::visit(
          [&writer, &key = key](const auto& v) {
            using T = std::decay_t<decltype(v)>;
            if constexpr (std::is_same_v<T, uint16_t>) writer.SetU16(key, v);
            if constexpr (std::is_same_v<T, uint32_t>) writer.SetU32(key, v);
            if constexpr (std::is_same_v<T, int32_t>) writer.SetI32(key, v);
            if constexpr (std::is_same_v<T, float>) writer.SetF32(key, v);
            if constexpr (std::is_same_v<T, bool>) writer.SetBool(key, v);
            if constexpr (std::is_same_v<T, std::string>) writer.SetString(key, v);
            if constexpr (std::is_same_v<T, std::vector<std::string>>) writer.SetStrings(key, v);
            if constexpr (std::is_same_v<T, std::vector<int32_t>>) writer.SetI32s(key, v);
            if constexpr (std::is_same_v<T, GgufEntry>) writer.Set(key, v);
          },
          value);
    }
    for (const auto& [name, tensor] : tensors) writer.AddTensor(name, tensor.type, tensor.ne);
    return writer;
  }

  void Write(const std::string& path) const {
    auto file = Writer().CreateFile(path);
    ASSERT_TRUE(file.ok()) << file.status();
    size_t index = 0;
    for (const auto& [name, tensor] : tensors) {
      const absl::Status written = file->Write(index++, 0, tensor.data);
      ASSERT_TRUE(written.ok()) << written;
    }
    const absl::Status finished = file->Finish();
    ASSERT_TRUE(finished.ok()) << finished;
  }

  // Writes the file and opens it. On failure, fails the test and returns null.
  std::unique_ptr<GgufReader> WriteAndOpen(const std::string& path) const {
    Write(path);
    auto gguf = GgufReader::Open(path);
    EXPECT_TRUE(gguf.ok()) << gguf.status();
    return gguf.ok() ? *std::move(gguf) : nullptr;
  }
};

// Overwrites bytes of a file.
inline void Patch(const std::string& path, uint64_t offset, const void* bytes, size_t size) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  ASSERT_TRUE(file.good());
}

}  // namespace orcd

#endif  // ORCD_TESTING_TEST_MODEL_H_
