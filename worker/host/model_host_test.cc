#include "worker/host/model_host.h"

#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/cpu/cpu_backend.h"
#include "testing/event.h"
#include "testing/eventually.h"
#include "testing/files.h"
#include "testing/random_model/random_model.h"
#include "worker/base/message_text.h"
#include "worker/host/nano_model_for_test.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(20);

// Faults and delays that the test applies to a host's backends.
struct Controls {
  // A load stops in LoadStage::kPlace while this is set.
  std::atomic<bool> hold_load = false;
  // Each step takes at least this long.
  std::atomic<int> step_ms = 0;
  std::atomic<bool> fail_steps = false;
  // Those of the draft model.
  std::atomic<bool> fail_drafts = false;
};

class ControlledBackend : public Backend {
 public:
  ControlledBackend(std::unique_ptr<Backend> backend, const Controls& controls, bool is_draft)
      : backend_(std::move(backend)), controls_(controls), is_draft_(is_draft) {}
  const BackendInfo& info() const override { return backend_->info(); }
  absl::Status Launch(const StepBatch& batch) override {
    absl::SleepFor(absl::Milliseconds(controls_.step_ms.load()));
    if (controls_.fail_steps) return absl::InternalError("the device is on fire");
    if (is_draft_ && controls_.fail_drafts) return absl::InternalError("the draft is on fire");
    return backend_->Launch(batch);
  }
  absl::Status GiveMasks(std::span<const TokenMask> masks) override {
    return backend_->GiveMasks(masks);
  }
  absl::StatusOr<StepResult> Wait() override { return backend_->Wait(); }

 private:
  const std::unique_ptr<Backend> backend_;
  const Controls& controls_;
  const bool is_draft_;
};

class Sink : public GenerationSink {
 public:
  explicit Sink(std::shared_ptr<EngineLease> lease) : lease_(std::move(lease)) {}
  void OnStarted(const StartedEvent&) override {}
  void OnDelta(DeltaEvent) override {
    if (!delta_.notified()) delta_.Notify();
  }
  void OnFinished(const FinishedEvent& event) override {
    event_ = event;
    lease_ = nullptr;
    finished_.Notify();
  }
  const FinishedEvent& Await() {
    EXPECT_TRUE(finished_.WaitFor(kLong));
    return event_;
  }
  void AwaitDelta() { EXPECT_TRUE(delta_.WaitFor(kLong)); }

 private:
  std::shared_ptr<EngineLease> lease_;
  FinishedEvent event_;
  Event delta_;
  Event finished_;
};

class ModelHostTest : public ::testing::Test {
 protected:
  ModelHostTest() { MakeHost(absl::ZeroDuration(), {}); }
  ~ModelHostTest() override { controls_.hold_load = false; }

  // `draft_file` is the draft model's.
  void MakeHost(absl::Duration settle, const DraftOptions& draft,
                const std::string& draft_file = "") {
    host_.reset();
    ModelHostOptions options;
    options.worker_id = "w";
    options.instance_id = "i";
    options.model_dir = dir_.path();
    options.load.backend.kv_cache_bytes = 16 << 20;
    options.load.backend.threads = 1;
    options.load.draft = draft;
    options.load.engine.fixed_drafts = fixed_drafts_;
    options.draft_file = draft_file;
    options.on_warning = [this](const std::string&, const std::string& warning) {
      warnings_.push_back(warning);
    };
    options.device.set_backend("cpu");
    options.device.mutable_gpu()->set_required_driver("580");
    options.gpu_errors = [] {
      v1::GpuErrors errors;
      errors.set_xids(3);
      return errors;
    };
    options.settle = settle;
    options.drain_timeout = kLong;
    options.backend.make = [this](
                               std::shared_ptr<const Model> model, const BackendOptions& backend,
                               LoadObserver& observer) -> absl::StatusOr<std::unique_ptr<Backend>> {
      while (controls_.hold_load) {
        observer.OnProgress(LoadStage::kPlace, 1, 2);
        if (observer.cancelled()) return absl::CancelledError("cancelled");
        absl::SleepFor(absl::Milliseconds(1));
      }
      const bool is_draft = model->gguf().files()[0].path() == File("small.gguf");
      ORCD_ASSIGN_OR_RETURN(auto made, CreateCpuBackend(std::move(model), backend, observer));
      return std::make_unique<ControlledBackend>(std::move(made), controls_, is_draft);
    };
    host_ = std::make_unique<ModelHost>(std::move(options));
    // Captures the host directly, since host_ is null while the host is destroyed.
    host_->Subscribe([this, host = host_.get()] {
      std::lock_guard lock(mutex_);
      states_.push_back(host->Status().state());
    });
  }

  static DraftOptions DraftBy(DraftKind kind) {
    return {.kind = kind, .path = "", .expected_sha256 = ""};
  }

