#include "runtime/engine/self_check.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/cpu/cpu_reference.h"
#include "runtime/engine/nano_model_for_test.h"
#include "runtime/gguf/gguf_reader.h"
#include "testing/files.h"
#include "testing/test_model.h"

namespace orcd {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// May change an activation of a step. `rows` distinguishes a step of many tokens from a step of
// one.
using Corruption =
    std::function<void(TapPoint point, int layer, int64_t rows, std::vector<float>& values)>;

// May change a token drawn by a step of `tokens` tokens.
using SampleCorruption = std::function<void(SampledToken&, size_t tokens)>;

// A backend that runs another backend and corrupts its results.
class CorruptBackend : public Backend {
 public:
  CorruptBackend(std::unique_ptr<Backend> backend, Corruption corrupt,
                 SampleCorruption corrupt_sample)
      : backend_(std::move(backend)),
        tap_(std::move(corrupt)),
        corrupt_sample_(std::move(corrupt_sample)) {}

  const BackendInfo& info() const override { return backend_->info(); }
  absl::Status Launch(const StepBatch& batch) override {
    tokens_ = batch.seqs[0].tokens.size();
    if (batch.tap == nullptr) return backend_->Launch(batch);
    StepBatch tapped = batch;
    tap_.to = batch.tap;
    tapped.tap = &tap_;
    return backend_->Launch(tapped);
  }
  absl::Status GiveMasks(std::span<const TokenMask> masks) override {
    return backend_->GiveMasks(masks);
  }
  absl::StatusOr<StepResult> Wait() override {
    absl::StatusOr<StepResult> result = backend_->Wait();
    if (result.ok()) {
      for (SampledToken& sample : result->parts[0].samples) corrupt_sample_(sample, tokens_);
    }
    return result;
  }

 private:
  struct CorruptTap : ActivationTap {
    explicit CorruptTap(Corruption c) : corrupt(std::move(c)) {}
    void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                      int64_t cols) override {
      std::vector<float> changed(values.begin(), values.end());
      corrupt(point, layer, rows, changed);
      to->OnActivation(point, layer, changed, rows, cols);
    }
    bool Replace(TapPoint point, int layer, std::span<float> values, int64_t rows,
                 int64_t cols) override {
      return to->Replace(point, layer, values, rows, cols);
    }
    Corruption corrupt;
    ActivationTap* to = nullptr;
  };
  const std::unique_ptr<Backend> backend_;
  CorruptTap tap_;
  const SampleCorruption corrupt_sample_;
  // Number of tokens of the previous step.
  size_t tokens_ = 0;
};

BackendOptions SmallOptions() {
  BackendOptions options;
  options.kv_cache_bytes = 1 << 20;
  return options;
}

absl::Status CheckModel(
    const std::shared_ptr<const Model>& model, Corruption corrupt,
    SampleCorruption corrupt_sample = [](SampledToken&, size_t) {},
    const BackendOptions& options = SmallOptions(), bool with_reference = true) {
  NullLoadObserver observer;
  auto cpu = CreateCpuBackend(model, options, observer);
  if (!cpu.ok()) return cpu.status();
  auto reference = CreateCpuReference(model, model->spec().context_length,
                                      kSelfCheckReferenceTokens, /*threads=*/1);
  if (!reference.ok()) return reference.status();
  CorruptBackend backend(*std::move(cpu), std::move(corrupt), std::move(corrupt_sample));
  return SelfCheck(*model, backend, with_reference ? reference->get() : nullptr, observer);
}

absl::Status CheckWith(
    Corruption corrupt, SampleCorruption corrupt_sample = [](SampledToken&, size_t) {},
    const BackendOptions& options = SmallOptions(), const RandomModelOptions& like = {}) {
  // By architecture.
  static std::map<std::string, std::shared_ptr<const Model>> usual;
  std::shared_ptr<const Model> model = usual[like.architecture];
  if (model == nullptr || like.layers) model = NanoModel(like);
  if (!like.layers) usual[like.architecture] = model;
  return CheckModel(model, std::move(corrupt), std::move(corrupt_sample), options);
}

// Scales the result of one operation by a factor: still finite, and possible on any backend.
absl::Status CheckWithScaled(TapPoint operation, int in_layer,
                             const BackendOptions& options = SmallOptions(),
                             const RandomModelOptions& like = {}) {
  return CheckWith(
      [=](TapPoint point, int layer, int64_t, std::vector<float>& values) {
        if (point != operation || layer != in_layer) return;
        for (float& value : values) value *= 1.05f;
      },
      [](SampledToken&, size_t) {}, options, like);
}

