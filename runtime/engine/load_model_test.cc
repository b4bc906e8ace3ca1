#include "runtime/engine/load_model.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/backend/steps_for_test.h"
#include "runtime/base/error.h"
#include "runtime/base/load_observer.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/engine/fake_backend_for_test.h"
#include "testing/arch_invariance.h"
#include "testing/files.h"
#include "testing/random_model/random_model.h"
#include "testing/test_model.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

// Keeps the stages that a load reports, each once in a row.
class StageObserver : public LoadObserver {
 public:
  void OnProgress(LoadStage stage, uint64_t, uint64_t) override {
    std::lock_guard lock(mutex_);
    if (stages_.empty() || stages_.back() != stage) stages_.push_back(stage);
    cancelled_ = cancelled_ || stage == cancel_at_;
  }
  bool cancelled() const override {
    std::lock_guard lock(mutex_);
    return cancelled_;
  }
  void CancelAt(LoadStage stage) { cancel_at_ = stage; }
  std::vector<LoadStage> stages() const {
    std::lock_guard lock(mutex_);
    return stages_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<LoadStage> stages_;
  std::optional<LoadStage> cancel_at_;
  bool cancelled_ = false;
};

class LoadModelTest : public ::testing::Test {
 protected:
  LoadModelTest() {
    Write({.type = "F16"}, model_path_);
    Write({.type = "F16", .seed = 2, .layers = 1}, draft_path_);
  }

  static void Write(const RandomModelOptions& options, const std::string& path) {
    const auto written = WriteRandomModel(options, path);
    EXPECT_TRUE(written.ok()) << written.status();
  }

  LoadModelOptions Options(DraftKind kind, const std::string& draft_path = "") const {
    LoadModelOptions options;
    options.backend.max_seqs = 4;
    options.backend.kv_cache_bytes = 8 << 20;
    options.backend.threads = 1;
    options.engine.max_context = 512;
    options.draft.kind = kind;
    options.draft.path = draft_path;
    return options;
  }

  // Makes CPU backends and keeps the options of each.
  BackendMaker Maker() {
    return {.make = [this](std::shared_ptr<const Model> model, const BackendOptions& options,
                           LoadObserver& observer) {
      made_with_.push_back(options);
      return CreateCpuBackend(std::move(model), options, observer);
    }};
  }

  absl::StatusOr<std::unique_ptr<Engine>> Load(const LoadModelOptions& options) {
    return LoadModel(
        model_path_, options, Maker(), [](const absl::Status&) {}, observer_);
  }
  // The error of a load with the draft model of this path.
  absl::Status LoadWithDraft(const std::string& path) {
    return Load(Options(DraftKind::kModel, path)).status();
  }

  const TempDir dir_;
  const std::string model_path_ = dir_.File("model.gguf");
  const std::string draft_path_ = dir_.File("draft.gguf");
  std::vector<BackendOptions> made_with_;
  StageObserver observer_;
};

TEST_F(LoadModelTest, TheDrafterIsTheOneThatIsAskedFor) {
  const auto none = Load(Options(DraftKind::kNone));
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ((*none)->speculation().drafter, "none");
  EXPECT_EQ((*none)->speculation().bytes, 0u);
  const auto ngram = Load(Options(DraftKind::kNgram));
  ASSERT_TRUE(ngram.ok()) << ngram.status();
  EXPECT_EQ((*ngram)->speculation().drafter, "ngram");
  EXPECT_EQ((*ngram)->speculation().model, "");
  EXPECT_EQ((*ngram)->speculation().bytes, 0u);
  const auto model = Load(Options(DraftKind::kModel, draft_path_));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->speculation().drafter, "model");
  EXPECT_EQ((*model)->speculation().model, "draft.gguf");
  EXPECT_GT((*model)->speculation().bytes, std::filesystem::file_size(draft_path_));
  for (const auto* engine : {&none, &ngram, &model}) {
    EXPECT_EQ((**engine)->speculation().warning, "");
  }
}

TEST_F(LoadModelTest, TheModelsOwnBlockPredicts) {
  const std::string path = dir_.File("block.gguf");
  Write({.architecture = "qwen35", .type = "F16"}, path);
  const auto engine = LoadModel(
      path, Options(DraftKind::kBlock), Maker(), [](const absl::Status&) {}, observer_);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->speculation().drafter, "mtp");
  EXPECT_EQ((*engine)->speculation().warning, "");
  EXPECT_GT((*engine)->backend_info().max_predictions, 0);
  // Nobody else's.
  const auto ngram = LoadModel(
      path, Options(DraftKind::kNgram), Maker(), [](const absl::Status&) {}, observer_);
  ASSERT_TRUE(ngram.ok()) << ngram.status();
  EXPECT_EQ((*ngram)->backend_info().max_predictions, 0);
}