  // The answer of a call, which comes on another thread.
  template <typename Result>
  struct Answer {
    absl::StatusOr<Result> result = absl::UnknownError("not called");
    Event done;
    absl::StatusOr<Result> Await() {
      EXPECT_TRUE(done.WaitFor(kLong));
      return result;
    }
  };
  template <typename Result>
  static std::function<void(const absl::StatusOr<Result>&)> Into(
      const std::shared_ptr<Answer<Result>>& answer) {
    return [answer](const absl::StatusOr<Result>& result) {
      answer->result = result;
      answer->done.Notify();
    };
  }
  using LoadAnswer = std::shared_ptr<Answer<v1::ModelDescription>>;

  LoadAnswer StartLoad(ModelHost::LoadSpec spec, std::shared_ptr<LoadTask>* task = nullptr) {
    auto answer = std::make_shared<Answer<v1::ModelDescription>>();
    auto started = host_->Load(std::move(spec), Into(answer));
    if (task != nullptr) *task = std::move(started);
    return answer;
  }
  absl::StatusOr<v1::ModelDescription> Load(ModelHost::LoadSpec spec) {
    return StartLoad(std::move(spec))->Await();
  }
  absl::StatusOr<v1::UnloadResponse> Unload(const std::string& model_id = "", bool force = false) {
    auto answer = std::make_shared<Answer<v1::UnloadResponse>>();
    host_->Unload(model_id, force, Into(answer));
    return answer->Await();
  }

  // A request that runs until it is ended, for at least some seconds.
  std::shared_ptr<Sink> Generate(const std::string& id) {
    controls_.step_ms = 5;
    auto admitted = host_->Admit("");
    EXPECT_TRUE(admitted.ok()) << admitted.status();
    auto lease = std::make_shared<EngineLease>(*std::move(admitted));
    Engine& engine = lease->engine();
    auto sink = std::make_shared<Sink>(std::move(lease));
    GenerationRequest request;
    request.id = id;
    request.prompt = {1};
    request.stop.ignore_eog = true;
    request.sink = sink;
    const absl::Status status = engine.Submit(std::move(request));
    EXPECT_TRUE(status.ok()) << status;
    sink->AwaitDelta();
    return sink;
  }

  bool AwaitState(v1::WorkerState state) {
    return Eventually([&] { return host_->Status().state() == state; });
  }

  static std::string Reason(const absl::Status& status) { return GetErrorDetails(status).reason; }

  std::string File(const std::string& name) const { return absl::StrCat(dir_.path(), "/", name); }
  void Touch(const std::string& name) {
    std::filesystem::last_write_time(
        File(name), std::filesystem::last_write_time(File(name)) + std::chrono::seconds(1));
  }
  // Replaces the file by another model under the same name, by a rename.
  void ReplaceFile(const std::string& name, uint64_t seed) {
    dir_.Write("new", seed);
    std::filesystem::rename(File("new"), File(name));
  }
  std::string LoadedDigest() const { return host_->Status().model().digest(); }

  NanoModelDir dir_;
  Controls controls_;
  int fixed_drafts_ = 0;
  std::mutex mutex_;
  std::vector<v1::WorkerState> states_;
  // Written by the host's thread before it answers a load.
  std::vector<std::string> warnings_;
  std::unique_ptr<ModelHost> host_;
};

TEST_F(ModelHostTest, Idle) {
  const v1::WorkerStatus status = host_->Status();
  EXPECT_EQ(status.worker_id(), "w");
  EXPECT_EQ(status.instance_id(), "i");
  EXPECT_FALSE(status.version().empty());
  EXPECT_EQ(status.state(), v1::WORKER_STATE_IDLE);
  EXPECT_EQ(status.reason(), "");
  EXPECT_FALSE(status.has_model());
  EXPECT_FALSE(status.has_load());
  EXPECT_FALSE(status.has_kv_blocks());
  EXPECT_FALSE(status.has_last_step_age());
  EXPECT_EQ(status.device().backend(), "cpu");
  EXPECT_GT(status.memory().process_resident_bytes(), 1u << 20);
  EXPECT_EQ(status.queue().max_waiting_requests(), 256u);
  const auto admitted = host_->Admit("");
  EXPECT_EQ(admitted.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Reason(admitted.status()), "MODEL_NOT_LOADED");
  EXPECT_EQ(Unload()->model_id(), "");
}

// With a model and without.
TEST_F(ModelHostTest, TheDeviceKeepsWhatOnlyTheChoiceOfTheGpuTold) {
  for (const bool loaded : {false, true}) {
    if (loaded) {
      ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
    }
    const v1::Device device = host_->Status().device();
    EXPECT_EQ(device.backend(), "cpu");
    EXPECT_EQ(device.gpu().required_driver(), "580") << loaded;
    EXPECT_EQ(device.gpu().errors().xids(), 3u) << loaded;
    EXPECT_EQ(device.numeric_identity().starts_with("cpu-"), loaded);
  }
}