TEST(SelfCheckTest, PassesWhatComputes) {
  EXPECT_EQ(CheckWith([](auto...) {}), absl::OkStatus());
}

TEST(SelfCheckTest, PassesRecurrentLayersThatCompute) {
  for (const char* architecture : {"qwen35", "qwen35moe", "qwen3next"}) {
    EXPECT_EQ(
        CheckWith([](TapPoint, int, int64_t, std::vector<float>&) {}, [](SampledToken&, size_t) {},
                  SmallOptions(), {.architecture = architecture}),
        absl::OkStatus())
        << architecture;
  }
}

TEST(SelfCheckTest, NamesLayerAndOperationOfANan) {
  const absl::Status status =
      CheckWith([](TapPoint point, int layer, int64_t, std::vector<float>& values) {
        if (point == TapPoint::kFfnDown && layer == 1)
          values[3] = std::numeric_limits<float>::quiet_NaN();
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(GetErrorDetails(status).reason, "SELF_CHECK_FAILED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1, operation 'ffn_down'"));
}

TEST(SelfCheckTest, RefusesLogitsThatAreAllMinusInfinity) {
  const absl::Status status =
      CheckWith([](TapPoint point, int, int64_t, std::vector<float>& values) {
        if (point == TapPoint::kLogits)
          values.assign(values.size(), -std::numeric_limits<float>::infinity());
      });
  EXPECT_THAT(std::string(status.message()), HasSubstr("operation 'logits' gave -inf"));
}

TEST(SelfCheckTest, RefusesLogitsThatAreAllAlike) {
  const absl::Status status =
      CheckWith([](TapPoint point, int, int64_t, std::vector<float>& values) {
        if (point == TapPoint::kLogits) values.assign(values.size(), 0.25f);
      });
  EXPECT_THAT(std::string(status.message()), HasSubstr("every logit at position 0 is 0.25"));
}

TEST(SelfCheckTest, RefusesAStepOfOneThatDiffersFromAStepOfMany) {
  const absl::Status status =
      CheckWith([](TapPoint point, int, int64_t rows, std::vector<float>& values) {
        if (point == TapPoint::kLogits && rows == 1) values[1] += 10;
      });
  EXPECT_THAT(std::string(status.message()), HasSubstr("differ between a step of many"));
}

TEST(SelfCheckTest, NamesTheOperationThatDiffersFromTheReference) {
  const int last = NanoModel()->spec().num_layers() - 1;
  ASSERT_GT(last, 0);
  for (const auto& [operation, layer] :
       std::vector<std::pair<TapPoint, int>>{{TapPoint::kEmbed, -1},
                                             {TapPoint::kAttnNorm, 0},
                                             {TapPoint::kV, 0},
                                             {TapPoint::kQRope, 0},
                                             {TapPoint::kAttn, last},
                                             {TapPoint::kFfnAct, last},
                                             {TapPoint::kOutputNorm, -1},
                                             {TapPoint::kLogits, -1}}) {
    const absl::Status status = CheckWithScaled(operation, layer);
    EXPECT_EQ(GetErrorDetails(status).reason, "SELF_CHECK_FAILED") << NameOf(operation);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("operation '", NameOf(operation),
                                       "' differs from the reference's")));
    if (layer >= 0) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("layer " + std::to_string(layer)));
    }
  }
}

TEST(SelfCheckTest, ComparesEveryLayer) {
  RandomModelOptions like;
  like.layers = 5;
  for (int layer = 0; layer < 5; ++layer) {
    for (const TapPoint operation : {TapPoint::kQ, TapPoint::kKRope, TapPoint::kAttn,
                                     TapPoint::kAttnOutput, TapPoint::kFfnUp, TapPoint::kLayer}) {
      const absl::Status status = CheckWithScaled(operation, layer, SmallOptions(), like);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("layer ", layer, ", operation '", NameOf(operation),
                                         "' differs from the reference's")));
    }
  }
}

