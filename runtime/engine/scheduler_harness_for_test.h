// A scheduler on a fake backend, and the output that the model gives without either.
#ifndef ORCD_RUNTIME_ENGINE_SCHEDULER_HARNESS_FOR_TEST_H_
#define ORCD_RUNTIME_ENGINE_SCHEDULER_HARNESS_FOR_TEST_H_

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/engine/drafter.h"
#include "runtime/engine/fake_backend_for_test.h"
#include "runtime/engine/nano_model_for_test.h"
#include "runtime/engine/scheduler.h"

namespace orcd {

// Records the events of a request and checks that their order keeps the contract.
class RecordingSink : public GenerationSink {
 public:
  void OnStarted(const StartedEvent& event) override {
    EXPECT_EQ(started, 0);
    EXPECT_FALSE(finished);
    prompt_tokens = event.prompt_tokens;
    cached_prompt_tokens = event.cached_prompt_tokens;
    ++started;
  }
  void OnDelta(DeltaEvent event) override {
    EXPECT_EQ(started, 1);
    EXPECT_FALSE(finished);
    if (!event.prompt_logprobs.empty()) {
      EXPECT_TRUE(tokens.empty()) << "the prompt comes first";
    }
    prompt_logprobs.insert(prompt_logprobs.end(), event.prompt_logprobs.begin(),
                           event.prompt_logprobs.end());
    std::vector<int32_t>& to = event.sample == 0 ? tokens : more_samples[event.sample];
    if (!event.tokens.empty() && commits != nullptr) {
      int64_t& last = last_commit[event.sample];
      if (!to.empty()) longest_gap = std::max(longest_gap, *commits - last);
      last = *commits;
    }
    to.insert(to.end(), event.tokens.begin(), event.tokens.end());
    if (event.sample == 0) text += event.text;
  }
  void OnFinished(const FinishedEvent& event) override {
    EXPECT_FALSE(finished);
    finished = event;
  }

  int started = 0;
  int prompt_tokens = 0;
  int cached_prompt_tokens = 0;
  // Output of the first sample.
  std::string text;
  std::vector<int32_t> tokens;
  // Output of the other samples.
  std::map<int, std::vector<int32_t>> more_samples;
  std::vector<SampledToken> prompt_logprobs;
  std::optional<FinishedEvent> finished;

  // Counts committed steps. If set, longest_gap is the largest number of steps from one token of a
  // sample to its next.
  const int64_t* commits = nullptr;
  std::map<int, int64_t> last_commit;
  int64_t longest_gap = 0;
};

struct Expected {
  std::vector<int32_t> tokens;
  FinishReason reason;
  int drawn;
};

class SchedulerHarness {
 public:
  void Make(const BackendInfo& info, int max_context = 64) {
    info_ = info;
    max_context_ = max_context;
    if (model_ == nullptr) model_ = NanoModel();
    eog_ = model_->tokenizer().eog_ids().front();
    vocab_ = model_->spec().vocab;
    left_queue_.clear();
    removed_.clear();
    sinks_.clear();
    drafter_failure_ = absl::OkStatus();
    backend_ = std::make_unique<FakeBackend>(info, vocab_, eog_, window_);
    scheduler_ = std::make_unique<Scheduler>(
        model_->tokenizer(), info,
        SchedulerOptions{.max_context = max_context,
                         .window = window_,
                         .model_digest = model_->digest(),
                         .suppressed_ids = suppressed_ids_,
                         .drafter = drafter_.get(),
                         .fixed_drafts = fixed_drafts_,
                         .checkpoint_tokens = checkpoint_tokens_,
                         .clock = [this] { return now_; }},
        Scheduler::Hooks{.on_started =
                             [this](const std::string& id) {
                               EXPECT_TRUE(left_queue_.insert(id).second) << id;
                               if (on_left_queue_) on_left_queue_(id);
                             },
                         .on_removed =
                             [this](const std::string& id) {
                               EXPECT_TRUE(left_queue_.contains(id)) << id;
                               EXPECT_TRUE(removed_.insert(id).second) << id;
                             },
                         .on_drafter_failed =
                             [this](const absl::Status& status) {
                               EXPECT_TRUE(drafter_failure_.ok()) << "told twice";
                               drafter_failure_ = status;
                             }});
  }

  static BackendInfo Info(int max_seqs, int kv_blocks, int max_in_flight) {
    BackendInfo info;
    info.max_seqs = max_seqs;
    info.max_step_tokens = 12;
    info.block_tokens = 4;
    info.kv_blocks = kv_blocks;
    info.max_in_flight = max_in_flight;
    info.prompt_logprobs = true;
    return info;
  }

  GenerationRequest Request(const std::string& id, std::vector<int32_t> prompt) {
    GenerationRequest request;
    request.id = id;
    request.prompt = std::move(prompt);
    request.sampling.seed = 7;
    sinks_[id] = std::make_shared<RecordingSink>();
    sinks_[id]->commits = &commits_;
    request.sink = sinks_[id];
    return request;
  }