TEST_F(ModelHostTest, LoadGenerateUnload) {
  const auto description = Load({.model = "nano.gguf"});
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_EQ(description->model_id(), "nano");
  EXPECT_EQ(description->file(), "nano.gguf");
  EXPECT_EQ(description->architecture(), "qwen2");
  EXPECT_THAT(description->digest(), ::testing::MatchesRegex("sha256-tree:[0-9a-f]{64}"));
  EXPECT_EQ(description->size_bytes(),
            std::filesystem::file_size(absl::StrCat(dir_.path(), "/nano.gguf")));
  EXPECT_TRUE(description->chat_supported());
  EXPECT_GT(description->eog_token_ids_size(), 0);

  v1::WorkerStatus status = host_->Status();
  EXPECT_EQ(status.state(), v1::WORKER_STATE_READY);
  EXPECT_EQ(status.model().digest(), description->digest());
  EXPECT_GT(status.kv_blocks().total(), 0u);
  EXPECT_EQ(status.kv_blocks().free(), status.kv_blocks().total());
  EXPECT_EQ(status.kv_blocks().tokens_per_block(), 16u);
  EXPECT_GT(status.memory().weights_bytes(), 0u);
  EXPECT_GT(status.memory().kv_bytes(), 0u);

  EXPECT_EQ(Reason(host_->Admit("other").status()), "MODEL_NOT_FOUND");
  EXPECT_TRUE(host_->Admit("nano").ok());
  auto sink = Generate("r");
  // The statistics follow the step's events.
  EXPECT_TRUE(Eventually([&] { return host_->Status().has_last_step_age(); }));
  // Running requests keep the model loaded.
  const auto refused = Unload();
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Reason(refused.status()), "REQUESTS_RUNNING");
  EXPECT_EQ(Reason(Unload("other").status()), "MODEL_NOT_FOUND");
  // `force` ends them. The state is unloading until nobody uses the model.
  std::optional<EngineLease> user(*host_->Borrow(""));
  auto answer = std::make_shared<Answer<v1::UnloadResponse>>();
  host_->Unload("nano", /*force=*/true, Into(answer));
  const absl::Status unloading = host_->Admit("").status();
  EXPECT_EQ(unloading.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Reason(unloading), "UNLOADING");
  EXPECT_TRUE(GetErrorDetails(unloading).retry_after);
  user.reset();
  const auto unloaded = answer->Await();
  ASSERT_TRUE(unloaded.ok()) << unloaded.status();
  EXPECT_EQ(unloaded->model_id(), "nano");
  EXPECT_EQ(unloaded->cancelled_requests(), 1u);
  EXPECT_EQ(sink->Await().reason, FinishReason::kCancelled);

  status = host_->Status();
  EXPECT_EQ(status.state(), v1::WORKER_STATE_IDLE);
  EXPECT_FALSE(status.has_model());
  EXPECT_EQ(status.memory().kv_bytes(), 0u);
  EXPECT_EQ(status.queue().finished_requests(), 1u);
  EXPECT_EQ(status.queue().generated_tokens(),
            static_cast<uint64_t>(sink->Await().generated_tokens));
  std::lock_guard lock(mutex_);
  EXPECT_EQ(states_.front(), v1::WORKER_STATE_LOADING);
  EXPECT_EQ(states_.back(), v1::WORKER_STATE_IDLE);
}

