// Model files that the worker must refuse, with the right code and a message that names the fault.
// Afterwards the worker must load and serve a good file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "integration_tests/errors_table.h"
#include "integration_tests/gguf_editor.h"
#include "integration_tests/test_models.h"
#include "integration_tests/worker_fixture.h"
#include "testing/random_model/random_model.h"

namespace orcd::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;

constexpr uint32_t kQ8_0 = 8;
constexpr uint32_t kQ1_0 = 41;
constexpr uint64_t kHuge = uint64_t{1} << 60;

// The well-formed files. The second has 8 experts, of which 2 are chosen, in each layer.
constexpr char kNano[] = "nano.gguf";
constexpr char kExperts[] = "experts.gguf";

struct BadModel {
  const char* name;
  // Breaks a well-formed file and returns its bytes.
  std::function<std::string(GgufEditor)> bytes;
  StatusCode code = StatusCode::INVALID_ARGUMENT;
  // Must occur in the message.
  const char* mentions = "";
  const char* base = kNano;
};

// Breaks parts of the file.
std::function<std::string(GgufEditor)> Edit(std::function<void(GgufEditor&)> edit) {
  return [edit](GgufEditor file) {
    edit(file);
    return file.Bytes();
  };
}

std::function<std::string(GgufEditor)> Without(const char* key) {
  return Edit([key](GgufEditor& file) { file.Remove(key); });
}

std::function<std::string(GgufEditor)> WithoutTensor(const char* name) {
  return Edit([name](GgufEditor& file) { file.RemoveTensor(name); });
}

std::function<std::string(GgufEditor)> With(const char* key, uint32_t type, std::string value) {
  return Edit([=](GgufEditor& file) { file.Set(key, type, value); });
}

// Keeps the position of the key, for keys that must be read before others.
std::function<std::string(GgufEditor)> WithValue(const char* key, std::string value) {
  return Edit([=](GgufEditor& file) { file.Find(key).value = value; });
}

// Cuts the file at the offset that `where` returns.
std::function<std::string(GgufEditor)> Cut(std::function<size_t(const GgufEditor&, size_t)> where) {
  return [where](GgufEditor file) {
    const std::string bytes = file.Bytes();
    return bytes.substr(0, where(file, bytes.size()));
  };
}

std::string ArrayBytes(uint32_t type, uint64_t count, std::string elements) {
  return U32Bytes(type) + U64Bytes(count) + elements;
}

void SwapDimensions(GgufEditor::Tensor& tensor) { std::swap(tensor.ne[0], tensor.ne[1]); }

// Overwrites the start of the tensor's data with `bytes`.
void Overwrite(GgufEditor& file, const char* tensor, const std::string& bytes) {
  file.data.replace(file.FindTensor(tensor).offset, bytes.size(), bytes);
}

