#include "runtime/constraint/compile_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "runtime/base/thread_time.h"
#include "runtime/constraint/after_token.h"
#include "runtime/constraint/compiled_rules.h"
#include "runtime/constraint/constraint_errors.h"
#include "runtime/constraint/rule_error.h"
#include "runtime/constraint/rule_text.h"
#include "runtime/constraint/spec_key.h"
#include "runtime/sampling/token_mask.h"

namespace orcd {
namespace {

// Counts sequences that are live, or will be.
class Live {
 public:
  // Null if more than `max` would be live.
  static std::shared_ptr<Live> Take(const std::shared_ptr<std::atomic<int>>& live, int count,
                                    int max) {
    if (live->fetch_add(count) + count > max) {
      live->fetch_sub(count);
      return nullptr;
    }
    return std::make_shared<Live>(live, count);
  }

  Live(std::shared_ptr<std::atomic<int>> live, int count) : live_(std::move(live)), count_(count) {}
  ~Live() { live_->fetch_sub(count_); }
  Live(const Live&) = delete;
  Live& operator=(const Live&) = delete;

  // One of these sequences, which counts by itself from now on; another one if there are none left,
  // such as for a sequence that starts again.
  std::shared_ptr<const Live> Split() {
    if (count_ > 0) {
      --count_;
    } else {
      live_->fetch_add(1);
    }
    return std::make_shared<Live>(live_, 1);
  }

 private:
  const std::shared_ptr<std::atomic<int>> live_;
  int count_;
};

void Count(const absl::Status& refusal, ConstraintStats& stats) {
  const std::string reason = GetErrorDetails(refusal).reason;
  if (reason == "CONSTRAINT_TOO_LARGE") {
    ++stats.refused_too_large;
  } else if (reason == "CONSTRAINT_UNSUPPORTED") {
    ++stats.refused_unsupported;
  } else if (reason == "CONSTRAINT_LIMIT") {
    ++stats.refused_busy;
  } else if (reason == "CONSTRAINT_UNSATISFIABLE") {
    ++stats.refused_unsatisfiable;
  } else {
    ++stats.refused_invalid;
  }
}

// Time for which the end of the pool waits for compilations.
constexpr absl::Duration kPatience = absl::Seconds(1);

absl::Status NoThreads() {
  return ConstraintLimitReached("constraints:threads",
                                "the threads that compile constraints are all busy with some that "
                                "do not end; try again later or on another worker");
}

int ThreadsFor(const ConstraintLimits& limits) {
  if (limits.threads > 0) return limits.threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 4);
}

}  // namespace

struct CompilePool::Job {
  explicit Job(const ConstraintSpec& asked) : spec(asked) {}

  // Until it is compiled.
  ConstraintSpec spec;
  // Set once, before is_ready.
  CompiledOutcome outcome;
  std::atomic<bool> is_ready = false;
  // The rest is under Shared::mutex.
  int requests = 0;
  // By the pending constraint that waits.
  std::map<const void*, std::function<void()>> callbacks;
};

struct CompilePool::Shared {
  using Callbacks = std::map<const void*, std::function<void()>>;

  // A job that nobody waits for any longer is gone.
  struct Waiting {
    std::string key;
    std::weak_ptr<Job> job;
  };
  // A thread that compiles.
  struct Worker {
    std::thread thread;
    // Null while it waits for one.
    std::shared_ptr<Job> job;
    std::string key;
    std::string field;
    absl::Time begun;
    bool is_given_up = false;
    bool has_ended = false;
  };
  // The caller does it without the lock.
  struct Rest {
    Callbacks callbacks;
    std::vector<CompiledOutcome> dropped;
    std::vector<std::shared_ptr<Job>> jobs;

    void Do() {
      for (const auto& [pending, callback] : callbacks) callback();
      *this = {};
    }
  };

  Shared(const ConstraintLimits& the_limits, std::shared_ptr<ConstraintObserver> the_observer,
         CompileRule the_compile)
      : limits(the_limits),
        observer(std::move(the_observer)),
        compile(std::move(the_compile)),
        cache(limits.cache_bytes) {}