// Covers all limits of a backend: tokens of a step and length of a sequence.
TEST(SelfCheckTest, FitsAnyLimits) {
  for (const int step_tokens : {1, 2, 4, 8, 128}) {
    for (const int context : {1, 5, 8, 0}) {
      for (const auto& [block_tokens, blocks] :
           {std::pair(1, 1), std::pair(1, 3), std::pair(3, 2), std::pair(16, 1), std::pair(16, 64),
            std::pair(4096, 1)}) {
        BackendOptions options;
        options.max_seqs = 1;
        options.max_step_tokens = step_tokens;
        options.max_context = context;
        options.block_tokens = block_tokens;
        // Two layers of keys and values of two heads of 64 in F16, in groups of 16.
        options.kv_cache_bytes =
            int64_t{blocks} * ((block_tokens + 15) / 16 * 16) * 2 * 2 * 2 * 64 * 2;
        const std::string limits = absl::StrCat(step_tokens, " tokens a step, context ", context,
                                                ", ", blocks, " blocks of ", block_tokens);
        EXPECT_EQ(CheckWith([](auto...) {}, [](SampledToken&, size_t) {}, options),
                  absl::OkStatus())
            << limits;
        EXPECT_EQ(GetErrorDetails(CheckWithScaled(TapPoint::kFfnUp, 1, options)).reason,
                  "SELF_CHECK_FAILED")
            << limits;
      }
    }
  }
}

RandomModelOptions WithExperts(const std::string& architecture) {
  return {.architecture = architecture};
}

// Scales what some rows of a layer's experts give: those whose tokens took `expert`.
class BrokenExpert {
 public:
  BrokenExpert(int layer, int expert, int count, float factor)
      : layer_(layer), expert_(expert), count_(count), factor_(factor) {}

  void operator()(TapPoint point, int layer, int64_t rows, std::vector<float>& values) {
    if (layer != layer_) return;
    if (point == TapPoint::kExpertWeights) weights_ = values;
    if (point != TapPoint::kExperts) return;
    const size_t hidden = values.size() / rows;
    for (int64_t row = 0; row < rows; ++row) {
      if (weights_[row * count_ + expert_] == 0) continue;
      for (size_t i = 0; i < hidden; ++i) values[row * hidden + i] *= factor_;
    }
  }

 private:
  const int layer_;
  const int expert_;
  const int count_;
  const float factor_;
  std::vector<float> weights_;
};

TEST(SelfCheckTest, PassesExpertsThatCompute) {
  for (const char* architecture : {"qwen2moe", "qwen3moe", "granitemoe", "glm4moe", "gpt-oss"}) {
    EXPECT_EQ(CheckWith([](auto...) {}, [](SampledToken&, size_t) {}, SmallOptions(),
                        WithExperts(architecture)),
              absl::OkStatus())
        << architecture;
  }
}

BackendOptions ContextOfOne() {
  BackendOptions options = SmallOptions();
  options.max_context = 1;
  return options;
}

// The one token takes few of them unless the check sends it through others.
TEST(SelfCheckTest, FindsEachBrokenExpertOfTheFirstAndTheLastLayer) {
  for (const char* architecture : {"qwen3moe", "glm4moe"}) {
    const ModelSpec spec = NanoModel(WithExperts(architecture))->spec();
    const int last = spec.num_layers() - 1;
    const int first = spec.layers[0].experts.count > 0 ? 0 : 1;
    const int count = spec.layers[last].experts.count;
    ASSERT_GT(count, spec.layers[last].experts.used);
    ASSERT_EQ(spec.layers[first].experts.count, count);
    for (const int layer : {first, last}) {
      for (int expert = 0; expert < count; ++expert) {
        const absl::Status status = CheckWith(
            BrokenExpert(layer, expert, count, 1.05f), [](SampledToken&, size_t) {}, ContextOfOne(),
            WithExperts(architecture));
        EXPECT_EQ(GetErrorDetails(status).reason, "SELF_CHECK_FAILED")
            << architecture << ", layer " << layer << ", expert " << expert;
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr(absl::StrCat("layer ", layer,
                                           ", operation 'experts' differs from the reference's")));
      }
    }
  }
}

