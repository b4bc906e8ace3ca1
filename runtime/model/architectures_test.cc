#include "runtime/model/architectures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "testing/test_model.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<ModelSpec> SpecOf(TestModel model) {
  TempDir dir;
  // The spec is read from metadata alone.
  model.tensors.clear();
  const std::string path = dir.File("model.gguf");
  model.Write(path);
  ORCD_ASSIGN_OR_RETURN(const auto gguf, GgufReader::Open(path));
  return ReadModelSpec(*gguf);
}

TEST(ModelSpecTest, ReadsEveryKey) {
  const auto spec = SpecOf(TestModel::Valid());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->architecture, "qwen2");
  EXPECT_EQ(spec->name, "tiny");
  EXPECT_EQ(spec->num_layers(), 2);
  EXPECT_EQ(spec->hidden, 64);
  EXPECT_EQ(spec->layers[0].heads, 4);
  EXPECT_EQ(spec->layers[0].kv_heads, 2);
  EXPECT_EQ(spec->layers[0].head_dim, 16);
  EXPECT_EQ(spec->layers[0].ffn, 256);
  EXPECT_EQ(spec->vocab, 260);
  EXPECT_EQ(spec->context_length, 512);
  EXPECT_EQ(spec->norm_eps, 1e-6f);
  EXPECT_EQ(spec->layers[0].rope.base, 1e6f);
  EXPECT_EQ(spec->layers[0].q_size(), 64);
  EXPECT_EQ(spec->layers[0].kv_size(), 32);
}

TEST(ModelSpecTest, OptionalKeysHaveDefaults) {
  TestModel model = TestModel::Valid();
  model.keys.erase("general.name");
  model.keys.erase("qwen2.attention.head_count_kv");
  const auto spec = SpecOf(model);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name, "");
  EXPECT_EQ(spec->layers[0].kv_heads, 4);
}

TEST(ModelSpecTest, KeyLengthOverridesTheSizeOfAHead) {
  TestModel model = TestModel::Valid();
  model.keys["qwen2.attention.key_length"] = uint32_t{24};
  model.keys["qwen2.attention.value_length"] = uint32_t{24};
  model.keys["qwen2.rope.dimension_count"] = uint32_t{24};
  // With these keys the hidden size need not be a multiple of the heads.
  model.keys["qwen2.embedding_length"] = uint32_t{66};
  const auto spec = SpecOf(model);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->layers[0].head_dim, 24);
  EXPECT_EQ(spec->layers[0].q_size(), 96);
}

struct Refusal {
  std::string name;
  std::function<void(TestModel&)> spoil;
  absl::StatusCode code;
  std::string reason;
  std::vector<std::string> message;
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class ModelSpecRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(ModelSpecRefusalTest, SaysWhatIsWrong) {
  TestModel model = TestModel::Valid();
  GetParam().spoil(model);
  const auto spec = SpecOf(model);
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().code(), GetParam().code) << spec.status();
  EXPECT_EQ(GetErrorDetails(spec.status()).reason, GetParam().reason);
  EXPECT_NE(GetErrorDetails(spec.status()).subject, "");
  for (const std::string& part : GetParam().message) {
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(part));
  }
}