TEST_F(ModelHostTest, ALoadedModelHasACompilerOfConstraints) {
  const absl::StatusOr<v1::ModelDescription> loaded = Load({.model = "nano.gguf"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->constraints_supported(), ConstraintCompiler::IsBuilt());
  EXPECT_FALSE(loaded->has_thinking_end_token_id());
  ConstraintSpec spec;
  spec.rule = RegexRule{"a+"};
  {
    const absl::StatusOr<EngineLease> lease = host_->Admit("");
    ASSERT_TRUE(lease.ok()) << lease.status();
    const auto pending = lease->constraints().Compile(spec, /*samples=*/1);
    EXPECT_EQ(pending.ok(), ConstraintCompiler::IsBuilt()) << pending.status();
    EXPECT_EQ(&lease->Borrow().constraints(), &lease->constraints());
  }
  EXPECT_TRUE(host_->Status().has_constraints());
  ASSERT_TRUE(Unload().ok());
  EXPECT_FALSE(host_->Status().has_constraints());
}

TEST_F(ModelHostTest, TheDescriptionNamesTheDrafter) {
  const absl::StatusOr<v1::ModelDescription> plain = Load({.model = "nano.gguf"});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->has_speculation());
  EXPECT_FALSE(host_->Status().has_speculation());
  EXPECT_EQ(host_->Status().memory().draft_bytes(), 0u);

  MakeHost(absl::ZeroDuration(), DraftBy(DraftKind::kNgram));
  EXPECT_FALSE(host_->Status().has_speculation());
  const absl::StatusOr<v1::ModelDescription> loaded = Load({.model = "nano.gguf"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->speculation().drafter(), "ngram");
  EXPECT_EQ(loaded->speculation().draft_model(), "");
  EXPECT_EQ(loaded->speculation().warning(), "");
  EXPECT_TRUE(warnings_.empty());
  EXPECT_EQ(host_->Status().model().speculation().drafter(), "ngram");
  EXPECT_TRUE(host_->Status().has_speculation());

  dir_.Write("small.gguf", 2);
  MakeHost(absl::ZeroDuration(), DraftBy(DraftKind::kModel), "small.gguf");
  const absl::StatusOr<v1::ModelDescription> with_model = Load({.model = "nano.gguf"});
  ASSERT_TRUE(with_model.ok()) << with_model.status();
  EXPECT_EQ(with_model->speculation().drafter(), "model");
  EXPECT_EQ(with_model->speculation().draft_model(), "small.gguf");
  EXPECT_GT(host_->Status().memory().draft_bytes(), 0u);
}

TEST_F(ModelHostTest, ADraftModelThatIsNotThereFailsTheLoadAndReplacesNothing) {
  dir_.Write("small.gguf", 2);
  dir_.Write("other.gguf", 3);
  MakeHost(absl::ZeroDuration(), DraftBy(DraftKind::kModel), "small.gguf");
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  std::filesystem::remove(File("small.gguf"));
  const absl::Status missing = Load({.model = "other.gguf", .replace = true}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Reason(missing), "MODEL_NOT_FOUND");
  EXPECT_THAT(std::string(missing.message()), HasSubstr("--draft: no file 'small.gguf'"));
  EXPECT_EQ(host_->Status().state(), v1::WORKER_STATE_READY);
  EXPECT_TRUE(host_->Admit("nano").ok());
  // The loaded model needs no other drafter.
  Touch("nano.gguf");
  EXPECT_TRUE(Load({.model = "nano.gguf", .replace = true}).ok());

  MakeHost(absl::ZeroDuration(), DraftBy(DraftKind::kModel), "../small.gguf");
  const absl::Status outside = Load({.model = "nano.gguf"}).status();
  EXPECT_EQ(Reason(outside), "MODEL_PATH_NOT_ALLOWED");
  EXPECT_THAT(std::string(outside.message()), HasSubstr("--draft: '../small.gguf'"));
}

TEST_F(ModelHostTest, AModelWhoseDrafterFailedIsLoadedAnewByReplace) {
  dir_.Write("small.gguf", 2);
  fixed_drafts_ = 2;
  MakeHost(absl::ZeroDuration(), DraftBy(DraftKind::kModel), "small.gguf");
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  controls_.fail_drafts = true;
  const std::shared_ptr<Sink> sink = Generate("a");
  ASSERT_TRUE(Eventually([&] { return !host_->Status().model().speculation().warning().empty(); }));
  controls_.fail_drafts = false;

  // Without `replace` the model is the same, and the answer says what became of its drafter.
  const absl::StatusOr<v1::ModelDescription> same = Load({.model = "nano.gguf"});
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_THAT(same->speculation().warning(), HasSubstr("the draft is on fire"));
  Touch("nano.gguf");
  const absl::StatusOr<v1::ModelDescription> compared = Load({.model = "nano.gguf"});
  ASSERT_TRUE(compared.ok()) << compared.status();
  EXPECT_THAT(compared->speculation().warning(), HasSubstr("the draft is on fire"));
  // With it a running request is in the way.
  const ModelHost::LoadSpec replace = {.model = "nano.gguf", .replace = true};
  EXPECT_EQ(Reason(Load(replace).status()), "REQUESTS_RUNNING");
  host_->Borrow("")->engine().Cancel("a", FinishReason::kCancelled, [](bool) {});
  sink->Await();
  const absl::StatusOr<v1::ModelDescription> anew = Load(replace);
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_EQ(anew->speculation().drafter(), "model");
  EXPECT_EQ(anew->speculation().warning(), "");
}

TEST_F(ModelHostTest, LoadingTheSameModelAgainAnswersAtOnce) {
  const auto first = Load({.model = "nano.gguf", .model_id = "a"});
  ASSERT_TRUE(first.ok());
  const auto again = Load({.model = "nano.gguf"});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->digest(), first->digest());
  EXPECT_EQ(again->model_id(), "a");
  for (const ModelHost::LoadSpec& spec :
       {ModelHost::LoadSpec{.model = "nano.gguf", .model_id = "b"},
        ModelHost::LoadSpec{.model = "nano.gguf", .sha256 = std::string(64, 'a')}}) {
    const auto other = Load(spec);
    EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(Reason(other.status()), "MODEL_LOADED");
  }
}