// Without a reference as well.
TEST(SelfCheckTest, FindsAnExpertThatGivesNan) {
  const auto model = NanoModel(WithExperts("qwen3moe"));
  const ExpertsSpec& experts = model->spec().layers[0].experts;
  const int count = experts.count;
  int named = 0;
  for (int expert = 0; expert < count; ++expert) {
    NullLoadObserver observer;
    auto cpu = CreateCpuBackend(model, ContextOfOne(), observer);
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    CorruptBackend backend(*std::move(cpu),
                           BrokenExpert(0, expert, count, std::numeric_limits<float>::quiet_NaN()),
                           [](SampledToken&, size_t) {});
    const absl::Status status = SelfCheck(*model, backend, nullptr, observer);
    EXPECT_THAT(std::string(status.message()), HasSubstr("layer 0, operation 'experts' gave nan"));
    const bool by_force = absl::StrContains(status.message(), "when it is sent through experts");
    named += by_force ? 1 : 0;
  }
  EXPECT_EQ(named, count - experts.used);
}

// The rules of a file of glm4moe by which a token takes some of 8 experts.
struct Choice {
  uint32_t used = 2;
  uint32_t groups = 1;
  uint32_t groups_used = 1;
  // 1: a softmax, 2: sigmoids, 3: a softmax of the chosen.
  uint32_t score = 2;
  std::vector<float> bias = std::vector<float>(8);
};

std::string NameOfChoice(const Choice& choice) {
  return absl::StrCat("score ", choice.score, ", ", choice.used, " experts of ", choice.groups_used,
                      " of ", choice.groups, " groups, biases ", absl::StrJoin(choice.bias, " "));
}

// A random model whose file has other keys and selection biases.
std::shared_ptr<const Model> ModelWithChoice(const Choice& choice) {
  const TempDir dir;
  const auto path = WriteRandomModel({.architecture = "glm4moe", .type = "F16"},
                                     (dir.path() / "model.gguf").string());
  EXPECT_TRUE(path.ok()) << path.status();
  const std::string bytes = ReadFile(*path);
  for (const auto& [key, value] :
       std::map<std::string, uint32_t>{{"expert_used_count", choice.used},
                                       {"expert_group_count", choice.groups},
                                       {"expert_group_used_count", choice.groups_used},
                                       {"expert_gating_func", choice.score}}) {
    const std::string name = "glm4moe." + key;
    // The value follows the key and the number of its type.
    Patch(*path, bytes.find(name) + name.size() + sizeof(uint32_t), &value, sizeof(value));
  }
  const auto gguf = GgufReader::Open(*path);
  EXPECT_TRUE(gguf.ok()) << gguf.status();
  for (const TensorView& tensor : (*gguf)->tensors()) {
    if (!tensor.name.ends_with("exp_probs_b.bias")) continue;
    const std::string_view data(reinterpret_cast<const char*>(tensor.data.data()),
                                tensor.data.size());
    EXPECT_EQ(data.size(), choice.bias.size() * sizeof(float));
    Patch(*path, bytes.find(data), choice.bias.data(), data.size());
  }
  NullLoadObserver observer;
  auto model = Model::Load(*path, {}, observer);
  EXPECT_TRUE(model.ok()) << model.status();
  return *model;
}

// All of a model's experts but `unreachable` are found if they are broken, and are named.
void ExpectFindsEachExpert(const Choice& choice, int unreachable = -1) {
  const auto model = ModelWithChoice(choice);
  const int last = model->spec().num_layers() - 1;
  ASSERT_EQ(model->spec().layers[last].experts.count, 8);
  EXPECT_EQ(CheckModel(model, [](auto...) {}), absl::OkStatus()) << NameOfChoice(choice);
  for (const int layer : {1, last}) {
    for (int expert = 0; expert < 8; ++expert) {
      const auto status_of = [&](float factor, bool with_reference) {
        return CheckModel(
            model, BrokenExpert(layer, expert, 8, factor), [](SampledToken&, size_t) {},
            ContextOfOne(), with_reference);
      };
      const std::string name = absl::StrCat(NameOfChoice(choice), ", expert ", expert);
      const absl::Status scaled = status_of(1.05f, true);
      if (expert == unreachable) {
        EXPECT_EQ(scaled, absl::OkStatus()) << name;
        continue;
      }
      EXPECT_THAT(std::string(scaled.message()),
                  HasSubstr(absl::StrCat("layer ", layer,
                                         ", operation 'experts' differs from the reference's")))
          << name;
      const absl::Status nan = status_of(std::numeric_limits<float>::quiet_NaN(), false);
      EXPECT_THAT(std::string(nan.message()), HasSubstr("operation 'experts' gave nan")) << name;
      const std::vector<std::string> parts =
          absl::StrSplit(nan.message(), "when it is sent through experts ");
      if (parts.size() < 2) continue;
      const std::vector<std::string> experts =
          absl::StrSplit(parts[1].substr(0, parts[1].find(';')), ", ");
      EXPECT_THAT(experts, Contains(absl::StrCat(expert))) << name << ": " << nan;
    }
  }
}