TEST_F(LoadModelTest, AFileWithoutABlockServesWithoutPredictions) {
  const auto engine = Load(Options(DraftKind::kBlock));
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->speculation().drafter, "none");
  EXPECT_EQ((*engine)->speculation().warning,
            "no tokens are guessed: the model's file holds no block that predicts tokens (nextn)");
}

TEST_F(LoadModelTest, TheMemoryOfADraftModelIsReserved) {
  LoadModelOptions options = Options(DraftKind::kModel, draft_path_);
  options.backend.reserved_bytes = 1000;
  const auto engine = Load(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_THAT(made_with_, SizeIs(2));
  const BackendOptions& model = made_with_[0];
  const BackendOptions& draft = made_with_[1];
  EXPECT_GE(model.reserved_bytes, 1000 + static_cast<int64_t>((*engine)->speculation().bytes));
  EXPECT_EQ(model.kv_cache_bytes, 8 << 20);
  EXPECT_EQ(draft.reserved_bytes, 0);
  EXPECT_GT(draft.kv_cache_bytes, 0);
  for (const BackendOptions& made : made_with_) {
    EXPECT_EQ(made.max_context, 512);
    EXPECT_EQ(made.max_seqs, 4);
  }
  made_with_.clear();
  ASSERT_TRUE(Load(Options(DraftKind::kNgram)).ok());
  ASSERT_THAT(made_with_, SizeIs(1));
  EXPECT_EQ(made_with_[0].reserved_bytes, 0);
}

// The model's backend may take fewer sequences than it may.
TEST_F(LoadModelTest, StatesOfADraftModelAreReservedForEachSequence) {
  Write({.architecture = "qwen3next", .type = "F16"}, draft_path_);
  const auto engine = Load(Options(DraftKind::kModel, draft_path_));
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_THAT(made_with_, SizeIs(2));
  const BackendOptions& model = made_with_[0];
  EXPECT_GT(4 * model.reserved_bytes_a_seq, made_with_[1].state_cache_bytes);
  EXPECT_GE(model.reserved_bytes + 4 * model.reserved_bytes_a_seq,
            static_cast<int64_t>((*engine)->speculation().bytes));
}

TEST_F(LoadModelTest, TheProgressIsThatOfTheModelAlone) {
  ASSERT_TRUE(Load(Options(DraftKind::kModel, draft_path_)).ok());
  EXPECT_EQ(observer_.stages(), (std::vector<LoadStage>{LoadStage::kOpen, LoadStage::kVerify,
                                                        LoadStage::kPlace, LoadStage::kSelfCheck}));
}

TEST_F(LoadModelTest, ABackendThatVerifiesNoGuessesServesWithoutThem) {
  const BackendMaker maker = {
      .make = [](const std::shared_ptr<const Model>& model, const BackendOptions& options,
                 LoadObserver&) -> absl::StatusOr<std::unique_ptr<Backend>> {
        BackendInfo info;
        info.name = "fake";
        info.max_seqs = options.max_seqs;
        info.max_step_tokens = 64;
        info.block_tokens = 16;
        info.kv_blocks = 64;
        return std::make_unique<FakeBackend>(info, model->spec().vocab,
                                             model->tokenizer().eog_ids().front());
      },
      .self_check = false};
  for (const DraftKind kind : {DraftKind::kNgram, DraftKind::kModel}) {
    const auto engine = LoadModel(
        model_path_, Options(kind, draft_path_), maker, [](const absl::Status&) {}, observer_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    const SpeculationInfo speculation = (*engine)->speculation();
    EXPECT_EQ(speculation.drafter, "none");
    EXPECT_EQ(speculation.bytes, 0u);
    EXPECT_EQ(speculation.warning, "no tokens are guessed: the backend 'fake' verifies no guesses");
  }
}

TEST_F(LoadModelTest, ABadDraftModelFailsTheLoad) {
  const std::string missing = dir_.File("missing.gguf");
  const absl::Status not_found = LoadWithDraft(missing);
  EXPECT_EQ(not_found.code(), absl::StatusCode::kNotFound) << not_found;
  EXPECT_THAT(std::string(not_found.message()), StartsWith(missing));

  const std::string cut = dir_.File("cut.gguf");
  std::filesystem::copy_file(draft_path_, cut);
  std::filesystem::resize_file(cut, std::filesystem::file_size(cut) / 2);
  const absl::Status truncated = LoadWithDraft(cut);
  EXPECT_EQ(GetErrorDetails(truncated).reason, "GGUF_TRUNCATED") << truncated;
  EXPECT_THAT(std::string(truncated.message()), StartsWith(cut));

  LoadModelOptions options = Options(DraftKind::kModel, draft_path_);
  options.draft.expected_sha256 = std::string(64, 'a');
  const absl::Status other_file = Load(options).status();
  EXPECT_EQ(GetErrorDetails(other_file).reason, "SHA256_MISMATCH") << other_file;
  EXPECT_THAT(std::string(other_file.message()), StartsWith(draft_path_));

  const std::string other = dir_.File("other.gguf");
  ASSERT_NO_FATAL_FAILURE(TestModel::Valid().Write(other));
  const absl::Status other_vocabulary = LoadWithDraft(other);
  EXPECT_EQ(GetErrorDetails(other_vocabulary).reason, "DRAFT_VOCABULARY_MISMATCH")
      << other_vocabulary;
  EXPECT_THAT(std::string(other_vocabulary.message()), StartsWith(other + ": token "));

  EXPECT_THAT(made_with_, SizeIs(0)) << "the model was placed before its draft was checked";
}

TEST_F(LoadModelTest, AnErrorOfTheDraftModelsBackendNamesTheDraftModel) {
  const BackendMaker maker = {
      .make = [made = 0](
                  std::shared_ptr<const Model> model, const BackendOptions& options,
                  LoadObserver& observer) mutable -> absl::StatusOr<std::unique_ptr<Backend>> {
        if (made++ == 0) return CreateCpuBackend(std::move(model), options, observer);
        return MakeError(absl::StatusCode::kResourceExhausted, "there is no memory",
                         {.reason = "INSUFFICIENT_MEMORY", .subject = "memory"});
      }};
  const auto engine = LoadModel(
      model_path_, Options(DraftKind::kModel, draft_path_), maker, [](const absl::Status&) {},
      observer_);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kResourceExhausted) << engine.status();
  EXPECT_EQ(GetErrorDetails(engine.status()).reason, "INSUFFICIENT_MEMORY");
  EXPECT_EQ(std::string(engine.status().message()),
            "draft model " + draft_path_ + ": there is no memory");
}

TEST_F(LoadModelTest, BadOptionsAreRefusedWithADraftModelToo) {
  LoadModelOptions options = Options(DraftKind::kModel, draft_path_);
  options.backend.block_tokens = 0;
  const absl::Status status = Load(options).status();
  EXPECT_EQ(GetErrorDetails(status).field, "block_tokens") << status;
}

TEST_F(LoadModelTest, ACancelledLoadOfADraftModelEnds) {
  observer_.CancelAt(LoadStage::kVerify);
  const absl::Status status = LoadWithDraft(draft_path_);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  // Also where only the draft model is left to load.
  const LoadModelOptions options = Options(DraftKind::kModel, draft_path_);
  NullLoadObserver patient;
  const auto model = OpenModel(model_path_, options, patient);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(OpenDraftModel(**model, options, observer_).status().code(),
            absl::StatusCode::kCancelled);
}

TEST_F(LoadModelTest, ADraftModelMayBeOpenedBefore) {
  const LoadModelOptions options = Options(DraftKind::kModel, draft_path_);
  const auto model = OpenModel(model_path_, options, observer_);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto draft = OpenDraftModel(**model, options, observer_);
  ASSERT_TRUE(draft.ok()) << draft.status();
  ASSERT_NE(*draft, nullptr);
  // The file that was opened is used, and not the name.
  std::filesystem::remove(draft_path_);
  const auto engine = StartEngine(
      *model, options, Maker(), [](const absl::Status&) {}, observer_, *draft);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->speculation().drafter, "model");

  for (const DraftKind kind : {DraftKind::kNone, DraftKind::kNgram}) {
    const auto no_model = OpenDraftModel(**model, Options(kind), observer_);
    ASSERT_TRUE(no_model.ok()) << no_model.status();
    EXPECT_EQ(*no_model, nullptr);
  }
}

