// Writes small valid GGUF files as the seed corpus of gguf_reader_fuzz: gguf_reader_corpus FOLDER.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/gguf/gguf_writer.h"

namespace {

using orcd::GgufArray;
using orcd::GgufType;
using orcd::GgufWriter;

void SetModelKeys(GgufWriter& writer) {
  writer.SetString("general.architecture", "qwen2");
  writer.SetU32("qwen2.block_count", 1);
  writer.SetF32("qwen2.rope.freq_base", 1e6f);
  writer.SetStrings("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "<|im_end|>"});
  writer.SetI32s("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 3});
  writer.SetF32s("tokenizer.ggml.scores", std::vector<float>{0, 1, 2});
  writer.SetBool("tokenizer.ggml.add_bos_token", false);
}

void SetEveryType(GgufWriter& writer) {
  writer.Set("u8", {GgufType::kU8, uint64_t{1}});
  writer.Set("i8", {GgufType::kI8, int64_t{-1}});
  writer.SetU16("u16", 1);
  writer.Set("i16", {GgufType::kI16, int64_t{-1}});
  writer.SetI32("i32", -1);
  writer.Set("u64", {GgufType::kU64, uint64_t{1}});
  writer.Set("i64", {GgufType::kI64, int64_t{-1}});
  writer.Set("f64", {GgufType::kF64, 1.5});
  auto bools = std::make_shared<GgufArray>();
  bools->type = GgufType::kBool;
  bools->unsigned_values = {0, 1};
  writer.Set("bools", {GgufType::kArray, bools});
}

bool Save(const GgufWriter& writer, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  file << writer.Header() << std::string(writer.data_bytes(), '\0');
  return static_cast<bool>(file.flush());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gguf_reader_corpus FOLDER\n");
    return 2;
  }
  const std::string folder = argv[1];
  GgufWriter vocabulary;
  SetModelKeys(vocabulary);
  GgufWriter model(64);
  SetModelKeys(model);
  for (const orcd::TensorTypeInfo& info : orcd::AllTensorTypes()) {
    model.AddTensor(info.name, info.type, std::vector<uint64_t>{info.block_weights, 2});
  }
  GgufWriter values;
  SetEveryType(values);
  values.AddTensor("t", orcd::TensorType::kF32, std::vector<uint64_t>{2, 1, 2, 1});
  GgufWriter part;
  part.SetU16("split.no", 0);
  part.SetU16("split.count", 2);
  part.SetI32("split.tensors.count", 1);
  if (!Save(vocabulary, folder + "/vocabulary") || !Save(model, folder + "/model") ||
      !Save(values, folder + "/values") || !Save(part, folder + "/part")) {
    std::fprintf(stderr, "gguf_reader_corpus: %s cannot be written\n", folder.c_str());
    return 1;
  }
  return 0;
}