  const ConstraintLimits limits;
  const std::shared_ptr<ConstraintObserver> observer;
  const CompileRule compile;
  const int threads = ThreadsFor(limits);

  mutable std::mutex mutex;
  // `waiting` or `stopping` changed, or a worker ended.
  std::condition_variable changed;
  // A worker began while the watcher slept, or `stopping`.
  std::condition_variable begun;
  bool stopping = false;
  bool watcher_sleeps = false;
  // A worker that has ended is removed by the watcher or by the end of the pool.
  std::list<Worker> workers;
  std::deque<Waiting> waiting;
  absl::flat_hash_map<std::string, std::weak_ptr<Job>> unfinished;
  CompiledRules cache;
  ConstraintStats stats;
  const std::shared_ptr<std::atomic<int>> live = std::make_shared<std::atomic<int>>(0);

  // A worker's thread.
  static void Run(const std::shared_ptr<Shared>& shared, Worker& worker);
  // The thread that gives up.
  static void Watch(const std::shared_ptr<Shared>& shared);
  // Requires `mutex`.
  static void StartWorker(const std::shared_ptr<Shared>& shared) {
    Worker& worker = shared->workers.emplace_back();
    worker.thread = std::thread([shared, &worker] { Run(shared, worker); });
  }

  CompiledOutcome Compile(const ConstraintSpec& spec) const;

  // The rest requires `mutex`.

  // Workers that compile what waits.
  int CountWorking() const {
    return static_cast<int>(std::ranges::count_if(
        workers, [](const Worker& worker) { return !worker.has_ended && !worker.is_given_up; }));
  }
  int CountAlive() const {
    return static_cast<int>(std::ranges::count(workers, false, &Worker::has_ended));
  }
  void ForgetIfGone(const std::string& key) {
    const auto place = unfinished.find(key);
    if (place != unfinished.end() && place->second.expired()) unfinished.erase(place);
  }
  void DropGone() {
    std::erase_if(waiting, [&](const Waiting& entry) {
      if (!entry.job.expired()) return false;
      ForgetIfGone(entry.key);
      return true;
    });
  }
  static void Finish(Job& job, CompiledOutcome outcome, Rest& rest) {
    job.outcome = std::move(outcome);
    job.is_ready.store(true, std::memory_order_release);
    rest.callbacks.merge(job.callbacks);
    job.callbacks.clear();
  }
  // Keeps an outcome in place of an earlier one. What others will be given back is no property of
  // the rule.
  void Keep(const std::string& key, const CompiledOutcome& outcome, Rest& rest) {
    std::vector<CompiledOutcome> dropped =
        absl::IsResourceExhausted(outcome.status) ? cache.Erase(key) : cache.Add(key, outcome);
    rest.dropped.insert(rest.dropped.end(), std::make_move_iterator(dropped.begin()),
                        std::make_move_iterator(dropped.end()));
  }
  // Finishes a job that was being compiled and keeps its outcome.
  void FinishCompiled(const std::string& key, Job& job, CompiledOutcome outcome, Rest& rest) {
    if (!outcome.status.ok()) {
      for (int i = 0; i < job.requests; ++i) Count(outcome.status, stats);
    }
    Keep(key, outcome, rest);
    unfinished.erase(key);
    Finish(job, std::move(outcome), rest);
  }
  // Ends the jobs that wait.
  void RefuseWaiting(const absl::Status& status, Rest& rest) {
    for (const Waiting& entry : waiting) {
      const std::shared_ptr<Job> job = entry.job.lock();
      if (job == nullptr) continue;
      for (int i = 0; i < job->requests; ++i) Count(status, stats);
      Finish(*job, {.status = status, .rule = nullptr}, rest);
      rest.jobs.push_back(job);
    }
    for (const Waiting& entry : waiting) unfinished.erase(entry.key);
    waiting.clear();
  }
  void GiveUp(Worker& worker, Rest& rest);
};

namespace {

class Pending final : public PendingConstraint {
 public:
  // `before_start` is null unless the rule begins after `start`.
  Pending(std::shared_ptr<CompilePool::Shared> shared, std::shared_ptr<CompilePool::Job> job,
          std::shared_ptr<Live> live, std::optional<int32_t> start,
          std::shared_ptr<const std::vector<uint32_t>> before_start)
      : shared_(std::move(shared)),
        job_(std::move(job)),
        live_(std::move(live)),
        start_(start),
        before_start_(std::move(before_start)) {}

