#include "worker/api/vllm/kv_event_call.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "worker/api/vllm/kv_event_batches.h"
#include "worker/api/vllm/worker_figures.h"
#include "worker/stream/report_stream.h"

namespace orcd {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(100);
// Gateways avoid a worker that has sent nothing for a while.
constexpr absl::Duration kHeartbeat = absl::Seconds(1);
// Longest time that a subscriber may not read at all.
constexpr absl::Duration kPatience = absl::Seconds(60);

absl::Status NotKept(uint64_t wanted) {
  return MakeError(absl::StatusCode::kOutOfRange,
                   absl::StrCat("start_sequence_number: is ", wanted,
                                ", and nothing is kept of streams that ended; begin with 0, which "
                                "gives the state as it is"),
                   {.reason = "KV_EVENTS_NOT_KEPT", .field = "start_sequence_number"});
}

absl::Status Lost() {
  return MakeError(absl::StatusCode::kDataLoss,
                   "the client did not read for so long that events were lost; subscribe again, "
                   "from 0",
                   {.reason = "KV_EVENTS_LOST"});
}

absl::Status Unloaded() {
  return MakeError(absl::StatusCode::kUnavailable, "the model was unloaded, its cache is empty",
                   {.reason = "UNLOADING", .retry_after = absl::Seconds(1)});
}

// True if the load has changed so much that a gateway should know at once.
bool HasMoved(const vllm_wire::EngineLoad& from, const vllm_wire::EngineLoad& to) {
  constexpr double kUsageStep = 0.005;
  return from.running_requests() != to.running_requests() ||
         from.waiting_requests() != to.waiting_requests() ||
         from.waiting_uncached_tokens() != to.waiting_uncached_tokens() ||
         from.max_running_requests() != to.max_running_requests() ||
         std::abs(from.token_usage() - to.token_usage()) > kUsageStep;
}

// Makes the messages of one call. Polled by one thread at a time.
class KvEventReport {
 public:
  KvEventReport(ModelHost& host, std::unique_ptr<KvEventFeeds::Subscriber> subscriber,
                std::function<absl::Status()> may)
      : host_(host), subscriber_(std::move(subscriber)), may_(std::move(may)) {}

  void Cancel() { cancelled_ = true; }

  ReportStream::Report Poll() {
    ReportStream::Report report;
    if (cancelled_) {
      return End(MakeError(absl::StatusCode::kCancelled, "the call was cancelled",
                           {.reason = "CANCELLED"}));
    }
    if (subscriber_->closing()) return End(KvEventsClosing());
    if (absl::Status may = may_(); !may.ok()) return End(may);
    const vllm_wire::EngineLoad load = ToEngineLoad(ToSchedulerLoad(host_.Status()));
    if (batches_.empty()) {
      KvEventFeed::PendingChanges pending = subscriber_->Take();
      if (pending.ended) {
        auto batch = batches_.Cleared();
        Attach(load, /*load_only=*/false, *batch);
        report.message = std::move(batch);
        report.end = Unloaded();
        subscriber_ = nullptr;
        return report;
      }
      if (pending.lost) return End(Lost());
      batches_.Add(std::move(pending));
    }
    if (!batches_.empty()) {
      auto batch = batches_.Next();
      Attach(load, /*load_only=*/false, *batch);
      report.message = std::move(batch);
      report.more = !batches_.empty();
    } else if (batches_.sequence_number() > 0 &&
               (SteadyNow() - sent_at_ >= kHeartbeat || HasMoved(load_, load))) {
      auto batch = std::make_unique<vllm_wire::KvEventBatch>();
      batch->set_sequence_number(batches_.sequence_number());
      batch->set_timestamp(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
      Attach(load, /*load_only=*/true, *batch);
      report.message = std::move(batch);
    }
    return report;
  }

 private:
  ReportStream::Report End(const absl::Status& status) {
    // Releases the feed before the client learns of the end.
    subscriber_ = nullptr;
    return {.message = nullptr, .more = false, .end = status};
  }

  void Attach(const vllm_wire::EngineLoad& load, bool load_only, vllm_wire::KvEventBatch& batch) {
    load_ = load;
    sent_at_ = SteadyNow();
    vllm_wire::EngineLoad* record = batch.mutable_load();
    *record = load;
    record->set_sample(++sample_);
    record->set_load_only(load_only);
  }

  ModelHost& host_;
  std::unique_ptr<KvEventFeeds::Subscriber> subscriber_;
  const std::function<absl::Status()> may_;
  std::atomic<bool> cancelled_ = false;
  KvEventBatches batches_;
  // The load that was sent last, and when.
  vllm_wire::EngineLoad load_;
  absl::Time sent_at_ = absl::InfinitePast();
  uint64_t sample_ = 0;
};

}  // namespace

absl::StatusOr<grpc::ServerWriteReactor<grpc::ByteBuffer>*> StartKvEventCall(
    grpc::CallbackServerContext* context, const vllm_wire::SubscribeKvEventsRequest& request,
    ModelHost& host, KvEventFeeds& feeds, std::function<absl::Status()> may) {
  if (request.start_sequence_number() > 0) return NotKept(request.start_sequence_number());
  ORCD_ASSIGN_OR_RETURN(std::unique_ptr<KvEventFeeds::Subscriber> subscriber, feeds.Subscribe());
  auto report = std::make_shared<KvEventReport>(host, std::move(subscriber), std::move(may));
  auto stream = std::make_shared<ReportStream>(
      context, [report] { return report->Poll(); }, kInterval, [report] { report->Cancel(); },
      kPatience);
  auto* const reactor = stream->Serve();
  // Tells the client that its subscription has begun, even if the engine's step takes long.
  reactor->StartSendInitialMetadata();
  stream->Wake();
  return reactor;
}

}  // namespace orcd