const std::vector<BadModel>& BadModels() {
  static const auto* const models = new std::vector<BadModel>{
      // Header.
      {"empty file", [](GgufEditor) { return std::string(); }},
      {"three bytes", [](GgufEditor) { return std::string("GGU"); }},
      {"magic alone", [](GgufEditor) { return std::string("GGUF"); }},
      {"wrong magic", Edit([](GgufEditor& f) { f.magic = "GGML"; }), StatusCode::INVALID_ARGUMENT,
       "GGUF"},
      {"text file", [](GgufEditor) { return std::string(5000, 'x'); }},
      {"zeros", [](GgufEditor) { return std::string(5000, '\0'); }},
      {"version 0", Edit([](GgufEditor& f) { f.version = 0; }), StatusCode::UNIMPLEMENTED,
       "version"},
      {"version 1", Edit([](GgufEditor& f) { f.version = 1; }), StatusCode::UNIMPLEMENTED,
       "version"},
      {"version 4", Edit([](GgufEditor& f) { f.version = 4; }), StatusCode::UNIMPLEMENTED,
       "version"},
      {"big-endian", Edit([](GgufEditor& f) { f.version = 0x03000000; }), StatusCode::UNIMPLEMENTED,
       "endian"},
      {"huge tensor count", Edit([](GgufEditor& f) { f.tensor_count = kHuge; })},
      {"largest tensor count", Edit([](GgufEditor& f) { f.tensor_count = ~uint64_t{0}; })},
      {"huge key count", Edit([](GgufEditor& f) { f.entry_count = kHuge; })},
      {"one tensor too many", Edit([](GgufEditor& f) { f.tensor_count = f.tensors.size() + 1; })},
      {"one key too many", Edit([](GgufEditor& f) { f.entry_count = f.entries.size() + 1; })},
      // Metadata.
      {"string past the end", With("x.long", kGgufString, U64Bytes(kHuge) + "abc"),
       StatusCode::INVALID_ARGUMENT, "x.long"},
      {"string length overflow", With("x.long", kGgufString, U64Bytes(~uint64_t{0}))},
      {"array past the end", With("x.array", kGgufArray, ArrayBytes(kGgufU32, kHuge, "")),
       StatusCode::INVALID_ARGUMENT, "x.array"},
      {"array size overflow",
       With("x.array", kGgufArray, ArrayBytes(kGgufU32, uint64_t{1} << 62, U32Bytes(1)))},
      {"array of strings past the end",
       With("x.array", kGgufArray, ArrayBytes(kGgufString, kHuge, ""))},
      {"array of an unknown type", With("x.array", kGgufArray, ArrayBytes(77, 1, U32Bytes(1)))},
      {"array of arrays",
       With("x.array", kGgufArray, ArrayBytes(kGgufArray, 1, ArrayBytes(kGgufU32, 1, U32Bytes(1)))),
       StatusCode::UNIMPLEMENTED, "x.array"},
      {"unknown value type", With("x.value", 13, U32Bytes(0)), StatusCode::INVALID_ARGUMENT,
       "x.value"},
      {"bool that is neither", With("x.bool", kGgufBool, std::string(1, '\x02')),
       StatusCode::INVALID_ARGUMENT, "x.bool"},
      {"duplicate key", Edit([](GgufEditor& f) { f.entries.push_back(f.entries[0]); }),
       StatusCode::INVALID_ARGUMENT, "general.architecture"},
      {"empty key", With("", kGgufU32, U32Bytes(1))},
      {"alignment 0", With("general.alignment", kGgufU32, U32Bytes(0)),
       StatusCode::INVALID_ARGUMENT, "general.alignment"},
      {"alignment 48", With("general.alignment", kGgufU32, U32Bytes(48)),
       StatusCode::INVALID_ARGUMENT, "general.alignment"},
      {"alignment 2^31", With("general.alignment", kGgufU32, U32Bytes(1u << 31))},
      {"alignment as a string", With("general.alignment", kGgufString, StringBytes("32")),
       StatusCode::INVALID_ARGUMENT, "general.alignment"},
      // Tensor infos.
      {"no dimensions", Edit([](GgufEditor& f) { f.FindTensor("output_norm.weight").ne.clear(); }),
       StatusCode::INVALID_ARGUMENT, "output_norm.weight"},
      {"five dimensions",
       Edit([](GgufEditor& f) { f.FindTensor("output_norm.weight").ne.resize(5, 1); }),
       StatusCode::INVALID_ARGUMENT, "output_norm.weight"},
      {"zero dimension", Edit([](GgufEditor& f) { f.FindTensor("output_norm.weight").ne[0] = 0; }),
       StatusCode::INVALID_ARGUMENT, "output_norm.weight"},
      {"negative dimension",
       Edit([](GgufEditor& f) { f.FindTensor("output_norm.weight").ne[0] = ~uint64_t{255}; }),
       StatusCode::INVALID_ARGUMENT, "output_norm.weight"},
      {"element count overflow", Edit([](GgufEditor& f) {
         f.FindTensor("token_embd.weight").ne = {uint64_t{1} << 33, uint64_t{1} << 33};
       }),
       StatusCode::INVALID_ARGUMENT, "token_embd.weight"},
      {"byte count overflow",
       Edit([](GgufEditor& f) { f.FindTensor("output_norm.weight").ne = {uint64_t{1} << 62}; })},
      {"row that is no whole blocks", Edit([](GgufEditor& f) {
         GgufEditor::Tensor& tensor = f.FindTensor("output_norm.weight");
         tensor.ne[0] -= 1;
         tensor.type = kQ8_0;
       }),
       StatusCode::INVALID_ARGUMENT, "output_norm.weight"},
      {"unknown tensor type",
       Edit([](GgufEditor& f) { f.FindTensor("blk.0.attn_q.weight").type = 99; }),
       StatusCode::UNIMPLEMENTED, "blk.0.attn_q.weight"},
      {"known tensor type that is not run here",
       Edit([](GgufEditor& f) { f.FindTensor("blk.0.attn_q.weight").type = kQ1_0; }),
       StatusCode::UNIMPLEMENTED, "blk.0.attn_q.weight"},
      {"misaligned offset", Edit([](GgufEditor& f) { f.tensors[1].offset += 4; })},
      {"overlapping tensors",
       Edit([](GgufEditor& f) { f.tensors[1].offset = f.tensors[0].offset; }),
       StatusCode::INVALID_ARGUMENT, "overlap"},
      {"offset past the end", Edit([](GgufEditor& f) { f.tensors[1].offset = kHuge; })},
      {"offset overflow", Edit([](GgufEditor& f) { f.tensors[1].offset = ~uint64_t{31}; })},
      {"duplicate tensor", Edit([](GgufEditor& f) { f.tensors[1].name = f.tensors[0].name; })},
      // Truncation.
      {"cut in the header", Cut([](const GgufEditor&, size_t) { return size_t{20}; })},
      {"cut in the metadata", Cut([](const GgufEditor& f, size_t) { return f.DataOffset() / 2; })},
      {"cut in the tensor infos",
       Cut([](const GgufEditor& f, size_t) { return f.DataOffset() - 64; })},
      {"cut before the data", Cut([](const GgufEditor& f, size_t) { return f.DataOffset(); })},
      {"cut in the data", Cut([](const GgufEditor& f, size_t size) {
         return f.DataOffset() + (size - f.DataOffset()) / 2;
       })},
      {"no tensors", Edit([](GgufEditor& f) {
         f.tensors.clear();
         f.data.clear();
       })},
      {"split without its other files", Edit([](GgufEditor& f) {
         f.Set("split.no", 2, std::string(2, '\0'));
         f.Set("split.count", 2, std::string("\x03\0", 2));
         f.Set("split.tensors.count", kGgufI32, U32Bytes(static_cast<uint32_t>(f.tensors.size())));
       })},
      // Shape of the model.
      {"another architecture", WithValue("general.architecture", StringBytes("gemma")),
       StatusCode::UNIMPLEMENTED, "gemma"},
      {"mixture of experts by its architecture",
       WithValue("general.architecture", StringBytes("deepseek2")), StatusCode::UNIMPLEMENTED,
       "deepseek2"},
      {"mixture of experts of an architecture without",
       With("qwen2.expert_count", kGgufU32, U32Bytes(8)), StatusCode::UNIMPLEMENTED,
       "mixtures of experts"},
      {"vision projector", WithValue("general.architecture", StringBytes("clip")),
       StatusCode::UNIMPLEMENTED, "vision projector"},
      {"model of embeddings", With("qwen2.attention.causal", kGgufBool, std::string(1, '\0')),
       StatusCode::UNIMPLEMENTED, "embeddings"},
      {"layers that predict further tokens",
       With("qwen2.nextn_predict_layers", kGgufU32, U32Bytes(1)), StatusCode::UNIMPLEMENTED,
       "qwen2.nextn_predict_layers"},
      {"soft cap that the architecture does not have",
       With("qwen2.attn_logit_softcapping", kGgufF32, F32Bytes(50)), StatusCode::UNIMPLEMENTED,
       "qwen2.attn_logit_softcapping"},
      {"window that the architecture does not have",
       With("qwen2.attention.sliding_window", kGgufU32, U32Bytes(512)), StatusCode::UNIMPLEMENTED,
       "qwen2.attention.sliding_window"},
      {"layers of two shapes",
       With("qwen2.feed_forward_length", kGgufArray,
            ArrayBytes(kGgufI32, 2, U32Bytes(768) + U32Bytes(1024))),
       StatusCode::UNIMPLEMENTED, "qwen2.feed_forward_length"},
      {"no architecture", Without("general.architecture"), StatusCode::INVALID_ARGUMENT,
       "general.architecture"},
      {"no layer count", Without("qwen2.block_count"), StatusCode::INVALID_ARGUMENT,
       "qwen2.block_count"},
      {"no hidden size", Without("qwen2.embedding_length"), StatusCode::INVALID_ARGUMENT,
       "qwen2.embedding_length"},
      {"no ffn size", Without("qwen2.feed_forward_length"), StatusCode::INVALID_ARGUMENT,
       "qwen2.feed_forward_length"},
      {"no heads", Without("qwen2.attention.head_count"), StatusCode::INVALID_ARGUMENT,
       "qwen2.attention.head_count"},
      {"no context length", Without("qwen2.context_length"), StatusCode::INVALID_ARGUMENT,
       "qwen2.context_length"},
      {"no epsilon", Without("qwen2.attention.layer_norm_rms_epsilon"),
       StatusCode::INVALID_ARGUMENT, "qwen2.attention.layer_norm_rms_epsilon"},
      {"no rope base", Without("qwen2.rope.freq_base"), StatusCode::INVALID_ARGUMENT,
       "qwen2.rope.freq_base"},
      {"rope base of zero", With("qwen2.rope.freq_base", kGgufF32, F32Bytes(0)),
       StatusCode::INVALID_ARGUMENT, "qwen2.rope.freq_base"},
      {"rope base that is no number", With("qwen2.rope.freq_base", kGgufF32, F32Bytes(NAN)),
       StatusCode::INVALID_ARGUMENT, "qwen2.rope.freq_base"},
      {"negative epsilon",
       With("qwen2.attention.layer_norm_rms_epsilon", kGgufF32, F32Bytes(-1e-6f)),
       StatusCode::INVALID_ARGUMENT, "qwen2.attention.layer_norm_rms_epsilon"},
      {"zero heads", With("qwen2.attention.head_count", kGgufU32, U32Bytes(0)),
       StatusCode::INVALID_ARGUMENT, "qwen2.attention.head_count"},
      {"heads that do not divide", With("qwen2.attention.head_count", kGgufU32, U32Bytes(3)),
       StatusCode::INVALID_ARGUMENT, "head_count"},
      {"kv heads that do not divide", With("qwen2.attention.head_count_kv", kGgufU32, U32Bytes(3)),
       StatusCode::INVALID_ARGUMENT, "head_count"},
      {"more layers than tensors", With("qwen2.block_count", kGgufU32, U32Bytes(3)),
       StatusCode::INVALID_ARGUMENT, "blk.2."},
      {"absurdly many layers", With("qwen2.block_count", kGgufU32, U32Bytes(4'000'000'000))},
      {"zero layers", With("qwen2.block_count", kGgufU32, U32Bytes(0)),
       StatusCode::INVALID_ARGUMENT, "qwen2.block_count"},
      {"layer count as a string", With("qwen2.block_count", kGgufString, StringBytes("2")),
       StatusCode::INVALID_ARGUMENT, "qwen2.block_count"},
      {"zero context", With("qwen2.context_length", kGgufU32, U32Bytes(0)),
       StatusCode::INVALID_ARGUMENT, "qwen2.context_length"},
      {"unknown rope scaling", With("qwen2.rope.scaling.type", kGgufString, StringBytes("dynamic")),
       StatusCode::UNIMPLEMENTED, "rope.scaling.type"},
      {"yarn without its factor", With("qwen2.rope.scaling.type", kGgufString, StringBytes("yarn")),
       StatusCode::INVALID_ARGUMENT, "rope.scaling.factor"},
      // Tensors.
      {"no embedding", WithoutTensor("token_embd.weight"), StatusCode::INVALID_ARGUMENT,
       "token_embd.weight"},
      {"no final norm", WithoutTensor("output_norm.weight"), StatusCode::INVALID_ARGUMENT,
       "output_norm.weight"},
      {"no query bias", WithoutTensor("blk.0.attn_q.bias"), StatusCode::INVALID_ARGUMENT,
       "blk.0.attn_q.bias"},
      {"no value bias", WithoutTensor("blk.1.attn_v.bias"), StatusCode::INVALID_ARGUMENT,
       "blk.1.attn_v.bias"},
      {"no down projection", WithoutTensor("blk.1.ffn_down.weight"), StatusCode::INVALID_ARGUMENT,
       "blk.1.ffn_down.weight"},
      {"tensor that the architecture does not have",
       Edit([](GgufEditor& f) { f.FindTensor("output.weight").name = "cls.output.weight"; }),
       StatusCode::UNIMPLEMENTED, "cls.output.weight"},
      {"swapped dimensions",
       Edit([](GgufEditor& f) { SwapDimensions(f.FindTensor("blk.0.ffn_up.weight")); }),
       StatusCode::INVALID_ARGUMENT, "blk.0.ffn_up.weight"},
      {"short norm",
       Edit([](GgufEditor& f) { f.FindTensor("blk.0.attn_norm.weight").ne[0] -= 32; }),
       StatusCode::INVALID_ARGUMENT, "blk.0.attn_norm.weight"},
      {"short bias", Edit([](GgufEditor& f) { f.FindTensor("blk.0.attn_k.bias").ne[0] -= 32; }),
       StatusCode::INVALID_ARGUMENT, "blk.0.attn_k.bias"},
      {"fewer embedding rows than tokens",
       Edit([](GgufEditor& f) { f.FindTensor("token_embd.weight").ne[1] -= 1; }),
       StatusCode::INVALID_ARGUMENT, "token_embd.weight"},
      {"quantised norm",
       Edit([](GgufEditor& f) { f.FindTensor("output_norm.weight").type = kQ8_0; }),
       StatusCode::INVALID_ARGUMENT, "output_norm.weight"},
      // Weights.
      {"NaN in a norm",
       Edit([](GgufEditor& f) { Overwrite(f, "output_norm.weight", F32Bytes(NAN)); }),
       StatusCode::INVALID_ARGUMENT, "output_norm.weight"},
      {"infinity in a bias",
       Edit([](GgufEditor& f) { Overwrite(f, "blk.0.attn_q.bias", F32Bytes(-INFINITY)); }),
       StatusCode::INVALID_ARGUMENT, "blk.0.attn_q.bias"},
      // The first bytes of a block are its F16 scale; 0x7E00 is a NaN, 0x7C00 an infinity. In an
      // F16 or a BF16 matrix 0x7FC0 is a NaN too.
      {"NaN in a matrix",
       Edit([](GgufEditor& f) { Overwrite(f, "blk.1.ffn_down.weight", "\xC0\x7F"); }),
       StatusCode::INVALID_ARGUMENT, "blk.1.ffn_down.weight"},
      // Tokenizer.
      {"no tokens", Without("tokenizer.ggml.tokens"), StatusCode::INVALID_ARGUMENT,
       "tokenizer.ggml.tokens"},
      {"no merges", Without("tokenizer.ggml.merges"), StatusCode::INVALID_ARGUMENT,
       "tokenizer.ggml.merges"},
      {"no token types", Without("tokenizer.ggml.token_type"), StatusCode::INVALID_ARGUMENT,
       "tokenizer.ggml.token_type"},
      {"another tokenizer", With("tokenizer.ggml.model", kGgufString, StringBytes("bert")),
       StatusCode::UNIMPLEMENTED, "tokenizer.ggml.model"},
      {"another pre-tokenizer", With("tokenizer.ggml.pre", kGgufString, StringBytes("kimi-k2")),
       StatusCode::UNIMPLEMENTED, "tokenizer.ggml.pre"},
      {"tokens that are numbers",
       With("tokenizer.ggml.tokens", kGgufArray, ArrayBytes(kGgufU32, 1, U32Bytes(1))),
       StatusCode::INVALID_ARGUMENT, "tokenizer.ggml.tokens"},
      {"token types of another length",
       With("tokenizer.ggml.token_type", kGgufArray, ArrayBytes(kGgufI32, 1, U32Bytes(1))),
       StatusCode::INVALID_ARGUMENT, "tokenizer.ggml.token_type"},
      {"token types that are strings",
       With("tokenizer.ggml.token_type", kGgufArray,
            ArrayBytes(kGgufString, 1, StringBytes("normal"))),
       StatusCode::INVALID_ARGUMENT, "tokenizer.ggml.token_type"},
      {"scores of the wrong type",
       With("tokenizer.ggml.scores", kGgufArray, ArrayBytes(kGgufU32, 1, U32Bytes(1))),
       StatusCode::INVALID_ARGUMENT, "tokenizer.ggml.scores"},
      {"duplicate token", Edit([](GgufEditor& f) {
         std::vector<std::string> tokens = f.GetStrings("tokenizer.ggml.tokens");
         tokens[10] = tokens[11];
         f.SetStrings("tokenizer.ggml.tokens", tokens);
       }),
       StatusCode::INVALID_ARGUMENT, "tokenizer.ggml.tokens"},
      {"fewer tokens than rows", Edit([](GgufEditor& f) {
         std::vector<std::string> tokens = f.GetStrings("tokenizer.ggml.tokens");
         tokens.pop_back();
         f.SetStrings("tokenizer.ggml.tokens", tokens);
       })},
      {"end id outside the vocabulary",
       With("tokenizer.ggml.eos_token_id", kGgufU32, U32Bytes(4'000'000'000)),
       StatusCode::INVALID_ARGUMENT, "tokenizer.ggml.eos_token_id"},
      // Experts.
      {"more experts than the tensors have", With("qwen3moe.expert_count", kGgufU32, U32Bytes(16)),
       StatusCode::INVALID_ARGUMENT, "blk.0.ffn_gate_inp.weight", kExperts},
      {"absurdly many experts", With("qwen3moe.expert_count", kGgufU32, U32Bytes(4'000'000'000)),
       StatusCode::INVALID_ARGUMENT, "qwen3moe.expert_count", kExperts},
      {"no count of experts", Without("qwen3moe.expert_count"), StatusCode::INVALID_ARGUMENT,
       "qwen3moe.expert_count", kExperts},
      {"more experts chosen than there are",
       With("qwen3moe.expert_used_count", kGgufU32, U32Bytes(9)), StatusCode::INVALID_ARGUMENT,
       "qwen3moe.expert_used_count", kExperts},
      {"no expert chosen", With("qwen3moe.expert_used_count", kGgufU32, U32Bytes(0)),
       StatusCode::INVALID_ARGUMENT, "qwen3moe.expert_used_count", kExperts},
      {"another router", With("qwen3moe.expert_gating_func", kGgufU32, U32Bytes(4)),
       StatusCode::UNIMPLEMENTED, "qwen3moe.expert_gating_func", kExperts},
      {"no experts", WithoutTensor("blk.1.ffn_up_exps.weight"), StatusCode::INVALID_ARGUMENT,
       "blk.1.ffn_up_exps.weight", kExperts},
      {"a matrix for seven of eight experts",
       Edit([](GgufEditor& f) { f.FindTensor("blk.1.ffn_down_exps.weight").ne[2] = 7; }),
       StatusCode::INVALID_ARGUMENT, "blk.1.ffn_down_exps.weight", kExperts},
      {"router of another shape",
       Edit([](GgufEditor& f) { SwapDimensions(f.FindTensor("blk.0.ffn_gate_inp.weight")); }),
       StatusCode::INVALID_ARGUMENT, "blk.0.ffn_gate_inp.weight", kExperts},
      // A row of 256 weights is eight blocks of 34 bytes.
      {"NaN in one expert", Edit([](GgufEditor& f) {
         const uint64_t at = f.FindTensor("blk.1.ffn_gate_exps.weight").offset;
         f.data.replace(at + 5 * (256 * 8 * 34), 2, "\xC0\x7F");
       }),
       StatusCode::INVALID_ARGUMENT, "in expert 5, row 0", kExperts},
  };
  return *models;
}

class BadModelTest : public WorkerTest {
 protected:
  void WriteFile(const std::string& name, const std::string& bytes) {
    std::ofstream(models().File(name), std::ios::binary | std::ios::trunc) << bytes;
  }

  // The worker answers, reports why there is no model, and serves a good one.
  void ExpectServes() {
    ASSERT_TRUE(worker().Running());
    const v1::WorkerStatus status = client().Status();
    EXPECT_EQ(status.state(), v1::WORKER_STATE_IDLE);
    EXPECT_FALSE(status.has_model());
    EXPECT_EQ(status.memory().weights_bytes(), 0u);
    const LoadResult good = client().Load("nano.gguf");
    ASSERT_TRUE(good.error.ok()) << good.error;
    ASSERT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
    ASSERT_TRUE(client().Unload(false).ok());
  }
};

TEST_F(BadModelTest, EachIsRefusedAndTheWorkerGoesOn) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  const auto written = WriteRandomModel({.architecture = "qwen3moe", .type = "Q8_0", .threads = 1},
                                        models().File(kExperts));
  ASSERT_TRUE(written.ok()) << written.status();
  ErrorsTable table("Bad model files");
  for (const BadModel& bad : BadModels()) {
    SCOPED_TRACE(bad.name);
    WriteFile("bad.gguf", bad.bytes(GgufEditor(models().File(bad.base))));
    const LoadResult result = client().Load("bad.gguf");
    EXPECT_FALSE(result.loaded);
    EXPECT_TRUE(IsError(result.error, bad.code));
    EXPECT_THAT(result.error.message, HasSubstr(bad.mentions));
    EXPECT_GE(result.error.message.size(), 20u) << "says too little";
    EXPECT_THAT(client().Status().reason(), HasSubstr("bad.gguf"));
    RpcError said = result.error;
    said.message = absl::StrReplaceAll(said.message, {{models().path().string() + "/", ""}});
    table.Add(bad.name, said);
    ASSERT_NO_FATAL_FAILURE(ExpectServes());
  }
  EXPECT_TRUE(table.IsInTheDocument());
}

// The editor must rewrite a good file to one that loads, so that refusals are due to the faults.
TEST_F(BadModelTest, UnbrokenFileIsLoaded) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  const auto written = WriteRandomModel({.architecture = "qwen3moe", .type = "Q8_0", .threads = 1},
                                        models().File(kExperts));
  ASSERT_TRUE(written.ok()) << written.status();
  GgufEditor(models().File(kExperts)).Write(models().File("experts-again.gguf"));
  EXPECT_TRUE(client().Load("experts-again.gguf").loaded);
  EXPECT_EQ(client().Status().model().experts(), 8u);
  ASSERT_TRUE(client().Unload(false).ok());
  const GgufEditor good(models().File("nano.gguf"));
  good.Write(models().File("again.gguf"));
  EXPECT_TRUE(client().Load("again.gguf").loaded);
  ASSERT_TRUE(client().Unload(false).ok());
  WriteFile("version2.gguf", Edit([](GgufEditor& f) { f.version = 2; })(good));
  EXPECT_TRUE(client().Load("version2.gguf").loaded);
  ASSERT_TRUE(client().Unload(false).ok());
  WriteFile("unknown-key.gguf", With("x.unknown", kGgufU32, U32Bytes(1))(good));
  EXPECT_TRUE(client().Load("unknown-key.gguf").loaded);
}

// The worker refuses every prefix of a file. It refuses or loads a file with any one byte of its
// first part changed. No such file ends the worker.
TEST_F(BadModelTest, NoCutAndNoFlippedByteTakesTheWorkerDown) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  const std::string good = GgufEditor(models().File("nano.gguf")).Bytes();
  for (int i = 0; i < 40; ++i) {
    const size_t size = good.size() * i / 40;
    WriteFile("bad.gguf", good.substr(0, size));
    const LoadResult result = client().Load("bad.gguf");
    EXPECT_TRUE(IsError(result.error, StatusCode::INVALID_ARGUMENT)) << "cut at " << size;
  }
  uint64_t state = 20260301;
  const auto random = [&](size_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>(state >> 33) % bound;
  };
  const size_t header = GgufEditor(models().File("nano.gguf")).DataOffset();
  for (int i = 0; i < 150; ++i) {
    std::string bytes = good;
    const size_t at = random(i % 2 == 0 ? 1000 : header);
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random(8)));
    WriteFile("bad.gguf", bytes);
    const LoadResult result = client().Load("bad.gguf");
    ASSERT_TRUE(worker().Running()) << "byte " << at;
    if (result.loaded) {
      ASSERT_TRUE(client().Unload(false).ok());
    } else {
      EXPECT_EQ(result.error.domain, "orcd") << result.error;
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectServes());
}

TEST_F(BadModelTest, ATemplateThatIsNoneRefusesChatAlone) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  GgufEditor file(models().File("nano.gguf"));
  file.Set("tokenizer.chat_template", kGgufString,
           StringBytes("{% for m in messages %}[INST]{{ m.content }}[/INST]"));
  file.Write(models().File("other-template.gguf"));
  GgufEditor without(models().File("nano.gguf"));
  without.Remove("tokenizer.chat_template");
  without.Write(models().File("no-template.gguf"));

  for (const char* name : {"other-template.gguf", "no-template.gguf"}) {
    SCOPED_TRACE(name);
    const LoadResult loaded = client().Load(name);
    ASSERT_TRUE(loaded.loaded) << loaded.error;
    EXPECT_FALSE(loaded.loaded->chat_supported());
    const Generation chat = client().Generate(ChatRequest("Hello", 5));
    EXPECT_TRUE(IsError(chat.error, StatusCode::FAILED_PRECONDITION, "CHAT_TEMPLATE_UNKNOWN"));
    EXPECT_TRUE(chat.error.has_precondition_failure);
    v1::TokenizeRequest tokenize;
    *tokenize.mutable_chat() = ChatRequest("Hello", 5).chat();
    std::vector<uint32_t> ids;
    EXPECT_TRUE(IsError(client().Tokenize(tokenize, &ids), StatusCode::FAILED_PRECONDITION,
                        "CHAT_TEMPLATE_UNKNOWN"));
    EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 5))));
    ASSERT_TRUE(client().Unload(false).ok());
  }
}