  ~Pending() override {
    std::function<void()> dropped;
    std::lock_guard lock(shared_->mutex);
    if (const auto place = job_->callbacks.find(this); place != job_->callbacks.end()) {
      dropped = std::move(place->second);
      job_->callbacks.erase(place);
    }
  }

  void OnReady(std::function<void()> callback) override {
    {
      std::lock_guard lock(shared_->mutex);
      if (!ready()) {
        job_->callbacks[this] = std::move(callback);
        return;
      }
    }
    callback();
  }

  bool ready() const override { return job_->is_ready.load(std::memory_order_acquire); }
  absl::Status status() const override { return job_->outcome.status; }

  std::unique_ptr<Constraint> Make() override {
    std::shared_ptr<const Live> live;
    {
      std::lock_guard lock(shared_->mutex);
      live = live_->Split();
    }
    auto constraint = job_->outcome.rule->Make(std::move(live));
    if (!start_) return constraint;
    return std::make_unique<AfterToken>(*start_, before_start_, std::move(constraint));
  }

 private:
  const std::shared_ptr<CompilePool::Shared> shared_;
  const std::shared_ptr<CompilePool::Job> job_;
  const std::shared_ptr<Live> live_;
  const std::optional<int32_t> start_;
  const std::shared_ptr<const std::vector<uint32_t>> before_start_;
};

}  // namespace

CompilePool::CompilePool(const Tokenizer& tokenizer, const ConstraintLimits& limits,
                         std::shared_ptr<ConstraintObserver> observer, CompileRule compile)
    : tokenizer_(tokenizer),
      before_start_(std::make_shared<const std::vector<uint32_t>>(
          AllBut(tokenizer.eog_ids(), tokenizer.vocab_size()))),
      shared_(std::make_shared<Shared>(limits, std::move(observer), std::move(compile))) {
  {
    std::lock_guard lock(shared_->mutex);
    for (int i = 0; i < shared_->threads; ++i) Shared::StartWorker(shared_);
  }
  watcher_ = std::thread([shared = shared_] { Shared::Watch(shared); });
}

CompilePool::~CompilePool() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_all();
    shared_->begun.notify_all();
  }
  // From here on nobody else starts or removes workers.
  watcher_.join();
  {
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait_for(lock, absl::ToChronoMilliseconds(kPatience),
                              [&] { return shared_->CountAlive() == 0; });
    for (Shared::Worker& worker : shared_->workers) {
      // It only says so under the lock, and does nothing after that.
      if (!worker.has_ended) worker.thread.detach();
    }
  }
  for (Shared::Worker& worker : shared_->workers) {
    if (worker.thread.joinable()) worker.thread.join();
  }

  Shared::Rest rest;
  std::vector<CompiledOutcome> kept;
  {
    std::lock_guard lock(shared_->mutex);
    shared_->RefuseWaiting(MakeError(absl::StatusCode::kCancelled,
                                     "the model was unloaded before the constraint was compiled",
                                     {.reason = "MODEL_UNLOADED"}),
                           rest);
    shared_->unfinished.clear();
    kept = shared_->cache.Clear();
  }
  rest.Do();
}

absl::Status CompilePool::CheckStart(const ConstraintSpec& spec) const {
  const auto* start = std::get_if<StartAfterToken>(&spec.start);
  if (start == nullptr) return absl::OkStatus();
  const int32_t token = start->token;
  const bool is_known = token >= 0 && token < tokenizer_.vocab_size();
  if (is_known && !tokenizer_.IsEog(token)) return absl::OkStatus();
  const std::string field = absl::StrCat(spec.field, ".after_token");
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrCat(field, " is ", token,
                   is_known ? ", which ends the generation: nothing can come after it"
                            : absl::StrCat(" but must be in [0, ", tokenizer_.vocab_size(), ")")),
      {.reason = "CONSTRAINT_INVALID", .field = field});
}