std::vector<Refusal> Refusals() {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  std::vector<Refusal> refusals;
  const auto test_name = [](std::string key, const std::string& what) {
    for (char& c : key) c = c == '.' ? '_' : c;
    return key + "_" + what;
  };
  const auto missing = [&](std::string key) {
    refusals.push_back({test_name(key, "missing"),
                        [key](TestModel& m) { m.keys.erase(key); },
                        kInvalid,
                        "GGUF_KEY_MISSING",
                        {key, "missing"}});
  };
  const auto set = [&](std::string key, const std::string& what, TestModel::Value value,
                       absl::StatusCode code, const std::string& reason,
                       std::vector<std::string> message) {
    message.push_back(key);
    refusals.push_back({test_name(key, what), [key, value](TestModel& m) { m.keys[key] = value; },
                        code, reason, message});
  };

  // The reader itself knows the types of these keys.
  missing("general.architecture");
  missing("tokenizer.ggml.tokens");
  for (const char* key : {"qwen2.block_count", "qwen2.embedding_length", "qwen2.context_length",
                          "qwen2.attention.layer_norm_rms_epsilon"}) {
    missing(key);
    set(key, "type", std::vector<int32_t>{1}, kInvalid, "GGUF_KEY_TYPE", {"array of i32"});
  }
  // These may hold an array, with a number for each layer.
  for (const char* key : {"qwen2.feed_forward_length", "qwen2.attention.head_count"}) {
    missing(key);
    set(key, "type", "1", kInvalid, "GGUF_KEY_TYPE", {"string"});
  }
  for (const char* key :
       {"general.name", "qwen2.rope.freq_base", "qwen2.rope.scaling.type",
        "qwen2.rope.scaling.factor", "qwen2.attention.key_length", "qwen2.attention.causal"}) {
    set(key, "type", std::vector<int32_t>{1}, kInvalid, "GGUF_KEY_TYPE", {"array of i32"});
  }
  const struct {
    const char* key;
    int max;
  } sizes[] = {
      {"qwen2.block_count", kMaxLayers},           {"qwen2.embedding_length", kMaxHidden},
      {"qwen2.feed_forward_length", kMaxFfn},      {"qwen2.context_length", kMaxContextLength},
      {"qwen2.attention.head_count", kMaxHeads},   {"qwen2.attention.head_count_kv", kMaxHeads},
      {"qwen2.attention.key_length", kMaxHeadDim}, {"qwen2.attention.value_length", kMaxHeadDim},
      {"qwen2.rope.dimension_count", kMaxHeadDim}};
  for (const auto& [key, max] : sizes) {
    set(key, "zero", uint32_t{0}, kInvalid, "MODEL_INVALID", {"is 0", "from 1 to"});
    set(key, "negative", int32_t{-1}, kInvalid, "GGUF_KEY_RANGE", {"-1"});
    set(key, "huge", static_cast<uint32_t>(max) + 1, kInvalid, "MODEL_INVALID",
        {std::to_string(max + 1), std::to_string(max)});
    set(key, "top_bit", uint32_t{0x80000000}, kInvalid, "MODEL_INVALID", {"2147483648"});
  }
  set("general.architecture", "gemma", "gemma", kUnimplemented, "MODEL_UNSUPPORTED",
      {"\"gemma\" model", "runs cohere2", "llama (Llama 2 and 3"});
  refusals.back().message.pop_back();  // The key is the subject, not part of the message.
  set("general.architecture", "deepseek2", "deepseek2", kUnimplemented, "MODEL_UNSUPPORTED",
      {"\"deepseek2\" model"});
  refusals.back().message.pop_back();
  set("qwen2.attention.head_count_kv", "undivided", uint32_t{3}, kInvalid, "MODEL_INVALID",
      {"is 3", "divide", "which is 4"});
  set("qwen2.attention.head_count_kv", "more_than_heads", uint32_t{8}, kInvalid, "MODEL_INVALID",
      {"is 8", "which is 4"});
  refusals.push_back({"hidden_undivided",
                      [](TestModel& m) { m.keys["qwen2.embedding_length"] = uint32_t{66}; },
                      kInvalid,
                      "MODEL_INVALID",
                      {"qwen2.attention.head_count", "is 4", "66", "qwen2.attention.key_length"}});
  refusals.push_back({"head_odd",
                      [](TestModel& m) { m.keys["qwen2.embedding_length"] = uint32_t{60}; },
                      kInvalid,
                      "MODEL_INVALID",
                      {"15 dimensions", "even"}});
  refusals.push_back({"head_too_large",
                      [](TestModel& m) { m.keys["qwen2.embedding_length"] = uint32_t{8192}; },
                      kInvalid,
                      "MODEL_INVALID",
                      {"2048 dimensions", "at most 1024"}});
  set("qwen2.attention.key_length", "odd", uint32_t{17}, kInvalid, "MODEL_INVALID",
      {"17 dimensions", "even"});
  set("qwen2.attention.value_length", "other", uint32_t{32}, kUnimplemented, "MODEL_UNSUPPORTED",
      {"is 32", "16"});
  refusals.push_back({"rope_base_missing",
                      [](TestModel& m) { m.keys.erase("qwen2.rope.freq_base"); },
                      kInvalid,
                      "MODEL_INVALID",
                      {"qwen2.rope.freq_base", "missing", "10000", "1000000"}});
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {0.0f, 1.0f, -1e6f, kNan, kInfinity, 1e30f}) {
    set("qwen2.rope.freq_base", std::to_string(refusals.size()), value, kInvalid, "MODEL_INVALID",
        {"between 1 and"});
  }
  for (const float value : {0.0f, -1e-6f, 0.5f, kNan, kInfinity}) {
    set("qwen2.attention.layer_norm_rms_epsilon", std::to_string(refusals.size()), value, kInvalid,
        "MODEL_INVALID", {"between 0 and 0.1"});
  }
  set("qwen2.attention.causal", "false", false, kUnimplemented, "MODEL_UNSUPPORTED",
      {"embeddings"});
  set("tokenizer.ggml.tokens", "empty", std::vector<std::string>{}, kInvalid, "MODEL_INVALID",
      {"0 tokens"});
  return refusals;
}

INSTANTIATE_TEST_SUITE_P(All, ModelSpecRefusalTest, ::testing::ValuesIn(Refusals()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace orcd