// The output of requests that run at the same time.
std::vector<DrawnOutput> RunTogether(Engine& engine, std::vector<GenerationRequest> requests) {
  std::vector<std::shared_ptr<DrawnOutputSink>> sinks;
  for (GenerationRequest& request : requests) {
    sinks.push_back(std::make_shared<DrawnOutputSink>());
    request.sink = sinks.back();
    const absl::Status submitted = engine.Submit(std::move(request));
    EXPECT_TRUE(submitted.ok()) << submitted;
    if (!submitted.ok()) return {};
  }
  std::vector<DrawnOutput> outputs;
  for (const auto& sink : sinks) outputs.push_back(sink->Await());
  return outputs;
}

std::vector<GenerationRequest> SomeRequests() {
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 8; ++i) {
    GenerationRequest request;
    request.id = std::to_string(i);
    // The second half of a prompt is the first again.
    request.prompt = TestTokens(20 + 3 * i, i);
    request.prompt.insert(request.prompt.end(), request.prompt.begin(), request.prompt.end());
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.7f;
    request.sampling.seed = static_cast<uint64_t>(i);
    if (i % 4 == 2) request.sampling.frequency_penalty = 0.5f;
    request.stop.ignore_eog = true;
    request.stop.max_tokens = 60;
    requests.push_back(std::move(request));
  }
  return requests;
}