TEST_F(ModelHostTest, AnotherModelNeedsReplace) {
  dir_.Write("other.gguf", 2);
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  const auto refused = Load({.model = "other.gguf"});
  EXPECT_EQ(Reason(refused.status()), "MODEL_LOADED");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("replace"));

  auto sink = Generate("r");
  EXPECT_EQ(Reason(Load({.model = "other.gguf", .replace = true}).status()), "REQUESTS_RUNNING");
  std::optional<EngineLease> lease(*host_->Borrow(""));
  lease->engine().CancelAll(FinishReason::kCancelled, [](int) {});
  sink->Await();
  auto answer = StartLoad({.model = "other.gguf", .replace = true});
  // The old engine lives exactly as long as the borrowed lease.
  EXPECT_FALSE(answer->done.WaitFor(absl::Milliseconds(50)));
  EXPECT_EQ(lease->engine().model().spec().num_layers(), 2);
  lease.reset();
  const auto replaced = answer->Await();
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_EQ(host_->Status().model().model_id(), "other");
}

TEST_F(ModelHostTest, AFileThatWasTouchedIsComparedWhileTheModelServes) {
  const auto first = Load({.model = "nano.gguf"});
  ASSERT_TRUE(first.ok()) << first.status();
  for (const bool replace : {false, true}) {
    Touch("nano.gguf");
    // A new backend would stop here.
    controls_.hold_load = true;
    const auto again = Load({.model = "nano.gguf", .replace = replace});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->digest(), first->digest());
    EXPECT_EQ(host_->Status().state(), v1::WORKER_STATE_READY);
    EXPECT_FALSE(host_->Status().has_load());
  }
}

TEST_F(ModelHostTest, AStepWaitsForATouchedFileToBeRead) {
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  auto sink = Generate("r");
  for (int i = 0; i < 3; ++i) {
    Touch("nano.gguf");
    const uint64_t before = host_->Status().queue().generated_tokens();
    EXPECT_TRUE(
        Eventually([&] { return host_->Status().queue().generated_tokens() > before + 2; }));
    EXPECT_EQ(host_->Status().state(), v1::WORKER_STATE_READY) << host_->Status().reason();
  }
  // Bytes changed in place end the worker, as before.
  {
    std::fstream file(File("nano.gguf"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  }
  Touch("nano.gguf");
  EXPECT_TRUE(AwaitState(v1::WORKER_STATE_FAILED));
  EXPECT_EQ(host_->fault_kind(), "FILE_CHANGED");
  sink->Await();
}

TEST_F(ModelHostTest, AReplacedFileIsReportedAndLoadedWithReplace) {
  const auto old = Load({.model = "nano.gguf", .model_id = "a"});
  ASSERT_TRUE(old.ok()) << old.status();
  ReplaceFile("nano.gguf", 2);
  const auto told = Load({.model = "nano.gguf"});
  EXPECT_EQ(told.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Reason(told.status()), "MODEL_LOADED");
  EXPECT_THAT(std::string(told.status().message()), HasSubstr("replace"));
  EXPECT_THAT(std::string(told.status().message()), HasSubstr(old->digest()));
  EXPECT_EQ(LoadedDigest(), old->digest());
  EXPECT_EQ(host_->Status().state(), v1::WORKER_STATE_READY);

  const auto loaded = Load({.model = "nano.gguf", .replace = true});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_NE(loaded->digest(), old->digest());
  EXPECT_EQ(loaded->model_id(), "a") << "it is still the same model to those who ask";
  EXPECT_THAT(std::string(told.status().message()), HasSubstr(loaded->digest()));
  EXPECT_EQ(LoadedDigest(), loaded->digest());
  // The file at the path is now the loaded one.
  EXPECT_EQ(Load({.model = "nano.gguf"})->digest(), loaded->digest());
}

TEST_F(ModelHostTest, RequestsOfAModelWhoseFileChangedGoOn) {
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  const std::string old = LoadedDigest();
  auto sink = Generate("r");
  Touch("nano.gguf");
  EXPECT_TRUE(Load({.model = "nano.gguf", .replace = true}).ok()) << "there is nothing to replace";
  ReplaceFile("nano.gguf", 2);
  const auto refused = Load({.model = "nano.gguf", .replace = true});
  EXPECT_EQ(Reason(refused.status()), "REQUESTS_RUNNING") << refused.status();
  EXPECT_EQ(LoadedDigest(), old);
  host_->Borrow("")->engine().Cancel("r", FinishReason::kCancelled, [](bool) {});
  EXPECT_EQ(sink->Await().reason, FinishReason::kCancelled);
  EXPECT_TRUE(Eventually([&] { return Load({.model = "nano.gguf", .replace = true}).ok(); }));
  EXPECT_NE(LoadedDigest(), old);
}

TEST_F(ModelHostTest, AFileThatCannotBeLoadedReplacesNothing) {
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  const std::string digest = LoadedDigest();
  dir_.Write("bad.gguf", 2);
  std::filesystem::resize_file(File("bad.gguf"), 1000);
  const auto serves_on = [&] {
    const v1::WorkerStatus status = host_->Status();
    EXPECT_EQ(status.state(), v1::WORKER_STATE_READY);
    EXPECT_EQ(status.model().digest(), digest);
    EXPECT_TRUE(host_->Admit("nano").ok());
  };
  const auto other = Load({.model = "bad.gguf", .replace = true});
  EXPECT_EQ(Reason(other.status()), "GGUF_TRUNCATED") << other.status();
  EXPECT_THAT(host_->Status().reason(), HasSubstr("'nano' serves on"));
  serves_on();
  // A wrong digest of another file is detected before the old model is freed, too.
  dir_.Write("other.gguf", 2);
  EXPECT_EQ(
      Reason(
          Load({.model = "other.gguf", .sha256 = std::string(64, 'a'), .replace = true}).status()),
      "SHA256_MISMATCH");
  serves_on();
  // The same holds for a bad file under the loaded file's name.
  std::filesystem::rename(File("bad.gguf"), File("nano.gguf"));
  const auto told = Load({.model = "nano.gguf"});
  EXPECT_EQ(Reason(told.status()), "MODEL_LOADED") << told.status();
  EXPECT_THAT(std::string(told.status().message()), HasSubstr("cannot be loaded"));
  EXPECT_EQ(Reason(Load({.model = "nano.gguf", .replace = true}).status()), "GGUF_TRUNCATED");
  serves_on();
}

// A block that predicts matters where it guesses.
TEST_F(ModelHostTest, ADamagedBlockThatPredictsReplacesNothing) {
  ASSERT_TRUE(WriteRandomModel({.architecture = "qwen35"}, File("bad.gguf")).ok());
  std::string bytes = ReadFile(File("bad.gguf"));
  const std::string tensor = "nextn.enorm.weight";
  ASSERT_NE(bytes.find(tensor), std::string::npos);
  bytes.replace(bytes.find(tensor), tensor.size(), "nextn.other.weight");
  std::ofstream(File("bad.gguf"), std::ios::binary) << bytes;

  MakeHost(absl::ZeroDuration(), DraftBy(DraftKind::kBlock));
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  const std::string digest = LoadedDigest();
  const absl::Status refused = Load({.model = "bad.gguf", .replace = true}).status();
  EXPECT_EQ(Reason(refused), "MODEL_INVALID") << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(tensor));
  EXPECT_EQ(host_->Status().state(), v1::WORKER_STATE_READY);
  EXPECT_EQ(LoadedDigest(), digest);
  EXPECT_TRUE(host_->Admit("nano").ok());

  MakeHost(absl::ZeroDuration(), DraftBy(DraftKind::kNgram));
  EXPECT_TRUE(Load({.model = "bad.gguf"}).ok());
}

TEST_F(ModelHostTest, TheSameBytesUnderAnotherNameAreNotPlacedAgain) {
  const auto first = Load({.model = "nano.gguf"});
  ASSERT_TRUE(first.ok());
  std::filesystem::copy_file(File("nano.gguf"), File("copy.gguf"));
  controls_.hold_load = true;
  const auto copy = Load({.model = "copy.gguf", .replace = true});
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->model_id(), "copy");
  EXPECT_EQ(copy->file(), "copy.gguf");
  EXPECT_EQ(copy->digest(), first->digest());
  EXPECT_EQ(Load({.model = "copy.gguf"})->model_id(), "copy");
  EXPECT_TRUE(host_->Admit("copy").ok());
}