absl::StatusOr<std::shared_ptr<PendingConstraint>> CompilePool::Compile(const ConstraintSpec& spec,
                                                                        int samples) {
  const auto refuse = [&](const absl::Status& status) {
    std::lock_guard lock(shared_->mutex);
    Count(status, shared_->stats);
    return status;
  };
  if (absl::Status status = CheckStart(spec); !status.ok()) return refuse(status);
  std::shared_ptr<Live> live = Live::Take(shared_->live, samples, shared_->limits.max_live);
  if (live == nullptr) {
    return refuse(ConstraintLimitReached(
        "constraints:live",
        absl::StrCat("at most ", shared_->limits.max_live,
                     " sequences with constraints may be live, and this request has ", samples,
                     "; try again later or on another worker")));
  }
  const auto* start = std::get_if<StartAfterToken>(&spec.start);
  const auto pending = [&](std::shared_ptr<Job> job) -> std::shared_ptr<PendingConstraint> {
    return std::make_shared<Pending>(shared_, std::move(job), std::move(live),
                                     start == nullptr ? std::nullopt : std::optional(start->token),
                                     before_start_);
  };

  // A text that is too long is refused without a copy of it.
  std::string key;
  bool is_checked = false;
  if (TextBytes(spec) <= shared_->limits.max_bytes) key = KeyOf(spec);
  for (;;) {
    {
      std::lock_guard lock(shared_->mutex);
      if (const CompiledOutcome* known = key.empty() ? nullptr : shared_->cache.Find(key)) {
        ++shared_->stats.cache_hits;
        absl::Status refusal = known->status.ok() ? known->rule->refusal() : known->status;
        if (!refusal.ok()) {
          Count(refusal, shared_->stats);
          return refusal;
        }
        auto job = std::make_shared<Job>(ConstraintSpec());
        Shared::Rest nothing;
        Shared::Finish(*job, *known, nothing);
        return pending(std::move(job));
      }
      if (const auto place = shared_->unfinished.find(key); place != shared_->unfinished.end()) {
        if (std::shared_ptr<Job> job = place->second.lock()) {
          ++shared_->stats.cache_hits;
          ++job->requests;
          return pending(std::move(job));
        }
      }
      if (is_checked) {
        if (static_cast<int>(shared_->waiting.size()) >= shared_->limits.max_waiting)
          shared_->DropGone();
        if (static_cast<int>(shared_->waiting.size()) >= shared_->limits.max_waiting) {
          absl::Status status = ConstraintLimitReached(
              "constraints:waiting",
              absl::StrCat(shared_->limits.max_waiting,
                           " constraints wait to be compiled; try again later or on another "
                           "worker"));
          Count(status, shared_->stats);
          return status;
        }
        if (shared_->CountWorking() == 0) {
          absl::Status status = NoThreads();
          Count(status, shared_->stats);
          return status;
        }
        auto job = std::make_shared<Job>(spec);
        job->requests = 1;
        shared_->waiting.push_back({key, job});
        shared_->unfinished[key] = job;
        shared_->changed.notify_one();
        return pending(std::move(job));
      }
    }
    // Outside of the lock: it reads the whole rule.
    if (absl::Status status = CheckRule(spec, shared_->limits); !status.ok()) return refuse(status);
    if (key.empty()) key = KeyOf(spec);
    is_checked = true;
  }
}

ConstraintStats CompilePool::stats() const {
  std::lock_guard lock(shared_->mutex);
  ConstraintStats stats = shared_->stats;
  stats.cache_bytes = shared_->cache.bytes();
  stats.live = shared_->live->load();
  return stats;
}

CompiledOutcome CompilePool::Shared::Compile(const ConstraintSpec& spec) const {
  const absl::Time begin = SteadyNow();
  const absl::Duration used = ThreadTime();
  auto rule = compile(spec);
  absl::Duration took = ThreadTime() - used;
  if (rule.ok()) took += (*rule)->time_elsewhere();
  if (observer != nullptr) observer->OnCompiled(SteadyNow() - begin);
  if (rule.ok() && took > limits.compile_time) {
    rule = RuleTooLarge(spec.field,
                        absl::StrCat("took ", absl::FormatDuration(took), " to compile, of the ",
                                     absl::FormatDuration(limits.compile_time),
                                     " that a constraint may take; simplify it"));
  }
  CompiledOutcome outcome = {.status = rule.status(), .rule = nullptr};
  if (rule.ok()) outcome.rule = *std::move(rule);
  return outcome;
}