// A draft model whose file is written to ends the guesses and nothing else.
TEST_F(LoadModelTest, AFailedDrafterEndsNoRequest) {
  const auto without = Load(Options(DraftKind::kNone));
  ASSERT_TRUE(without.ok()) << without.status();
  const std::vector<DrawnOutput> expected = RunTogether(**without, SomeRequests());
  LoadModelOptions options = Options(DraftKind::kModel, draft_path_);
  options.engine.fixed_drafts = 3;
  const auto engine = Load(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const char other = 'x';
  Patch(draft_path_, std::filesystem::file_size(draft_path_) - 1, &other, 1);
  const std::vector<DrawnOutput> outputs = RunTogether(**engine, SomeRequests());
  ASSERT_THAT(outputs, SizeIs(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(outputs[i].status.ok()) << outputs[i].status;
    EXPECT_EQ(outputs[i].tokens, expected[i].tokens) << i;
  }
  EXPECT_THAT((*engine)->speculation().warning, HasSubstr("draft.gguf"));
}

// Every drafter gives the tokens that there are without one: also the model itself, which is
// mostly right, and a model of other weights, which is mostly wrong.
TEST_F(LoadModelTest, NoDrafterChangesAToken) {
  const auto without = Load(Options(DraftKind::kNone));
  ASSERT_TRUE(without.ok()) << without.status();
  const std::vector<DrawnOutput> expected = RunTogether(**without, SomeRequests());
  ASSERT_THAT(expected, SizeIs(8));
  struct Case {
    DraftKind kind;
    std::string path;
    // 0: as many as pay.
    int drafts;
  };
  for (const Case& c :
       {Case{DraftKind::kNgram, "", 5}, Case{DraftKind::kModel, model_path_, 0},
        Case{DraftKind::kModel, model_path_, 5}, Case{DraftKind::kModel, draft_path_, 5}}) {
    SCOPED_TRACE(c.path);
    LoadModelOptions options = Options(c.kind, c.path);
    options.engine.fixed_drafts = c.drafts;
    const auto engine = Load(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    const std::vector<DrawnOutput> outputs = RunTogether(**engine, SomeRequests());
    ASSERT_THAT(outputs, SizeIs(expected.size()));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(outputs[i].status.ok()) << outputs[i].status;
      EXPECT_EQ(outputs[i].tokens, expected[i].tokens) << i;
    }
    EXPECT_EQ((*engine)->speculation().warning, "");
    const EngineStats stats = (*engine)->stats();
    EXPECT_LE(stats.accepted_draft_tokens, stats.draft_tokens);
    if (c.drafts == 0) continue;
    EXPECT_GT(stats.draft_tokens, 0);
    // Two requests of 60 tokens are greedy and have no penalties. The same model guesses them
    // right, but for steps in which the prompts of others run.
    if (c.path == model_path_) {
      EXPECT_GE(stats.accepted_draft_tokens, 80);
    }
  }
}

}  // namespace
}  // namespace orcd
