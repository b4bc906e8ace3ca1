#include "testing/random_model/random_model.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/gguf_reader.h"
#include "testing/files.h"
#include "testing/random_model/model_shapes.h"
#include "testing/random_model/vocabulary.h"
#include "testing/test_name.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

std::string TestPath(const std::string& name) {
  return ::testing::TempDir() + "/random_model_test." + std::to_string(getpid()) + "." + name;
}

std::unique_ptr<GgufReader> WriteAndOpen(const RandomModelOptions& options,
                                         const std::string& name) {
  const auto path = WriteRandomModel(options, TestPath(name));
  EXPECT_TRUE(path.ok()) << path.status();
  auto gguf = GgufReader::Open(*path);
  EXPECT_TRUE(gguf.ok()) << gguf.status();
  return *std::move(gguf);
}

class EveryTypeTest : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryTypeTest, WeightsAreFiniteAndOfTheRightSize) {
  const auto gguf = WriteAndOpen({.type = GetParam()}, GetParam() + ".gguf");
  EXPECT_EQ(gguf->tensors().size(), 27u);
  for (const TensorView& tensor : gguf->tensors()) {
    std::vector<float> weights(tensor.element_count());
    Dequantize(tensor.type, tensor.data.data(), weights.size(), weights.data());
    double sum = 0;
    double squares = 0;
    for (float weight : weights) {
      ASSERT_TRUE(std::isfinite(weight)) << tensor.name;
      sum += weight;
      squares += double{weight} * weight;
    }
    if (tensor.n_dims < 2) {
      EXPECT_EQ(tensor.type, TensorType::kF32);
      continue;
    }
    const double unit = 1 / std::sqrt(static_cast<double>(tensor.row_length()));
    EXPECT_NEAR(std::sqrt(squares / weights.size()) / unit, 1, 0.08) << tensor.name;
    EXPECT_NEAR(sum / weights.size() / unit, 0, 0.02) << tensor.name;
  }
}

