// For engine_bench: requests with constraints, beside the same requests without.
#ifndef ORCD_BENCH_CONSTRAINED_STREAMS_H_
#define ORCD_BENCH_CONSTRAINED_STREAMS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/error.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/engine/engine.h"

namespace orcd {

struct StreamWork {
  // Null: the output has no rule and does not end by itself.
  const ConstraintSpec* spec = nullptr;
  int max_tokens = 0;
};

struct StreamResult {
  double seconds = 0;
  int64_t tokens = 0;
  // Outputs that ended by themselves.
  int ended = 0;
  // Tokens of each request, in the order of the work.
  std::vector<int> lengths;

  double rate() const { return static_cast<double>(tokens) / seconds; }
};

// Runs requests with `streams` of them always in flight.
class StreamRunner {
 public:
  // `prompt_tokens` is the length of each prompt. `compiler` may be null if no work has a rule.
  StreamRunner(Engine& engine, ConstraintCompiler* compiler, int prompt_tokens, float temperature)
      : engine_(engine),
        compiler_(compiler),
        prompt_tokens_(prompt_tokens),
        temperature_(temperature) {}

  absl::StatusOr<StreamResult> Run(const std::vector<StreamWork>& work, int streams) {
    const auto begin = std::chrono::steady_clock::now();
    StreamResult result;
    result.lengths.resize(work.size());
    const auto endings = std::make_shared<Endings>();
    size_t submitted = 0;
    for (size_t finished = 0; finished < work.size(); ++finished) {
      while (submitted < work.size() && submitted - finished < static_cast<size_t>(streams)) {
        ORCD_RETURN_IF_ERROR(Submit(work[submitted], submitted, endings));
        ++submitted;
      }
      const auto [index, event] = endings->Next();
      ORCD_RETURN_IF_ERROR(event.status);
      result.lengths[index] = event.generated_tokens;
      result.tokens += event.generated_tokens;
      if (event.reason == FinishReason::kEog) ++result.ended;
    }
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return result;
  }

 private:
  // Requests that have ended and were not looked at yet.
  class Endings {
   public:
    void Add(size_t index, const FinishedEvent& event) {
      const std::lock_guard lock(mutex_);
      waiting_.emplace_back(index, event);
      changed_.notify_one();
    }
    std::pair<size_t, FinishedEvent> Next() {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !waiting_.empty(); });
      std::pair<size_t, FinishedEvent> next = std::move(waiting_.back());
      waiting_.pop_back();
      return next;
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::pair<size_t, FinishedEvent>> waiting_;
  };

  class Sink : public GenerationSink {
   public:
    Sink(std::shared_ptr<Endings> endings, size_t index)
        : endings_(std::move(endings)), index_(index) {}
    void OnStarted(const StartedEvent&) override {}
    void OnDelta(DeltaEvent) override {}
    void OnFinished(const FinishedEvent& event) override { endings_->Add(index_, event); }

   private:
    const std::shared_ptr<Endings> endings_;
    const size_t index_;
  };

  absl::Status Submit(const StreamWork& work, size_t index,
                      const std::shared_ptr<Endings>& endings) {
    GenerationRequest request;
    request.id = absl::StrCat("stream-", ++requests_);
    for (int p = 0; p < prompt_tokens_; ++p) {
      request.prompt.push_back(static_cast<int32_t>(
          (p * 7919 + index * 104729 + 13) % static_cast<size_t>(engine_.model().spec().vocab)));
    }
    request.sampling.temperature = temperature_;
    request.sampling.seed = index;
    request.stop.max_tokens = work.max_tokens;
    request.stop.ignore_eog = work.spec == nullptr;
    // Off, so that every run computes the whole prompt.
    request.prefix_cache = false;
    if (work.spec != nullptr) {
      ORCD_ASSIGN_OR_RETURN(request.constraint, compiler_->Compile(*work.spec, 1));
    }
    request.sink = std::make_shared<Sink>(endings, index);
    request.arrival = absl::Now();
    return engine_.Submit(std::move(request));
  }

  Engine& engine_;
  ConstraintCompiler* const compiler_;
  const int prompt_tokens_;
  const float temperature_;
  int64_t requests_ = 0;
};

}  // namespace orcd

#endif  // ORCD_BENCH_CONSTRAINED_STREAMS_H_