TEST(SelfCheckTest, SendsATokenThroughEachExpertWhereGroupsDecide) {
  ExpectFindsEachExpert({.used = 3, .groups = 2, .groups_used = 1});
  ExpectFindsEachExpert({.used = 3, .groups = 4, .groups_used = 2});
  ExpectFindsEachExpert({.used = 1, .groups = 4, .groups_used = 1});
  ExpectFindsEachExpert({.used = 5, .groups = 4, .groups_used = 3, .score = 1});
}

TEST(SelfCheckTest, SendsATokenThroughEachExpertWhereBiasesDecide) {
  const std::vector<float> bias = {0, 0.98f, 0.3f, 0.98f, 5e-3f, 0.9f, 0.98f, 0.5f};
  for (const uint32_t score : {1, 2, 3}) ExpectFindsEachExpert({.score = score, .bias = bias});
  ExpectFindsEachExpert({.used = 1, .bias = bias});
  ExpectFindsEachExpert({.score = 3, .bias = {0, 50, 0, 0, -7, 0, 50, 50}});
  for (const float most : {0.4f, 0.9f}) {
    ExpectFindsEachExpert({.used = 3,
                           .groups = 2,
                           .groups_used = 1,
                           .bias = {0, 0.2f, 0, 0.1f, most, 0.3f, most, most}});
  }
}

// Expert 4 has to be the second best at most, and no score makes up for its bias.
TEST(SelfCheckTest, LeavesOutAnExpertThatNoTokenCanTake) {
  ExpectFindsEachExpert({.bias = {0, 0, 0, 0, -1.5f, 0, 0, 0}}, 4);
}

TEST(SelfCheckTest, RefusesABackendThatTakesOtherExperts) {
  const auto model = NanoModel(WithExperts("qwen3moe"));
  const absl::Status status = CheckModel(
      model,
      [](TapPoint point, int layer, int64_t, std::vector<float>& values) {
        if (point != TapPoint::kExpertWeights || layer != 1) return;
        std::rotate(values.begin(), values.begin() + 1, values.end());
      },
      [](SampledToken&, size_t) {}, SmallOptions(), /*with_reference=*/false);
  EXPECT_EQ(GetErrorDetails(status).reason, "SELF_CHECK_FAILED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("takes experts"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1, operation"));
}

TEST(SelfCheckTest, ExpertsFitAnyLimits) {
  const int count = NanoModel(WithExperts("qwen3moe"))->spec().layers[0].experts.count;
  for (const int step_tokens : {1, 3, 128}) {
    for (const int context : {1, 5, 0}) {
      BackendOptions options = SmallOptions();
      options.max_seqs = 1;
      options.max_step_tokens = step_tokens;
      options.max_context = context;
      const auto check = [&](Corruption corrupt) {
        return CheckWith(
            std::move(corrupt), [](SampledToken&, size_t) {}, options, WithExperts("qwen3moe"));
      };
      const std::string limits = absl::StrCat(step_tokens, " tokens a step, context ", context);
      EXPECT_EQ(check([](auto...) {}), absl::OkStatus()) << limits;
      EXPECT_EQ(GetErrorDetails(check(BrokenExpert(0, count - 1, count, 1.05f))).reason,
                "SELF_CHECK_FAILED")
          << limits;
    }
  }
}

// A tap that makes all experts nearly equal before another tap is asked.
class NearTies : public ActivationTap {
 public:
  // The experts from `first` on are ahead of the others, by less than a backend may round.
  NearTies(ActivationTap& to, int first) : to_(to), first_(first) {}

  void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                    int64_t cols) override {
    to_.OnActivation(point, layer, values, rows, cols);
  }
  bool Replace(TapPoint point, int layer, std::span<float> values, int64_t rows,
               int64_t cols) override {
    for (int64_t i = 0; i < rows * cols; ++i) values[i] = i % cols >= first_ ? 1.00001f : 1.0f;
    to_.Replace(point, layer, values, rows, cols);
    return true;
  }

 private:
  ActivationTap& to_;
  const int first_;
};