std::vector<std::string> TypeNames() {
  std::vector<std::string> names;
  for (const FileType& type : AllFileTypes()) names.emplace_back(type.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(RandomModelTest, EveryTypeTest, ::testing::ValuesIn(TypeNames()),
                         [](const auto& info) { return info.param; });

TEST(RandomModelTest, TheSameSeedGivesTheSameBytesWhateverTheThreads) {
  const RandomModelOptions one = {.type = "Q4_K_M", .seed = 7, .threads = 1};
  RandomModelOptions many = one;
  many.threads = 5;
  RandomModelOptions other = one;
  other.seed = 8;
  ASSERT_TRUE(WriteRandomModel(one, TestPath("one")).ok());
  ASSERT_TRUE(WriteRandomModel(many, TestPath("many")).ok());
  ASSERT_TRUE(WriteRandomModel(other, TestPath("other")).ok());
  EXPECT_EQ(ReadFile(TestPath("one")), ReadFile(TestPath("many")));
  EXPECT_NE(ReadFile(TestPath("one")), ReadFile(TestPath("other")));
}

TEST(RandomModelTest, HasTheMetadataOfARealOne) {
  const auto gguf = WriteAndOpen({}, "metadata");
  EXPECT_EQ(*gguf->GetString("general.architecture"), "qwen2");
  EXPECT_EQ(*gguf->GetU32("qwen2.block_count"), 2u);
  EXPECT_EQ(*gguf->GetU32("qwen2.embedding_length"), 256u);
  EXPECT_EQ(*gguf->GetU32("qwen2.feed_forward_length"), 768u);
  EXPECT_EQ(*gguf->GetU32("qwen2.attention.head_count"), 4u);
  EXPECT_EQ(*gguf->GetU32("qwen2.attention.head_count_kv"), 2u);
  EXPECT_EQ(*gguf->GetU32("qwen2.context_length"), 32'768u);
  EXPECT_EQ(*gguf->GetF32("qwen2.rope.freq_base"), 1e6f);
  EXPECT_EQ(*gguf->GetF32("qwen2.attention.layer_norm_rms_epsilon"), 1e-6f);
  EXPECT_EQ(*gguf->GetString("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(*gguf->GetString("tokenizer.ggml.pre"), "qwen2");
  EXPECT_THAT(std::string(*gguf->GetString("tokenizer.chat_template")),
              HasSubstr("You are Qwen, created by Alibaba Cloud."));
  const auto tokens = *gguf->GetStrings("tokenizer.ggml.tokens");
  EXPECT_EQ(tokens.size(), 1024u);
  EXPECT_EQ(tokens[*gguf->GetU32("tokenizer.ggml.eos_token_id")], "<|im_end|>");
  EXPECT_EQ(tokens[*gguf->GetU32("tokenizer.ggml.bos_token_id")], "<|endoftext|>");
  EXPECT_EQ(gguf->FindTensor("output.weight")->row_count(), 1024u);
  // Biases of queries and keys have outliers, as in real models.
  const TensorView* bias = gguf->FindTensor("blk.0.attn_q.bias");
  const auto* values = reinterpret_cast<const float*>(bias->data.data());
  EXPECT_GE(*std::max_element(values, values + 256,
                              [](float a, float b) { return std::abs(a) < std::abs(b); }),
            10.0f);
}

std::set<std::string> Join(const std::vector<std::set<std::string>>& parts) {
  std::set<std::string> names;
  for (const std::set<std::string>& part : parts) names.insert(part.begin(), part.end());
  return names;
}

// Names of layer 0 and of the whole model, as llama.cpp's converter writes them.
const std::map<std::string, std::set<std::string>>& TensorsOfArchitectures() {
  static const auto* const all = [] {
    const std::set<std::string> rest = {"attn_output.weight"};
    const std::set<std::string> split = {"attn_q.weight", "attn_k.weight", "attn_v.weight"};
    const std::set<std::string> fused = {"ffn_down.weight", "ffn_up.weight"};
    const std::set<std::string> gate = {"ffn_down.weight", "ffn_gate.weight", "ffn_up.weight"};
    const std::set<std::string> experts = {"ffn_gate_inp.weight", "ffn_gate_exps.weight",
                                           "ffn_up_exps.weight", "ffn_down_exps.weight"};
    const std::set<std::string> shared = {"ffn_gate_shexp.weight", "ffn_up_shexp.weight",
                                          "ffn_down_shexp.weight"};
    const std::set<std::string> biases = {"attn_q.bias", "attn_k.bias", "attn_v.bias"};
    const std::set<std::string> pre = {"attn_norm.weight", "ffn_norm.weight"};
    const std::set<std::string> pre_as_post = {"attn_norm.weight", "post_attention_norm.weight"};
    const std::set<std::string> post = {"post_attention_norm.weight", "post_ffw_norm.weight"};
    const std::set<std::string> qk = {"attn_q_norm.weight", "attn_k_norm.weight"};
    const std::set<std::string> shared_router = {"ffn_gate_inp_shexp.weight"};
    const std::set<std::string> delta = {"attn_qkv.weight",   "attn_gate.weight", "ssm_a",
                                         "ssm_conv1d.weight", "ssm_dt.bias",      "ssm_norm.weight",
                                         "ssm_out.weight"};
    const std::set<std::string> factors = {"ssm_alpha.weight", "ssm_beta.weight"};
    const auto join = [&](std::vector<std::set<std::string>> parts) {
      parts.push_back(rest);
      return Join(parts);
    };
    return new std::map<std::string, std::set<std::string>>{
        {"qwen2", join({split, gate, biases, pre})},
        {"llama", join({split, gate, pre, {"rope_freqs.weight"}})},
        {"qwen2moe", join({split, biases, pre, experts, shared, {"ffn_gate_inp_shexp.weight"}})},
        {"qwen3", join({split, gate, pre, qk})},
        {"qwen3moe", join({split, pre, qk, experts})},
        {"qwen35", Join({delta, factors, gate, pre_as_post})},
        {"qwen35moe", Join({delta, factors, pre_as_post, experts, shared, shared_router})},
        {"qwen3next",
         Join({delta, {"ssm_ba.weight"}, pre_as_post, experts, shared, shared_router})},
        {"qwen3vl", join({split, gate, pre, qk})},
        {"mistral3", join({split, gate, pre})},
        {"gemma2", join({split, gate, pre, post})},
        {"gemma3", join({split, gate, pre, post, qk})},
        {"phi3", join({{"attn_qkv.weight", "rope_factors_long.weight", "rope_factors_short.weight"},
                       fused,
                       pre})},
        {"granite", join({split, gate, pre})},
        {"granitemoe", join({split, pre, experts, shared})},
        {"olmo2", join({split, gate, post, qk})},
        {"glm4", join({split, fused, biases, pre, post})},
        {"glm4moe", join({split, gate, biases, pre_as_post})},
        {"gpt-oss", join({split,
                          biases,
                          pre_as_post,
                          experts,
                          {"attn_output.bias", "attn_sinks.weight", "ffn_gate_inp.bias",
                           "ffn_gate_exps.bias", "ffn_up_exps.bias", "ffn_down_exps.bias"}})},
        {"seed_oss", join({split, gate, biases, pre_as_post})},
        {"smollm3", join({split, gate, pre})},
        {"cohere2", join({split, gate, {"attn_norm.weight"}})},
    };
  }();
  return *all;
}

class EveryArchitectureTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(RandomModelTest, EveryArchitectureTest,
                         ::testing::ValuesIn(ModelShapeArchitectures()),
                         [](const auto& info) { return TestNameOf(info.param); });

TEST_P(EveryArchitectureTest, HasTheTensorsAndSizesOfARealOne) {
  const std::string& architecture = GetParam();
  const RandomModelShape& shape = *FindModelShape(architecture, "nano");
  const auto gguf = WriteAndOpen({.architecture = architecture}, architecture + ".gguf");
  EXPECT_EQ(*gguf->GetString("general.architecture"), architecture);
  EXPECT_EQ(*gguf->GetU32(architecture + ".block_count"),
            static_cast<uint32_t>(shape.layers + shape.predict_layers));
  EXPECT_EQ(gguf->Find("qwen2.block_count") != nullptr, architecture == "qwen2");
  std::set<std::string> names;
  for (const TensorView& tensor : gguf->tensors()) {
    const std::string name(tensor.name);
    if (name.starts_with("blk.0.")) names.insert(name.substr(6));
    if (name.starts_with("rope")) names.insert(name);
  }
  EXPECT_EQ(names, TensorsOfArchitectures().at(architecture));
  EXPECT_EQ(gguf->FindTensor("output.weight") == nullptr, shape.tied);
  const auto rows = [&](const char* name) {
    const TensorView* tensor = gguf->FindTensor(name);
    return tensor == nullptr ? 0 : static_cast<int>(tensor->row_count());
  };
  const int q_size = shape.heads * shape.head_dim;
  const int kv_size = shape.kv_heads * shape.head_dim;
  if (shape.delta.key_heads > 0) {
    EXPECT_EQ(rows("blk.0.attn_qkv.weight"), 1024);
    EXPECT_EQ(rows("blk.0.ssm_conv1d.weight"), 1024);
    EXPECT_EQ(rows("blk.1.attn_q.weight"), 2 * q_size);
    EXPECT_EQ(rows("blk.1.attn_v.weight"), kv_size);
    EXPECT_EQ(rows("blk.2.ssm_out.weight"), shape.hidden);
  } else if (architecture == "phi3") {
    EXPECT_EQ(rows("blk.0.attn_qkv.weight"), q_size + 2 * kv_size);
  } else {
    EXPECT_EQ(rows("blk.0.attn_q.weight"), q_size);
    EXPECT_EQ(rows("blk.0.attn_v.weight"), kv_size);
  }
  if (const RandomExperts& experts = shape.experts; experts.count > 0) {
    EXPECT_EQ(*gguf->GetU32(architecture + ".expert_count"), 8u);
    EXPECT_EQ(*gguf->GetU32(architecture + ".expert_used_count"), 2u);
    EXPECT_EQ(rows("blk.1.ffn_up_exps.weight"), experts.count * experts.ffn);
    EXPECT_EQ(rows("blk.1.ffn_gate_inp.weight"), experts.count);
    EXPECT_EQ(rows("blk.1.ffn_up.weight"), 0);
    return;
  }
  const bool fused = architecture == "phi3" || architecture == "glm4";
  EXPECT_EQ(rows("blk.1.ffn_up.weight"), fused ? 2 * shape.ffn : shape.ffn);
}

TEST(RandomModelTest, MixtralsArchitectureIsLlama) {
  const auto gguf = WriteAndOpen({.architecture = "llama", .size = "nano-moe"}, "nano-moe.gguf");
  EXPECT_EQ(*gguf->GetString("general.architecture"), "llama");
  EXPECT_EQ(*gguf->GetU32("llama.expert_count"), 8u);
  EXPECT_EQ(gguf->FindTensor("blk.0.ffn_up_exps.weight")->ne,
            (std::array<uint64_t, 4>{256, 256, 8, 1}));
  EXPECT_EQ(gguf->FindTensor("blk.0.ffn_up.weight"), nullptr);
}

// Each expert has weights of its own, and all are finite and of the right size.
TEST(RandomModelTest, ExpertsDiffer) {
  const auto gguf = WriteAndOpen({.architecture = "gpt-oss", .type = "MXFP4"}, "gpt-oss.gguf");
  for (const char* name : {"blk.0.ffn_gate_exps.weight", "blk.1.ffn_down_exps.weight"}) {
    const TensorView& tensor = *gguf->FindTensor(name);
    EXPECT_EQ(tensor.type, TensorType::kMXFP4) << name;
    std::vector<float> weights(tensor.element_count());
    Dequantize(tensor.type, tensor.data.data(), weights.size(), weights.data());
    const size_t size = tensor.ne[0] * tensor.ne[1];
    for (size_t expert = 0; expert < tensor.ne[2]; ++expert) {
      const auto begin = weights.begin() + static_cast<std::ptrdiff_t>(expert * size);
      double squares = 0;
      for (size_t i = 0; i < size; ++i) squares += double{begin[i]} * begin[i];
      EXPECT_NEAR(std::sqrt(squares / size * tensor.ne[0]), 1, 0.08) << name << " " << expert;
      EXPECT_EQ(std::equal(begin, begin + 100, weights.begin()), expert == 0) << expert;
    }
  }
  EXPECT_EQ(gguf->FindTensor("blk.0.attn_q.weight")->type, TensorType::kQ8_0);
  EXPECT_EQ(gguf->FindTensor("blk.0.ffn_gate_inp.weight")->type, TensorType::kF32);
  EXPECT_EQ(gguf->FindTensor("blk.0.ffn_gate_exps.bias")->ne,
            (std::array<uint64_t, 4>{256, 8, 1, 1}));
}

TEST(RandomModelTest, Glm4MoeHasALayerThatPredictsFurtherTokens) {
  const auto gguf = WriteAndOpen({.architecture = "glm4moe"}, "glm4moe.gguf");
  EXPECT_EQ(*gguf->GetU32("glm4moe.nextn_predict_layers"), 1u);
  EXPECT_EQ(gguf->FindTensor("blk.0.ffn_gate_inp.weight"), nullptr);
  for (const char* name :
       {"blk.1.exp_probs_b.bias", "blk.2.ffn_down_shexp.weight", "blk.3.nextn.eh_proj.weight",
        "blk.3.nextn.enorm.weight", "blk.3.nextn.hnorm.weight",
        "blk.3.nextn.shared_head_norm.weight", "blk.3.ffn_down_exps.weight"}) {
    EXPECT_NE(gguf->FindTensor(name), nullptr) << name;
  }
}

TEST(RandomModelTest, LayersThatPredictFurtherTokensHaveAttention) {
  const auto gguf = WriteAndOpen({.architecture = "qwen35"}, "qwen35.gguf");
  EXPECT_EQ(*gguf->GetU32("qwen35.nextn_predict_layers"), 1u);
  EXPECT_NE(gguf->FindTensor("blk.2.ssm_a"), nullptr);
  for (const char* name : {"blk.3.attn_q.weight", "blk.3.nextn.eh_proj.weight"}) {
    EXPECT_NE(gguf->FindTensor(name), nullptr) << name;
  }
}

TEST(RandomModelTest, ThereMayBeOtherNumbersOfLayersThatPredict) {
  const auto none = WriteAndOpen({.architecture = "qwen35", .predict_layers = 0}, "none.gguf");
  EXPECT_EQ(none->Find("qwen35.nextn_predict_layers"), nullptr);
  EXPECT_EQ(none->FindTensor("blk.3.attn_q.weight"), nullptr);
  const auto one = WriteAndOpen({.architecture = "qwen35moe", .predict_layers = 1}, "one.gguf");
  EXPECT_EQ(*one->GetU32("qwen35moe.nextn_predict_layers"), 1u);
  EXPECT_NE(one->FindTensor("blk.3.nextn.eh_proj.weight"), nullptr);
  const auto refused =
      WriteRandomModel({.predict_layers = 1}, ::testing::TempDir() + "refused.gguf");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(EveryArchitectureTest, PublishedSizesAreMultiplesOfBlocks) {
  for (const RandomModelShape& shape : AllModelShapes()) {
    if (shape.architecture != GetParam()) continue;
    EXPECT_EQ(shape.heads % shape.kv_heads, 0) << shape.size;
    EXPECT_EQ(shape.hidden % 32, 0) << shape.size;
    EXPECT_EQ(shape.ffn % 32, 0) << shape.size;
    EXPECT_EQ(shape.experts.ffn % 32, 0) << shape.size;
    EXPECT_LE(shape.experts.used, shape.experts.count) << shape.size;
    EXPECT_LE(shape.rope_dims, shape.head_dim) << shape.size;
    EXPECT_LE(shape.window, shape.context) << shape.size;
  }
}

// Llama 3.1's own numbers, of its rope_freqs.weight.
TEST(RandomModelTest, FactorsOfRopeAreLlamas) {
  const auto gguf = WriteAndOpen({.architecture = "llama", .size = "1b", .layers = 1}, "llama-1b");
  const TensorView* tensor = gguf->FindTensor("rope_freqs.weight");
  ASSERT_NE(tensor, nullptr);
  ASSERT_EQ(tensor->element_count(), 32u);
  const auto* factors = reinterpret_cast<const float*>(tensor->data.data());
  EXPECT_EQ(factors[0], 1);
  EXPECT_EQ(factors[14], 1);
  EXPECT_GT(factors[16], 1);
  EXPECT_LT(factors[16], 32);
  EXPECT_EQ(factors[31], 32);
}

TEST(RandomModelTest, OptionsStandInsteadOfTheSizes) {
  const auto gguf = WriteAndOpen({.tied = true, .context_length = 64, .chat_template = ""}, "tied");
  EXPECT_EQ(gguf->FindTensor("output.weight"), nullptr);
  EXPECT_EQ(gguf->tensors().size(), 26u);
  EXPECT_EQ(*gguf->GetU32("qwen2.context_length"), 64u);
  EXPECT_EQ(gguf->Find("tokenizer.chat_template"), nullptr);
}

TEST(RandomModelTest, SplitsHoldTheSameTensors) {
  const auto whole = WriteAndOpen({}, "whole.gguf");
  for (int parts : {2, 3, 27}) {
    const auto split = WriteAndOpen({.split = parts}, "parts.gguf");
    EXPECT_EQ(split->files().size(), static_cast<size_t>(parts));
    ASSERT_EQ(split->tensors().size(), whole->tensors().size());
    for (size_t i = 0; i < whole->tensors().size(); ++i) {
      const TensorView& a = whole->tensors()[i];
      const TensorView& b = split->tensors()[i];
      EXPECT_EQ(a.name, b.name);
      EXPECT_TRUE(std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end()));
    }
  }
  // The parts are even enough that none is needlessly large.
  const auto halves = WriteAndOpen({.split = 2}, "halves.gguf");
  EXPECT_LT(halves->files()[0].bytes().size(), whole->total_bytes() * 2 / 3);
  EXPECT_LT(halves->files()[1].bytes().size(), whole->total_bytes() * 2 / 3);
}

TEST(RandomModelTest, TakesTheVocabularyOfAnotherFile) {
  ASSERT_TRUE(WriteRandomModel({.chat_template = "{{ own }}"}, TestPath("source")).ok());
  const auto same = WriteAndOpen({.type = "F16", .vocab_from = TestPath("source")}, "same");
  EXPECT_EQ(*same->GetString("tokenizer.chat_template"), "{{ own }}");
  EXPECT_EQ(same->FindTensor("token_embd.weight")->row_count(), 1024u);

  const auto padded = ReadVocabulary(TestPath("source"), 1030);
  ASSERT_TRUE(padded.ok()) << padded.status();
  EXPECT_EQ(padded->tokens.size(), 1030u);
  EXPECT_EQ(padded->tokens[1029], "[PAD1029]");
  EXPECT_EQ(padded->types[1023], 3);
  EXPECT_EQ(padded->types[1029], 5);
  EXPECT_EQ(ReadVocabulary(TestPath("nothing"), 1).status().code(), absl::StatusCode::kNotFound);
}

TEST(RandomModelTest, RefusesWhatThereIsNot) {
  const auto architecture = WriteRandomModel({.architecture = "bert"}, TestPath("no"));
  EXPECT_EQ(architecture.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(architecture.status().message()), HasSubstr("qwen2, llama, qwen2moe"));
  const auto size = WriteRandomModel({.size = "8b"}, TestPath("no"));
  EXPECT_EQ(size.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(size.status().message()), HasSubstr("nano, 0.5b"));
  const auto type = WriteRandomModel({.type = "Q4_K"}, TestPath("no"));
  EXPECT_THAT(std::string(type.status().message()), HasSubstr("Q4_K_M"));
  for (int split : {0, 28}) {
    EXPECT_EQ(GetErrorDetails(WriteRandomModel({.split = split}, TestPath("no")).status()).field,
              "split");
  }
  EXPECT_FALSE(std::filesystem::exists(TestPath("no")));
}

void ExpectSound(const TokenizerMetadata& vocabulary, size_t size) {
  ASSERT_EQ(vocabulary.tokens.size(), size);
  ASSERT_EQ(vocabulary.types.size(), size);
  const std::set<std::string> tokens(vocabulary.tokens.begin(), vocabulary.tokens.end());
  EXPECT_EQ(tokens.size(), size);
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ');
    ASSERT_NE(space, std::string::npos);
    ASSERT_TRUE(tokens.contains(merge.substr(0, space))) << merge;
    ASSERT_TRUE(tokens.contains(merge.substr(space + 1))) << merge;
    ASSERT_TRUE(tokens.contains(merge.substr(0, space) + merge.substr(space + 1))) << merge;
  }
}

TEST(VocabularyTest, SmallOneHasItsSpecialTokensAtTheEnd) {
  const TokenizerMetadata vocabulary = MakeVocabulary(1024);
  ExpectSound(vocabulary, 1024);
  EXPECT_EQ(vocabulary.merges.size(), 1024u - 256 - 22);
  EXPECT_EQ(vocabulary.tokens[0], "!");
  EXPECT_EQ(vocabulary.tokens[220], "Ġ");
  EXPECT_EQ(vocabulary.tokens[1002], "<|endoftext|>");
  EXPECT_EQ(vocabulary.tokens[1023], "<|file_sep|>");
  EXPECT_EQ(vocabulary.eos, 1004u);
  EXPECT_THAT(vocabulary.tokens, ::testing::Contains("Ġthe"));
}

TEST(VocabularyTest, LargeOneHasThemWhereQwen2HasThem) {
  const TokenizerMetadata vocabulary = MakeVocabulary(152'064);
  ExpectSound(vocabulary, 152'064);
  EXPECT_EQ(vocabulary.merges.size(), 151'387u);
  EXPECT_EQ(vocabulary.tokens[151'643], "<|endoftext|>");
  EXPECT_EQ(vocabulary.tokens[151'645], "<|im_end|>");
  EXPECT_EQ(vocabulary.eos, 151'645u);
  EXPECT_EQ(vocabulary.types[151'645], 3);
  EXPECT_EQ(vocabulary.tokens[151'657], "<tool_call>");
  EXPECT_EQ(vocabulary.types[151'657], 4);
  EXPECT_EQ(vocabulary.tokens[151'664], "<|file_sep|>");
  EXPECT_EQ(vocabulary.tokens[151'665], "[PAD151665]");
  EXPECT_EQ(vocabulary.types[151'665], 5);
}

TensorType Choose(const char* file_type, const char* size, MatrixRole role, int layer) {
  const RandomModelShape& shape = *FindModelShape("qwen2", size);
  const int cols = role == MatrixRole::kFfnDown ? shape.ffn : shape.hidden;
  return ChooseTensorType(*FindFileType(file_type), shape, role, layer, cols);
}

TEST(ChooseTensorTypeTest, Q4_K_MOf7B) {
  EXPECT_EQ(Choose("Q4_K_M", "7b", MatrixRole::kTokenEmbd, 0), TensorType::kQ4_K);
  EXPECT_EQ(Choose("Q4_K_M", "7b", MatrixRole::kOutput, 0), TensorType::kQ6_K);
  EXPECT_EQ(Choose("Q4_K_M", "7b", MatrixRole::kAttnQ, 0), TensorType::kQ4_K);
  // Layers 0 to 2 of 28, then every third, and 24 to 27.
  const std::set<int> more = {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27};
  for (int layer = 0; layer < 28; ++layer) {
    const TensorType type = more.contains(layer) ? TensorType::kQ6_K : TensorType::kQ4_K;
    EXPECT_EQ(Choose("Q4_K_M", "7b", MatrixRole::kAttnV, layer), type) << layer;
    EXPECT_EQ(Choose("Q4_K_M", "7b", MatrixRole::kFfnDown, layer), type) << layer;
  }
}

// As in the published 0.5B file: a row of 896 weights is not a whole number of blocks of 256.
TEST(ChooseTensorTypeTest, Q4_K_MOfTheSmallestFallsBack) {
  EXPECT_EQ(Choose("Q4_K_M", "0.5b", MatrixRole::kTokenEmbd, 0), TensorType::kQ8_0);
  EXPECT_EQ(Choose("Q4_K_M", "0.5b", MatrixRole::kAttnQ, 0), TensorType::kQ5_0);
  EXPECT_EQ(Choose("Q4_K_M", "0.5b", MatrixRole::kAttnV, 0), TensorType::kQ8_0);
  EXPECT_EQ(Choose("Q4_K_M", "0.5b", MatrixRole::kAttnV, 3), TensorType::kQ5_0);
  EXPECT_EQ(Choose("Q4_K_M", "0.5b", MatrixRole::kFfnDown, 0), TensorType::kQ6_K);
  EXPECT_EQ(Choose("Q4_K_M", "0.5b", MatrixRole::kFfnDown, 3), TensorType::kQ4_K);
  EXPECT_EQ(Choose("Q2_K", "0.5b", MatrixRole::kAttnQ, 0), TensorType::kQ4_0);
  EXPECT_EQ(Choose("Q5_K_M", "0.5b", MatrixRole::kAttnQ, 0), TensorType::kQ5_1);
}

TensorType ChooseOf(const char* architecture, const char* size, const char* file_type,
                    MatrixRole role, int cols) {
  return ChooseTensorType(*FindFileType(file_type), *FindModelShape(architecture, size), role, 9,
                          cols);
}

TEST(ChooseTensorTypeTest, OfExperts) {
  const auto gpt_oss = [](const char* type, MatrixRole role) {
    return ChooseOf("gpt-oss", "20b", type, role, 2880);
  };
  EXPECT_EQ(gpt_oss("MXFP4", MatrixRole::kExpertGate), TensorType::kMXFP4);
  EXPECT_EQ(gpt_oss("MXFP4", MatrixRole::kExpertDown), TensorType::kMXFP4);
  EXPECT_EQ(gpt_oss("MXFP4", MatrixRole::kAttnQ), TensorType::kQ8_0);
  EXPECT_EQ(gpt_oss("MXFP4", MatrixRole::kOutput), TensorType::kQ8_0);
  EXPECT_EQ(gpt_oss("MXFP4", MatrixRole::kRouter), TensorType::kF32);
  EXPECT_EQ(gpt_oss("F16", MatrixRole::kRouter), TensorType::kF32);
  // 2880 is no multiple of 256.
  EXPECT_EQ(gpt_oss("Q4_K_M", MatrixRole::kExpertUp), TensorType::kQ5_0);
  const auto qwen3 = [](const char* type, MatrixRole role) {
    return ChooseOf("qwen3moe", "30b-a3b", type, role, 2048);
  };
  EXPECT_EQ(qwen3("Q4_K_M", MatrixRole::kExpertGate), TensorType::kQ4_K);
  EXPECT_EQ(qwen3("Q4_K_M", MatrixRole::kExpertDown), TensorType::kQ4_K);
  EXPECT_EQ(qwen3("Q4_K_M", MatrixRole::kAttnK), TensorType::kQ4_K);
  EXPECT_EQ(qwen3("IQ2_XS", MatrixRole::kAttnV), TensorType::kQ4_K);
  const auto mixtral = [](const char* type, MatrixRole role) {
    return ChooseOf("llama", "8x7b", type, role, 4096);
  };
  EXPECT_EQ(mixtral("Q4_K_M", MatrixRole::kAttnK), TensorType::kQ8_0);
  EXPECT_EQ(mixtral("Q4_K_M", MatrixRole::kAttnV), TensorType::kQ8_0);
  EXPECT_EQ(mixtral("Q4_K_M", MatrixRole::kAttnQ), TensorType::kQ4_K);
  EXPECT_EQ(mixtral("Q4_K_M", MatrixRole::kAttnOutput), TensorType::kQ5_K);
  EXPECT_EQ(mixtral("Q5_K_M", MatrixRole::kAttnOutput), TensorType::kQ5_K);
  EXPECT_EQ(mixtral("Q8_0", MatrixRole::kAttnOutput), TensorType::kQ8_0);
  EXPECT_EQ(mixtral("IQ1_S", MatrixRole::kAttnK), TensorType::kQ4_K);
  EXPECT_EQ(mixtral("IQ1_S", MatrixRole::kAttnOutput), TensorType::kQ5_K);
}

TEST(ChooseTensorTypeTest, OtherMixtures) {
  EXPECT_EQ(Choose("Q2_K", "7b", MatrixRole::kFfnDown, 9), TensorType::kQ3_K);
  EXPECT_EQ(Choose("Q2_K", "7b", MatrixRole::kAttnV, 9), TensorType::kQ4_K);
  EXPECT_EQ(Choose("Q2_K", "nano", MatrixRole::kAttnV, 1), TensorType::kQ3_K);
  EXPECT_EQ(Choose("Q3_K_M", "7b", MatrixRole::kFfnDown, 0), TensorType::kQ5_K);
  EXPECT_EQ(Choose("Q3_K_M", "7b", MatrixRole::kFfnDown, 1), TensorType::kQ4_K);
  EXPECT_EQ(Choose("Q3_K_M", "7b", MatrixRole::kAttnOutput, 1), TensorType::kQ4_K);
  EXPECT_EQ(Choose("Q4_K_M", "72b", MatrixRole::kAttnV, 10), TensorType::kQ5_K);
  EXPECT_EQ(Choose("Q4_K_M", "72b", MatrixRole::kFfnDown, 10), TensorType::kQ5_0);
  EXPECT_EQ(Choose("IQ4_NL", "7b", MatrixRole::kAttnV, 9), TensorType::kQ5_K);
  EXPECT_EQ(Choose("IQ4_NL", "7b", MatrixRole::kFfnDown, 2), TensorType::kQ5_K);
  EXPECT_EQ(Choose("IQ4_NL", "7b", MatrixRole::kFfnDown, 3), TensorType::kIQ4_NL);
  EXPECT_EQ(Choose("IQ4_XS", "7b", MatrixRole::kAttnV, 9), TensorType::kQ5_K);
  EXPECT_EQ(Choose("IQ4_XS", "7b", MatrixRole::kFfnDown, 3), TensorType::kIQ4_XS);
  EXPECT_EQ(Choose("IQ4_XS", "0.5b", MatrixRole::kAttnQ, 3), TensorType::kIQ4_NL);
  EXPECT_EQ(Choose("IQ3_XXS", "7b", MatrixRole::kAttnQ, 3), TensorType::kIQ2_S);
  EXPECT_EQ(Choose("IQ3_XXS", "7b", MatrixRole::kFfnDown, 3), TensorType::kQ3_K);
  EXPECT_EQ(Choose("IQ2_M", "7b", MatrixRole::kAttnOutput, 3), TensorType::kIQ3_S);
  EXPECT_EQ(Choose("IQ2_XXS", "7b", MatrixRole::kTokenEmbd, 0), TensorType::kQ2_K);
  EXPECT_EQ(Choose("IQ2_XXS", "7b", MatrixRole::kFfnDown, 3), TensorType::kIQ2_XXS);
  EXPECT_EQ(Choose("IQ1_S", "7b", MatrixRole::kOutput, 0), TensorType::kQ5_K);
  EXPECT_EQ(Choose("Q4_0", "7b", MatrixRole::kOutput, 0), TensorType::kQ6_K);
  EXPECT_EQ(Choose("Q8_0", "7b", MatrixRole::kOutput, 0), TensorType::kQ8_0);
  EXPECT_EQ(Choose("F16", "7b", MatrixRole::kOutput, 0), TensorType::kF16);
  EXPECT_EQ(Choose("Q4_K_M", "7b", MatrixRole::kAttnQkv, 0), TensorType::kQ5_K);
  EXPECT_EQ(Choose("Q3_K_M", "7b", MatrixRole::kAttnQkv, 0), TensorType::kQ4_K);
}

}  // namespace
}  // namespace orcd