  // Plans and commits one step each, as far as the pipeline allows; a step takes one millisecond,
  // or what step_time_ says of the tokens launched last. False if there was nothing to do.
  bool Advance() {
    if (scheduler_->steps_in_flight() < info_.max_in_flight) {
      StepBatch batch;
      if (scheduler_->Plan(now_, batch)) {
        EXPECT_TRUE(backend_->Launch(batch).ok());
        launched_tokens_ = 0;
        for (const StepSequence& seq : batch.seqs) {
          launched_tokens_ += static_cast<int>(RowsOf(seq));
        }
        GiveMasks();
        if (scheduler_->steps_in_flight() < info_.max_in_flight) return true;
      }
    }
    if (scheduler_->steps_in_flight() == 0) return false;
    now_ += step_time_ ? step_time_(launched_tokens_) : absl::Milliseconds(1);
    ++commits_;
    scheduler_->Commit(*backend_->Wait(), now_);
    GiveMasks();
    return true;
  }
  // As the engine does after each launch and each commit.
  void GiveMasks() {
    if (scheduler_->steps_in_flight() != 1) return;
    const std::span<const TokenMask> masks = scheduler_->LateMasks();
    if (masks.empty()) return;
    EXPECT_TRUE(backend_->GiveMasks(masks).ok());
  }
  void RunToEnd() {
    for (int i = 0; Advance(); ++i) ASSERT_LT(i, 100000) << "the scheduler does not come to an end";
  }

  // Output of the model for a sample of the request, computed token by token with no other
  // requests, with every token drawn.
  Expected Naive(const GenerationRequest& request, int sample = 0) const {
    Expected expected{{}, FinishReason::kContextLength, 0};
    std::vector<int32_t> context = request.prompt;
    context.insert(context.end(), request.resume.begin(), request.resume.end());
    const int resumed = static_cast<int>(request.resume.size());
    std::vector<int32_t> end_ids = request.stop.ids;
    const auto& eog = model_->tokenizer().eog_ids();
    end_ids.insert(end_ids.end(), eog.begin(), eog.end());
    const std::unique_ptr<Constraint> rule =
        request.constraint != nullptr ? request.constraint->Make() : nullptr;
    for (const int32_t token : request.resume) {
      if (rule != nullptr) rule->Accept(token);
    }
    while (true) {
      const bool may_end = resumed + expected.drawn >= request.stop.min_tokens;
      std::vector<uint32_t> words = AllBut(may_end ? std::vector<int32_t>() : end_ids, vocab_);
      if (rule != nullptr) {
        const TokenMask by_rule = rule->Mask(0);
        for (size_t i = 0; i < words.size(); ++i) words[i] &= by_rule.words[i];
        if (!TokenMask{words}.AllowsAny(vocab_)) {
          words.assign(by_rule.words.begin(), by_rule.words.end());
        }
      }
      const int32_t token = FakeBackend::NextToken(
          context, FakeBackend::SeedOf(request.sampling.seed + sample, request.prompt.size()),
          vocab_, {words}, eog_);
      ++expected.drawn;
      if (std::count(request.stop.ids.begin(), request.stop.ids.end(), token) > 0) {
        expected.reason = FinishReason::kStopToken;
        return expected;
      }
      if ((!request.stop.ignore_eog || rule != nullptr) && model_->tokenizer().IsEog(token)) {
        expected.reason = FinishReason::kEog;
        return expected;
      }
      if (rule != nullptr) rule->Accept(token);
      context.push_back(token);
      expected.tokens.push_back(token);
      if (resumed + expected.drawn == request.stop.max_tokens) {
        expected.reason = FinishReason::kMaxTokens;
        return expected;
      }
      if (static_cast<int>(context.size()) == max_context_) return expected;
    }
  }

  BackendInfo info_;
  int max_context_ = 0;
  // Used by the next Make.
  std::vector<int32_t> suppressed_ids_;
  int window_ = 0;
  int fixed_drafts_ = 0;
  int checkpoint_tokens_ = kCheckpointTokens;
  std::shared_ptr<const Model> model_;
  int32_t eog_ = 0;
  int vocab_ = 0;
  std::unique_ptr<FakeBackend> backend_;
  // Used by the next Make; must outlive the scheduler that it makes.
  std::unique_ptr<Drafter> drafter_;
  absl::Status drafter_failure_;
  std::function<absl::Duration(int tokens)> step_time_;
  // Tokens of the last launched step.
  int launched_tokens_ = 0;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<std::string, std::shared_ptr<RecordingSink>> sinks_;
  std::set<std::string> left_queue_;
  std::function<void(const std::string& id)> on_left_queue_;
  std::set<std::string> removed_;
  absl::Time now_ = absl::UnixEpoch();
  int64_t commits_ = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_SCHEDULER_HARNESS_FOR_TEST_H_
