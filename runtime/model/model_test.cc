#include "runtime/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "testing/test_model.h"

namespace orcd {
namespace {

using ::testing::StartsWith;

absl::StatusOr<std::shared_ptr<const Model>> Load(const std::string& path) {
  NullLoadObserver observer;
  return Model::Load(path, {.expected_sha256 = "", .threads = 2}, observer);
}

TEST(ModelTest, LoadsAndDescribes) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  TestModel::Valid().Write(path);
  const auto model = Load(path);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->spec().num_layers(), 2);
  EXPECT_EQ((*model)->weights().layers.size(), 2u);
  EXPECT_EQ((*model)->tokenizer().vocab_size(), 260);
  EXPECT_EQ((*model)->tokenizer().Encode("hi", false), std::vector<int32_t>{259});
  EXPECT_EQ((*model)->quantization(), "Q5_0 10, Q8_0 3, Q4_K 2");
  // Embedding and final norm; for each layer Q, K and V with biases, output, norms, gate, up, down.
  EXPECT_EQ((*model)->parameters(),
            260u * 64 + 64 + 2 * (2 * (64 * 64 + 32 * 64) + 64 + 2 * 32 + 2 * 64 + 3 * 256 * 64));
  EXPECT_EQ((*model)->size_bytes(), std::filesystem::file_size(path));
  EXPECT_THAT((*model)->digest(), StartsWith("sha256-tree:"));
  EXPECT_EQ((*model)->digest().size(), 12u + 64);
}

TEST(ModelTest, ScalesRopeAsItIsAsked) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  TestModel model = TestModel::Valid();
  model.Write(path);
  NullLoadObserver observer;
  const ModelLoadOptions options = {.rope_scaling = RopeOverride{.factor = 4}};
  const auto scaled = Model::Load(path, options, observer);
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_EQ((*scaled)->spec().context_length, 2048);
  EXPECT_EQ((*scaled)->spec().layers[1].rope.scaling, RopeScaling::kYarn);

  model.keys["qwen2.rope.scaling.factor"] = 2.0f;
  model.Write(path);
  const absl::Status status = Model::Load(path, options, observer).status();
  EXPECT_EQ(GetErrorDetails(status).field, "rope_scaling");
  EXPECT_THAT(std::string(status.message()), StartsWith(path + ": "));
}

TEST(ModelTest, TheDigestIsOfTheBytes) {
  TempDir dir;
  TestModel::Valid().Write(dir.File("a.gguf"));
  TestModel::Valid().Write(dir.File("b.gguf"));
  TestModel other = TestModel::Valid();
  other.keys["general.name"] = "tinz";
  other.Write(dir.File("c.gguf"));
  const auto a = Load(dir.File("a.gguf"));
  const auto b = Load(dir.File("b.gguf"));
  const auto c = Load(dir.File("c.gguf"));
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_EQ((*a)->digest(), (*b)->digest());
  EXPECT_NE((*a)->digest(), (*c)->digest());
}

// A file that cannot chat still loads.
TEST(ModelTest, ChatNeedsATemplateThatIsOne) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  const auto chat_supported = [&](const TestModel& model) {
    model.Write(path);
    const auto loaded = Load(path);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() && (*loaded)->chat_template().supported();
  };
  TestModel model = TestModel::Valid();
  EXPECT_FALSE(chat_supported(model));
  model.keys["tokenizer.chat_template"] = "{{ nobody";
  EXPECT_FALSE(chat_supported(model));
  model.keys["tokenizer.chat_template"] = uint32_t{7};
  EXPECT_FALSE(chat_supported(model));
  model.keys["tokenizer.chat_template"] = "{{ messages[0].content }}";
  EXPECT_TRUE(chat_supported(model));
}

TEST(ModelTest, TheTemplateGetsTheFilesSpecialTokensAndItsTemplateForTools) {
  TempDir dir;
  TestModel model = TestModel::Valid();
  model.keys["tokenizer.ggml.bos_token_id"] = uint32_t{257};
  model.keys["tokenizer.ggml.eos_token_id"] = uint32_t{258};
  model.keys["tokenizer.ggml.unknown_token_id"] = uint32_t{256};
  model.keys["tokenizer.ggml.padding_token_id"] = uint32_t{9999};
  model.keys["tokenizer.chat_template"] =
      "{{ bos_token }} {{ eos_token }} {{ unk_token }}{% if pad_token is defined %}!{% endif %}";
  model.keys["tokenizer.chat_template.tool_use"] = "{{ tools | tojson }}";
  model.Write(dir.File("model.gguf"));
  const auto loaded = Load(dir.File("model.gguf"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ChatRequest request = {{{ChatRole::kUser, "Hi"}}};
  const auto plain = (*loaded)->chat_template().Render(request, absl::UnixEpoch());
  ASSERT_TRUE(plain.ok()) << plain.status();
  ASSERT_EQ(plain->size(), 1u);
  EXPECT_TRUE((*plain)[0].is_template);
  EXPECT_EQ((*plain)[0].text, "<|im_start|> <|im_end|> <|endoftext|>");
  request.tools_json = {R"({"n":1})"};
  const auto with_tools = (*loaded)->chat_template().Render(request, absl::UnixEpoch());
  ASSERT_TRUE(with_tools.ok()) << with_tools.status();
  ASSERT_EQ(with_tools->size(), 1u);
  EXPECT_EQ((*with_tools)[0].text, R"([{"n": 1}])");
}

struct Refusal {
  std::string name;
  std::function<void(TestModel&)> spoil;
  absl::StatusCode code;
  std::string reason;
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class ModelRefusalTest : public ::testing::TestWithParam<Refusal> {};

// The tests of the parts cover every cause; here one error of each kind is returned with the path.
TEST_P(ModelRefusalTest, NamesTheFile) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  TestModel model = TestModel::Valid();
  GetParam().spoil(model);
  model.Write(path);
  const auto loaded = Load(path);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), GetParam().code) << loaded.status();
  EXPECT_EQ(GetErrorDetails(loaded.status()).reason, GetParam().reason);
  EXPECT_THAT(std::string(loaded.status().message()), StartsWith(path + ": "));
}