class NearTiesBackend : public Backend {
 public:
  explicit NearTiesBackend(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}
  const BackendInfo& info() const override { return backend_->info(); }
  absl::Status Launch(const StepBatch& batch) override {
    // Draws have to follow from the same ties.
    struct : ActivationTap {
      void OnActivation(TapPoint, int, std::span<const float>, int64_t, int64_t) override {}
    } nothing;
    NearTies ties(batch.tap == nullptr ? nothing : *batch.tap, 4);
    StepBatch tapped = batch;
    tapped.tap = &ties;
    return backend_->Launch(tapped);
  }
  absl::Status GiveMasks(std::span<const TokenMask> masks) override {
    return backend_->GiveMasks(masks);
  }
  absl::StatusOr<StepResult> Wait() override { return backend_->Wait(); }

 private:
  const std::unique_ptr<Backend> backend_;
};

class NearTiesReference : public LayerReference {
 public:
  explicit NearTiesReference(LayerReference& reference) : reference_(reference) {}
  void RunLayer(std::span<const int32_t> tokens, int layer, std::span<const float> input,
                ActivationTap& tap) override {
    NearTies ties(tap, 0);
    reference_.RunLayer(tokens, layer, input, ties);
  }
  void RunHead(std::span<const float> input, ActivationTap& tap) override {
    reference_.RunHead(input, tap);
  }

 private:
  LayerReference& reference_;
};

// The reference would choose the first experts, the backend others: rounding may do that.
TEST(SelfCheckTest, TheReferenceTakesTheExpertsThatTheBackendTook) {
  const auto model = NanoModel(WithExperts("qwen3moe"));
  ASSERT_GE(model->spec().layers[0].experts.count, 4 + model->spec().layers[0].experts.used);
  NullLoadObserver observer;
  auto cpu = CreateCpuBackend(model, SmallOptions(), observer);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  auto reference = CreateCpuReference(model, model->spec().context_length,
                                      kSelfCheckReferenceTokens, /*threads=*/1);
  ASSERT_TRUE(reference.ok()) << reference.status();
  NearTiesBackend backend(*std::move(cpu));
  NearTiesReference ties(**reference);
  EXPECT_EQ(SelfCheck(*model, backend, &ties, observer), absl::OkStatus());
}

// A backend that does not let its experts be chosen cannot be checked.
TEST(SelfCheckTest, RefusesABackendWhoseExpertsCannotBeChosen) {
  const absl::Status status = CheckWith(
      [](TapPoint point, int layer, int64_t, std::vector<float>& values) {
        if (point != TapPoint::kRouter || layer != 1 || values[0] != 1.0f) return;
        // Logits of its own, in place of those that were asked for.
        for (float& value : values) value = 0.3f;
      },
      [](SampledToken&, size_t) {}, SmallOptions(), WithExperts("qwen3moe"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("layer 1, operation 'router' differs from the reference's"));
}

TEST(SelfCheckTest, RefusesDrawsThatTheLogitsDoNotSay) {
  const auto nothing = [](auto...) {};
  EXPECT_THAT(
      std::string(CheckWith(nothing, [](SampledToken& s, size_t) { s.token = (s.token + 1) % 100; })
                      .message()),
      HasSubstr("was drawn at position 0 by a step of one token, whose logit is"));
  EXPECT_THAT(
      std::string(CheckWith(nothing, [](SampledToken& s, size_t) { s.token = -5; }).message()),
      HasSubstr("token -5 was drawn"));
  EXPECT_THAT(
      std::string(CheckWith(nothing, [](SampledToken& s, size_t) { s.finite = false; }).message()),
      HasSubstr("not finite at position 0"));
  EXPECT_THAT(
      std::string(CheckWith(nothing, [](SampledToken& s, size_t) { s.logprob += 1; }).message()),
      HasSubstr("has logprob"));
}

TEST(SelfCheckTest, RefusesAPromptThatDrawsOtherwise) {
  const absl::Status status = CheckWith([](auto...) {},
                                        [](SampledToken& sample, size_t tokens) {
                                          if (tokens > 1) sample.token = (sample.token + 1) % 100;
                                        });
  EXPECT_EQ(GetErrorDetails(status).reason, "SELF_CHECK_FAILED");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("was drawn at position " + std::to_string(kSelfCheckTokens - 1) +
                        " by a step of a prompt, whose logit is"));
}

}  // namespace
}  // namespace orcd