TEST_F(BadModelTest, WhatATemplateDoesWrongEndsItsOwnRequest) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  GgufEditor file(models().File("nano.gguf"));
  file.Set(
      "tokenizer.chat_template", kGgufString,
      StringBytes("{% set word = messages[0].content %}"
                  "{% if word == 'refuse' %}{{ raise_exception('No ' + word + '.') }}{% endif %}"
                  "{% if word == 'fail' %}{{ word + 1 }}{% endif %}"
                  "{% if word == 'loop' %}{% for a in range(90000) %}{% for b in range(90000) %}"
                  "{% endfor %}{% endfor %}{% endif %}{{ word }}"));
  file.Write(models().File("picky.gguf"));
  ASSERT_TRUE(client().Load("picky.gguf").loaded);
  const auto chat = [&](const char* word) { return client().Generate(ChatRequest(word, 2)).error; };
  const RpcError refused = chat("refuse");
  EXPECT_TRUE(IsError(refused, StatusCode::INVALID_ARGUMENT, "CHAT_TEMPLATE_REFUSED"));
  EXPECT_THAT(refused.message, ::testing::HasSubstr("No refuse."));
  EXPECT_TRUE(IsError(chat("fail"), StatusCode::INVALID_ARGUMENT, "CHAT_TEMPLATE_FAILED"));
  EXPECT_TRUE(IsError(chat("loop"), StatusCode::INVALID_ARGUMENT, "CHAT_TEMPLATE_LIMIT"));
  v1::GenerateRequest own = ChatRequest("Hello", 2);
  own.mutable_chat()->set_chat_template("x");
  EXPECT_TRUE(IsError(client().Generate(own).error, StatusCode::INVALID_ARGUMENT,
                      "CHAT_TEMPLATE_NOT_ALLOWED"));
  EXPECT_TRUE(IsComplete(client().Generate(ChatRequest("Hello", 2))));
}