TEST_F(ModelHostTest, AFileMayHaveANameThatIsNoUtf8) {
  std::filesystem::rename(File("nano.gguf"), File("d\xe9.gguf"));
  const auto loaded = Load({.model = "d\xe9.gguf"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model_id(), "d\xEF\xBF\xBD");
  EXPECT_EQ(loaded->file(), "d\xEF\xBF\xBD.gguf");
  EXPECT_EQ(FindInvalidText(host_->Status()), "");
  // Load accepts the name that Status reports.
  EXPECT_TRUE(Load({.model = loaded->file()}).ok());
  EXPECT_TRUE(host_->Admit(loaded->model_id()).ok());
  EXPECT_TRUE(Unload()->model_id() == loaded->model_id());
  std::filesystem::resize_file(File("d\xe9.gguf"), 100);
  EXPECT_FALSE(Load({.model = "d\xe9.gguf"}).ok());
  EXPECT_EQ(FindInvalidText(host_->Status()), "");
  EXPECT_THAT(host_->Status().reason(), HasSubstr("d\xEF\xBF\xBD.gguf"));
}

TEST_F(ModelHostTest, OneLoadAtATime) {
  controls_.hold_load = true;
  auto first = StartLoad({.model = "nano.gguf"});
  EXPECT_TRUE(AwaitState(v1::WORKER_STATE_LOADING));
  EXPECT_TRUE(Eventually([&] { return host_->Status().load().bytes_total() == 2; }));
  const v1::WorkerStatus status = host_->Status();
  EXPECT_EQ(status.load().stage(), v1::LOAD_STAGE_PLACE);
  EXPECT_EQ(status.load().bytes_done(), 1u);
  EXPECT_FALSE(status.has_model());
  for (const absl::Status& refused :
       {Load({.model = "nano.gguf"}).status(), host_->Admit("").status(), Unload().status()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Reason(refused), "LOADING");
    EXPECT_TRUE(GetErrorDetails(refused).retry_after.has_value());
  }
  controls_.hold_load = false;
  EXPECT_TRUE(first->Await().ok());
}

TEST_F(ModelHostTest, ACancelledLoadIsRolledBack) {
  controls_.hold_load = true;
  std::shared_ptr<LoadTask> task;
  auto answer = StartLoad({.model = "nano.gguf"}, &task);
  task->Cancel();
  EXPECT_EQ(answer->Await().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(host_->Status().state(), v1::WORKER_STATE_IDLE);
  controls_.hold_load = false;
  EXPECT_TRUE(Load({.model = "nano.gguf"}).ok());
}

TEST_F(ModelHostTest, ACancelledReplacementReplacesNothing) {
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  const std::string digest = LoadedDigest();
  dir_.Write("other.gguf", 2);
  // Blocks the host's thread until the replacement has been cancelled.
  Event held;
  Event release;
  Touch("nano.gguf");
  host_->Load({.model = "nano.gguf"}, [&](const absl::StatusOr<v1::ModelDescription>&) {
    held.Notify();
    EXPECT_TRUE(release.WaitFor(kLong));
  });
  ASSERT_TRUE(held.WaitFor(kLong));
  std::shared_ptr<LoadTask> task;
  auto answer = StartLoad({.model = "other.gguf", .replace = true}, &task);
  task->Cancel();
  release.Notify();
  EXPECT_EQ(answer->Await().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(host_->Status().state(), v1::WORKER_STATE_READY);
  EXPECT_EQ(LoadedDigest(), digest);
  EXPECT_TRUE(host_->Admit("nano").ok());
}

TEST_F(ModelHostTest, AFailedLoadSaysWhyAndLeavesTheHostUsable) {
  std::filesystem::resize_file(absl::StrCat(dir_.path(), "/nano.gguf"), 1000);
  EXPECT_EQ(Load({.model = "nano.gguf"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(host_->Status().state(), v1::WORKER_STATE_IDLE);
  EXPECT_THAT(host_->Status().reason(), HasSubstr("nano.gguf"));
  // A request gets the reason, too.
  EXPECT_THAT(std::string(host_->Admit("").status().message()), HasSubstr("nano.gguf"));
  dir_.Write("nano.gguf", 1);
  EXPECT_TRUE(Load({.model = "nano.gguf"}).ok());
  EXPECT_EQ(host_->Status().reason(), "");
}

TEST_F(ModelHostTest, RefusesBadSpecs) {
  EXPECT_EQ(Reason(Load({.model = "../nano.gguf"}).status()), "MODEL_PATH_NOT_ALLOWED");
  EXPECT_EQ(Reason(Load({.model = "none.gguf"}).status()), "MODEL_NOT_FOUND");
  EXPECT_EQ(GetErrorDetails(Load({.model = "nano.gguf", .sha256 = "abc"}).status()).field,
            "sha256");
  for (const std::string& id : {std::string(257, 'x'), std::string("a\nb"), std::string("\xff")}) {
    EXPECT_EQ(GetErrorDetails(Load({.model = "nano.gguf", .model_id = id}).status()).field,
              "model_id");
  }
  const auto wrong_digest = Load({.model = "nano.gguf", .sha256 = std::string(64, 'A')});
  EXPECT_FALSE(wrong_digest.ok());
  EXPECT_EQ(host_->Status().state(), v1::WORKER_STATE_IDLE);
}

TEST_F(ModelHostTest, DrainFinishesWhatRuns) {
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  auto sink = Generate("r");
  host_->Drain();
  EXPECT_EQ(host_->Status().state(), v1::WORKER_STATE_DRAINING);
  const absl::Status refused = host_->Admit("").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Reason(refused), "DRAINING");
  v1::DrainResponse progress = host_->DrainProgress();
  EXPECT_FALSE(progress.safe_to_delete());
  EXPECT_EQ(progress.running_requests() + progress.waiting_requests(), 1u);
  EXPECT_GT(progress.remaining().seconds(), 5);
  // The engine still accepts queries and messages.
  host_->Borrow("")->engine().Cancel("r", FinishReason::kCancelled, [](bool) {});
  EXPECT_EQ(sink->Await().reason, FinishReason::kCancelled);
  EXPECT_TRUE(AwaitState(v1::WORKER_STATE_DRAINED));
  progress = host_->DrainProgress();
  EXPECT_TRUE(progress.safe_to_delete());
  EXPECT_EQ(progress.running_requests() + progress.waiting_requests(), 0u);
  EXPECT_EQ(progress.remaining().seconds(), 0);
}

TEST_F(ModelHostTest, DrainEndsRequestsThatStillRun) {
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  auto sink = Generate("r");
  host_->Drain();
  // The earliest end counts.
  host_->Drain(absl::Milliseconds(30));
  host_->Drain(absl::Hours(1));
  EXPECT_EQ(sink->Await().reason, FinishReason::kDrained);
  EXPECT_TRUE(AwaitState(v1::WORKER_STATE_DRAINED));
}

TEST_F(ModelHostTest, DrainWaitsQuietlyForALongStep) {
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  controls_.step_ms = 500;
  auto sink = Generate("r");
  const clock_t before = clock();
  host_->Drain(absl::ZeroDuration());
  EXPECT_EQ(sink->Await().reason, FinishReason::kDrained);
  EXPECT_TRUE(AwaitState(v1::WORKER_STATE_DRAINED));
  EXPECT_LT(clock() - before, CLOCKS_PER_SEC / 5);
}

TEST_F(ModelHostTest, DrainAdmitsWhileItSettles) {
  MakeHost(absl::Milliseconds(300), {});
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  host_->Drain(absl::ZeroDuration());
  EXPECT_EQ(host_->Status().state(), v1::WORKER_STATE_DRAINING);
  auto sink = Generate("r");
  EXPECT_EQ(sink->Await().reason, FinishReason::kDrained);
  EXPECT_EQ(Reason(host_->Admit("").status()), "DRAINING");
  EXPECT_TRUE(AwaitState(v1::WORKER_STATE_DRAINED));
}

TEST_F(ModelHostTest, DrainCancelsALoad) {
  controls_.hold_load = true;
  auto answer = StartLoad({.model = "nano.gguf"});
  host_->Drain();
  EXPECT_EQ(answer->Await().status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(AwaitState(v1::WORKER_STATE_DRAINED));
  EXPECT_EQ(Reason(Load({.model = "nano.gguf"}).status()), "DRAINING");
}

TEST_F(ModelHostTest, AFaultIsFinal) {
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  auto sink = Generate("r");
  controls_.fail_steps = true;
  EXPECT_EQ(sink->Await().status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(AwaitState(v1::WORKER_STATE_FAILED));
  EXPECT_THAT(host_->Status().reason(), HasSubstr("the device is on fire"));
  for (const absl::Status& refused :
       {host_->Admit("").status(), Load({.model = "nano.gguf"}).status()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Reason(refused), "BACKEND_FAULT");
  }
  // Another thread than the engine's notifies subscribers.
  EXPECT_TRUE(Eventually([&] {
    std::lock_guard lock(mutex_);
    return states_.back() == v1::WORKER_STATE_FAILED;
  }));
}

TEST_F(ModelHostTest, DestructionEndsRequests) {
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  auto sink = Generate("r");
  host_.reset();
  EXPECT_EQ(sink->Await().reason, FinishReason::kCancelled);
}

TEST_F(ModelHostTest, DestructionEndsALoad) {
  controls_.hold_load = true;
  auto answer = StartLoad({.model = "nano.gguf"});
  host_.reset();
  ASSERT_TRUE(answer->done.notified());
  EXPECT_EQ(answer->result.status().code(), absl::StatusCode::kCancelled);
}

TEST_F(ModelHostTest, UnloadWhileRequestsPourIn) {
  ASSERT_TRUE(Load({.model = "nano.gguf"}).ok());
  controls_.step_ms = 0;
  std::atomic<bool> stop = false;
  std::atomic<int> accepted = 0;
  std::atomic<int> finished = 0;
  class CountingSink : public GenerationSink {
   public:
    CountingSink(std::shared_ptr<EngineLease> lease, std::atomic<int>& finished)
        : lease_(std::move(lease)), finished_(finished) {}
    void OnStarted(const StartedEvent&) override {}
    void OnDelta(DeltaEvent) override {}
    void OnFinished(const FinishedEvent&) override {
      ++finished_;
      lease_ = nullptr;
    }

   private:
    std::shared_ptr<EngineLease> lease_;
    std::atomic<int>& finished_;
  };
  std::vector<std::thread> clients;
  for (int c = 0; c < 3; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; !stop; ++i) {
        auto admitted = host_->Admit("");
        if (!admitted.ok()) {
          absl::SleepFor(absl::Microseconds(100));
          continue;
        }
        const EngineLease borrowed = admitted->Borrow();
        GenerationRequest request;
        request.id = absl::StrCat(c, "-", i);
        request.prompt = {1, 2, 3};
        request.stop.max_tokens = 5;
        request.sink = std::make_shared<CountingSink>(
            std::make_shared<EngineLease>(*std::move(admitted)), finished);
        if (borrowed.engine().Submit(std::move(request)).ok()) ++accepted;
      }
    });
  }
  for (int i = 0; i < 5; ++i) {
    absl::SleepFor(absl::Milliseconds(20));
    EXPECT_TRUE(Unload("", /*force=*/true).ok());
    EXPECT_TRUE(Load({.model = "nano.gguf"}).ok());
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(Unload("", /*force=*/true).ok());
  EXPECT_GT(accepted, 0);
  EXPECT_EQ(finished, accepted);
  EXPECT_EQ(host_->Status().queue().finished_requests(), static_cast<uint64_t>(accepted));
}

}  // namespace
}  // namespace orcd