INSTANTIATE_TEST_SUITE_P(
    All, ModelRefusalTest,
    ::testing::Values(
        Refusal{"architecture", [](TestModel& m) { m.keys["general.architecture"] = "gemma"; },
                absl::StatusCode::kUnimplemented, "MODEL_UNSUPPORTED"},
        Refusal{"no_rope_base", [](TestModel& m) { m.keys.erase("qwen2.rope.freq_base"); },
                absl::StatusCode::kInvalidArgument, "MODEL_INVALID"},
        Refusal{"no_bias", [](TestModel& m) { m.tensors.erase("blk.0.attn_q.bias"); },
                absl::StatusCode::kInvalidArgument, "MODEL_INVALID"},
        Refusal{"output_rows",
                [](TestModel& m) {
                  m.tensors["output.weight"] = {TensorType::kF16, {64, 128}, {}};
                },
                absl::StatusCode::kInvalidArgument, "MODEL_INVALID"},
        Refusal{"no_tensors", [](TestModel& m) { m.tensors.clear(); },
                absl::StatusCode::kInvalidArgument, "MODEL_INVALID"},
        Refusal{"tensor_type",
                [](TestModel& m) {
                  m.tensors["blk.0.attn_q.weight"].type = static_cast<TensorType>(9);
                },
                absl::StatusCode::kUnimplemented, "GGUF_UNSUPPORTED"},
        Refusal{"tokenizer_model", [](TestModel& m) { m.keys["tokenizer.ggml.model"] = "bert"; },
                absl::StatusCode::kUnimplemented, "TOKENIZER_UNSUPPORTED"},
        Refusal{"no_merges", [](TestModel& m) { m.keys.erase("tokenizer.ggml.merges"); },
                absl::StatusCode::kInvalidArgument, "TOKENIZER_INVALID"},
        Refusal{"nan_in_norm",
                [](TestModel& m) {
                  auto& data = m.tensors["output_norm.weight"].data;
                  data[7] = data[6] = std::byte{0xff};
                },
                absl::StatusCode::kInvalidArgument, "WEIGHTS_NOT_FINITE"},
        Refusal{"nan_in_scale",
                [](TestModel& m) {
                  m.tensors["blk.1.ffn_down.weight"].data = {std::byte{0}, std::byte{0},
                                                             std::byte{1}, std::byte{0xfc}};
                },
                absl::StatusCode::kInvalidArgument, "WEIGHTS_NOT_FINITE"}),
    [](const auto& info) { return info.param.name; });

TEST(ModelTest, MissingAndTruncatedFiles) {
  TempDir dir;
  EXPECT_EQ(Load(dir.File("none.gguf")).status().code(), absl::StatusCode::kNotFound);
  const std::string path = dir.File("model.gguf");
  TestModel::Valid().Write(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  const absl::Status status = Load(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(status).reason, "GGUF_TRUNCATED");
}

TEST(ModelTest, ChecksTheExpectedSum) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  TestModel::Valid().Write(path);
  NullLoadObserver observer;
  const absl::Status wrong =
      Model::Load(path, {.expected_sha256 = std::string(64, '0'), .threads = 1}, observer).status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(GetErrorDetails(wrong).reason, "SHA256_MISMATCH");
  // A malformed sum is an error of the request, whatever the file.
  const absl::Status malformed =
      Model::Load(dir.File("none.gguf"), {.expected_sha256 = "123", .threads = 1}, observer)
          .status();
  EXPECT_EQ(GetErrorDetails(malformed).field, "sha256");
}

TEST(ModelTest, ATouchedFileIsReadAgainAndKept) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  TestModel::Valid().Write(path);
  const auto model = Load(path);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE((*model)->CheckIntact(2).ok());
  for (int i = 1; i <= 3; ++i) {
    std::filesystem::last_write_time(
        path, std::filesystem::last_write_time(path) + std::chrono::seconds(i));
    EXPECT_FALSE((*model)->gguf().CheckIntact().ok());
    EXPECT_TRUE((*model)->CheckIntact(2).ok());
    EXPECT_TRUE((*model)->gguf().CheckIntact().ok()) << "read once, not at each question";
  }
  // The bytes differ, so the modification time does not matter.
  const char byte = '\x7f';
  Patch(path, std::filesystem::file_size(path) - 1, &byte, 1);
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) + std::chrono::seconds(9));
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = (*model)->CheckIntact(2);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(GetErrorDetails(status).reason, "FILE_CHANGED");
  }
}