TEST_F(BadModelTest, PathsOutOfTheModelDirectoryAreRefused) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  TempDir elsewhere;
  std::filesystem::copy_file(models().File("nano.gguf"), elsewhere.File("secret.gguf"));
  std::filesystem::create_symlink(elsewhere.File("secret.gguf"), models().File("link.gguf"));
  std::filesystem::create_directory_symlink(elsewhere.path(), models().File("link-dir"));
  std::filesystem::create_directory(models().File("dir.gguf"));
  const std::string climb =
      absl::StrCat("../", elsewhere.path().filename().string(), "/secret.gguf");
  const std::string nul("nano.gguf\0.gguf", 15);
  for (const std::string& path :
       {climb, "dir.gguf/../" + climb, elsewhere.File("secret.gguf"), models().File("nano.gguf"),
        std::string("link.gguf"), std::string("link-dir/secret.gguf"), std::string("dir.gguf"),
        std::string("."), std::string(".."), std::string("/"), nul}) {
    SCOPED_TRACE(path);
    const LoadResult result = client().Load(path);
    EXPECT_TRUE(
        IsError(result.error, StatusCode::INVALID_ARGUMENT, "MODEL_PATH_NOT_ALLOWED", "model"));
    EXPECT_THAT(result.error.message, Not(HasSubstr("secret-content")));
  }
  const LoadResult empty = client().Load("");
  EXPECT_TRUE(IsError(empty.error, StatusCode::INVALID_ARGUMENT, "", "model"));

  const LoadResult missing = client().Load("missing.gguf");
  EXPECT_TRUE(IsError(missing.error, StatusCode::NOT_FOUND, "MODEL_NOT_FOUND"));
  EXPECT_TRUE(missing.error.has_resource_info);
  EXPECT_THAT(missing.error.message, HasSubstr("missing.gguf"));
  EXPECT_THAT(missing.error.message, HasSubstr("nano.gguf")) << "what there is";
  ASSERT_NO_FATAL_FAILURE(ExpectServes());

  // A symbolic link to a file inside the directory, and a file in a subfolder, are allowed.
  std::filesystem::create_directory(models().File("folder"));
  std::filesystem::copy_file(models().File("nano.gguf"), models().File("folder/nano.gguf"));
  std::filesystem::create_symlink("folder/nano.gguf", models().File("inside.gguf"));
  for (const char* path : {"folder/nano.gguf", "inside.gguf"}) {
    EXPECT_TRUE(client().Load(path).loaded) << path;
    ASSERT_TRUE(client().Unload(false).ok());
  }
}