void CompilePool::Shared::Run(const std::shared_ptr<Shared>& shared, Worker& worker) {
  for (;;) {
    std::shared_ptr<Job> job;
    ConstraintSpec spec;
    {
      std::unique_lock lock(shared->mutex);
      shared->changed.wait(lock, [&] { return shared->stopping || !shared->waiting.empty(); });
      if (shared->stopping) {
        worker.has_ended = true;
        shared->changed.notify_all();
        return;
      }
      Waiting next = std::move(shared->waiting.front());
      shared->waiting.pop_front();
      job = next.job.lock();
      if (job == nullptr) {
        shared->ForgetIfGone(next.key);
        continue;
      }
      spec = std::move(job->spec);
      worker.job = job;
      worker.key = std::move(next.key);
      worker.field = spec.field;
      worker.begun = SteadyNow();
      if (std::exchange(shared->watcher_sleeps, false)) shared->begun.notify_one();
    }

    CompiledOutcome outcome = shared->Compile(spec);

    Rest rest;
    bool ends = false;
    {
      std::lock_guard lock(shared->mutex);
      ++shared->stats.compiled;
      worker.job = nullptr;
      if (worker.is_given_up) {
        // The time was the machine's fault if the outcome is a rule.
        shared->Keep(worker.key, outcome, rest);
        // Its place may be taken.
        ends = shared->CountWorking() >= shared->threads;
        worker.is_given_up = false;
        worker.has_ended = ends;
        if (ends) shared->changed.notify_all();
      } else {
        shared->FinishCompiled(worker.key, *job, std::move(outcome), rest);
      }
    }
    rest.Do();
    if (ends) return;
  }
}

void CompilePool::Shared::GiveUp(Worker& worker, Rest& rest) {
  const std::shared_ptr<Job> job = worker.job;
  worker.is_given_up = true;
  const absl::Duration patience = limits.compile_time * kGiveUpAfter;
  FinishCompiled(worker.key, *job,
                 {.status = RuleTooLarge(
                      worker.field, absl::StrCat("did not compile in ",
                                                 absl::FormatDuration(patience), "; simplify it")),
                  .rule = nullptr},
                 rest);
  rest.jobs.push_back(job);
}

void CompilePool::Shared::Watch(const std::shared_ptr<Shared>& shared) {
  const absl::Duration patience = shared->limits.compile_time * kGiveUpAfter;
  std::unique_lock lock(shared->mutex);
  while (!shared->stopping) {
    Rest rest;
    std::list<Worker> ended;
    const absl::Time now = SteadyNow();
    absl::Time next = absl::InfiniteFuture();
    for (auto worker = shared->workers.begin(); worker != shared->workers.end();) {
      if (worker->has_ended) {
        ended.splice(ended.end(), shared->workers, worker++);
        continue;
      }
      if (worker->job != nullptr && !worker->is_given_up) {
        if (now < worker->begun + patience) {
          next = std::min(next, worker->begun + patience);
        } else {
          shared->GiveUp(*worker, rest);
          if (shared->CountAlive() < shared->threads + kMostReplaced) StartWorker(shared);
          if (shared->CountWorking() == 0) shared->RefuseWaiting(NoThreads(), rest);
        }
      }
      ++worker;
    }
    if (!rest.jobs.empty() || !ended.empty()) {
      lock.unlock();
      rest.Do();
      // They may still free rules, which takes time.
      for (Worker& worker : ended) worker.thread.join();
      lock.lock();
      continue;
    }
    if (next == absl::InfiniteFuture()) {
      shared->watcher_sleeps = true;
      shared->begun.wait(lock, [&] { return shared->stopping || !shared->watcher_sleeps; });
    } else {
      shared->begun.wait_for(lock, absl::ToChronoMilliseconds(next - now + absl::Milliseconds(1)),
                             [&] { return shared->stopping; });
    }
  }
}

}  // namespace orcd