TEST(ModelTest, WarnsOfWhatItDoesOtherwiseThanTheFileSays) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  TestModel spoilt = TestModel::Valid();
  spoilt.Write(path);
  EXPECT_THAT((*Load(path))->Warnings(), ::testing::IsEmpty());
  spoilt.keys["tokenizer.chat_template"] = "{{ messages | }}";
  spoilt.keys["general.sampling.temp"] = -1.0f;
  spoilt.keys.erase("tokenizer.ggml.pre");
  spoilt.Write(path);
  const auto model = Load(path);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE((*model)->chat_template().supported());
  EXPECT_THAT((*model)->Warnings(),
              ::testing::ElementsAre(
                  StartsWith("general.sampling.temp is -1"),
                  StartsWith("tokenizer.ggml.pre does not say how"),
                  ::testing::AllOf(StartsWith("tokenizer.chat_template cannot be used: line 1: "),
                                   ::testing::HasSubstr("chat requests are refused"))));
}

TEST(ModelTest, SamplingDefaultsAreReadUnlessTheLoadSaysNo) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  TestModel model = TestModel::Valid();
  model.keys["general.sampling.temp"] = 0.7f;
  model.Write(path);
  NullLoadObserver observer;
  for (const bool read : {true, false}) {
    const auto loaded = Model::Load(path, {.sampling_defaults = read}, observer);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ((*loaded)->sampling_defaults().temperature.has_value(), read);
    EXPECT_EQ((*loaded)->sampling_defaults().empty(), !read);
  }
}

TEST(ModelTest, TextOfTheFileIsUtf8WhateverTheFileHas) {
  TempDir dir;
  TestModel named = TestModel::Valid();
  named.keys["general.name"] = "d\xe9riv\xe9";
  named.Write(dir.File("name.gguf"));
  const auto model = Load(dir.File("name.gguf"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->spec().name, "d\xEF\xBF\xBDriv\xEF\xBF\xBD");
  named.keys["general.name"] = std::string(1 << 20, 'x');
  named.Write(dir.File("long.gguf"));
  EXPECT_EQ((*Load(dir.File("long.gguf")))->spec().name, std::string(256, 'x'));
  // Refusals name the refused value.
  for (const auto& [key, value] : std::map<std::string, TestModel::Value>{
           {"tokenizer.ggml.pre", "\xff\xfe"},
           {"tokenizer.ggml.model", "\xff\xfe"},
           {"tokenizer.ggml.merges", std::vector<std::string>{"\xff \xfe"}}}) {
    TestModel bad = TestModel::Valid();
    bad.keys[key] = value;
    bad.Write(dir.File("bad\xe4.gguf"));
    const absl::Status status = Load(dir.File("bad\xe4.gguf")).status();
    EXPECT_FALSE(status.ok()) << key;
    const std::string message(status.message());
    EXPECT_EQ(FindInvalidUtf8(message), message.size()) << key;
    EXPECT_THAT(message, ::testing::HasSubstr("\xEF\xBF\xBD"));
  }
}

class StageObserver : public LoadObserver {
 public:
  explicit StageObserver(int cancel_at) : cancel_at_(cancel_at) {}
  void OnProgress(LoadStage stage, uint64_t, uint64_t) override { stages.insert(stage); }
  bool cancelled() const override { return questions_++ == cancel_at_; }

  std::set<LoadStage> stages;

 private:
  const int cancel_at_;
  mutable int questions_ = 0;
};

TEST(ModelTest, ReportsItsStages) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  TestModel::Valid().Write(path);
  StageObserver observer(-1);
  ASSERT_TRUE(Model::Load(path, {}, observer).ok());
  EXPECT_EQ(observer.stages, (std::set{LoadStage::kOpen, LoadStage::kVerify}));
}

TEST(ModelTest, StopsWhereverItIsCancelled) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  TestModel::Valid().Write(path);
  for (int question = 0; question < 3; ++question) {
    StageObserver observer(question);
    const absl::Status status = Model::Load(path, {}, observer).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << question;
    EXPECT_EQ(GetErrorDetails(status).reason, "LOAD_CANCELLED");
  }
}

TEST(ModelTest, LoadsWhatOthersMade) {
  const char* oracle = std::getenv("ORCD_ORACLE_DIR");
  if (oracle == nullptr) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  int models = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(oracle) / "logits")) {
    if (entry.path().extension() != ".gguf") continue;
    // The vocabulary of these files is made up and encodes no text.
    ModelLoadOptions options;
    options.with_text = false;
    NullLoadObserver observer;
    const auto model = Model::Load(entry.path().string(), options, observer);
    EXPECT_TRUE(model.ok()) << model.status();
    ++models;
  }
  EXPECT_GT(models, 0);
}

}  // namespace
}  // namespace orcd