TEST_F(BadModelTest, WrongSha256IsRefused) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  v1::LoadRequest request;
  request.set_model("nano.gguf");
  request.set_sha256(std::string(64, 'a'));
  const LoadResult wrong = client().Load(request);
  EXPECT_FALSE(wrong.loaded);
  EXPECT_FALSE(wrong.error.ok());
  EXPECT_EQ(wrong.error.domain, "orcd");
  EXPECT_THAT(wrong.error.message, HasSubstr(std::string(64, 'a')));
  for (const std::string& malformed : {std::string("abc"), std::string(64, 'x')}) {
    request.set_sha256(malformed);
    EXPECT_TRUE(IsError(client().Load(request).error, StatusCode::INVALID_ARGUMENT, "", "sha256"));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectServes());
}

// The file is removed or cut short while the worker reads it. The worker survives at whatever point
// that happens, and never treats bytes that it did not read as weights.
TEST_F(BadModelTest, FileThatGoesDuringLoad) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  const std::string path = models().File("going.gguf");
  for (const bool cut : {false, true}) {
    SCOPED_TRACE(cut ? "cut short" : "removed");
    WriteSlowToLoadModel(path);
    v1::LoadRequest request;
    request.set_model("going.gguf");
    bool gone = false;
    const LoadResult result = client().Load(request, absl::Seconds(120),
                                            [&](grpc::ClientContext&, const v1::LoadProgress&) {
                                              if (gone) return;
                                              gone = true;
                                              if (cut) {
                                                ASSERT_EQ(::truncate(path.c_str(), 1 << 20), 0);
                                              } else {
                                                ASSERT_TRUE(std::filesystem::remove(path));
                                              }
                                            });
    ASSERT_TRUE(worker().Running());
    ASSERT_TRUE(gone);
    EXPECT_FALSE(result.loaded);
    // If the file went before the worker opened it, the error is the one for such a file.
    EXPECT_TRUE(IsError(result.error, StatusCode::DATA_LOSS, "FILE_CHANGED") ||
                IsError(result.error, cut ? StatusCode::INVALID_ARGUMENT : StatusCode::NOT_FOUND))
        << result.error;
    EXPECT_THAT(result.error.message, HasSubstr("going.gguf"));
    ASSERT_NO_FATAL_FAILURE(ExpectServes());
  }
}

// A file is cut short under a loaded model. The worker never answers from weights that are gone: it
// ends with the exit code of a fault, so that its supervisor starts another.
TEST_F(BadModelTest, FileThatIsCutWhileServing) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  std::filesystem::copy_file(models().File("nano.gguf"), models().File("cut.gguf"));
  ASSERT_TRUE(client().Load("cut.gguf").loaded);
  v1::GenerateRequest request = TextRequest("Hello", 30);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_ignore_eog(true);
  ASSERT_TRUE(IsComplete(client().Generate(request)));
  ASSERT_EQ(::truncate(models().File("cut.gguf").c_str(), 4096), 0);
  const Generation after = client().Generate(request);
  EXPECT_TRUE(IsError(after.error, StatusCode::INTERNAL, "BACKEND_FAULT"));
  EXPECT_THAT(after.error.message, HasSubstr("cut.gguf"));
  EXPECT_TRUE(after.ids.empty());
  const absl::StatusOr<ProcessEnd> end = worker().WaitForEnd(Bound(absl::Seconds(10)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, kFaultExitCode);
}

}  // namespace
}  // namespace orcd::testing
