#include "worker/api/orcd/load_call.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/base/steady_time.h"
#include "worker/stream/report_stream.h"

namespace orcd {
namespace {

// Shorter than the promised 250 ms, since timers are late.
constexpr absl::Duration kInterval = absl::Milliseconds(150);

// State shared by the load's thread and the call's threads.
struct Outcome {
  const std::shared_ptr<LoadTask> task = std::make_shared<LoadTask>();
  std::atomic<bool> has_begun = false;
  // Guards the result.
  std::mutex mutex;
  std::optional<absl::StatusOr<v1::ModelDescription>> result;
};

ReportStream::Report Poll(Outcome& outcome) {
  std::lock_guard lock(outcome.mutex);
  ReportStream::Report report;
  auto response = std::make_unique<v1::LoadResponse>();
  if (!outcome.result) {
    if (outcome.has_begun) {
      *response->mutable_progress() = outcome.task->Progress();
      report.message = std::move(response);
    }
    return report;
  }
  report.end = outcome.result->status();
  if (outcome.result->ok()) {
    *response->mutable_loaded() = **outcome.result;
    report.message = std::move(response);
  }
  return report;
}

}  // namespace

ModelHost::LoadSpec ToLoadSpec(const v1::LoadRequest& request) {
  return {.model = request.model(),
          .model_id = request.model_id(),
          .sha256 = request.sha256(),
          .replace = request.replace()};
}

void StartLoad(const grpc::CallbackServerContext& context, const ModelHost::LoadSpec& spec,
               ModelHost& host, const Logger& log, Telemetry* telemetry, ModelHost::LoadDone done,
               std::shared_ptr<LoadTask> task) {
  log.Info("load begins", {{"model", spec.model}, {"replace", spec.replace}});
  const absl::Time start = SteadyNow();
  TraceContext trace = telemetry == nullptr ? TraceContext() : telemetry->ContextOf(context);
  auto ended = [done = std::move(done), start, &log, telemetry, trace = std::move(trace),
                model = spec.model](const absl::StatusOr<v1::ModelDescription>& result) {
    const double seconds = absl::ToDoubleSeconds(SteadyNow() - start);
    if (telemetry != nullptr) telemetry->OnLoadEnded(trace, model, start, result.status());
    if (result.ok()) {
      log.Info("load ended", {{"model", model},
                              {"model_id", result->model_id()},
                              {"digest", result->digest()},
                              {"seconds", seconds}});
    } else {
      log.Warning("load failed", {{"model", model},
                                  {"code", absl::StatusCodeToString(result.status().code())},
                                  {"error", std::string(result.status().message())},
                                  {"seconds", seconds}});
    }
    done(result);
  };
  host.Load(spec, std::move(ended), std::move(task));
}

void LogUnloaded(const Logger& log, const v1::UnloadResponse& response) {
  if (response.model_id().empty()) return;
  log.Info("model unloaded", {{"model_id", response.model_id()},
                              {"cancelled_requests", response.cancelled_requests()}});
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartLoadCall(grpc::CallbackServerContext* context,
                                                          const v1::LoadRequest& request,
                                                          ModelHost& host, const Logger& log,
                                                          Telemetry* telemetry) {
  auto outcome = std::make_shared<Outcome>();
  auto stream = std::make_shared<ReportStream>(
      context, [outcome] { return Poll(*outcome); }, kInterval,
      [outcome] { outcome->task->Cancel(); });
  auto* const reactor = stream->Serve();
  auto done = [outcome, stream](const absl::StatusOr<v1::ModelDescription>& result) {
    {
      std::lock_guard lock(outcome->mutex);
      outcome->result = result;
    }
    stream->Wake();
  };
  // Load looks the file up first, and a network file system may hang.
  host.threads().disk.PostAlways(
      0, [context, spec = ToLoadSpec(request), &host, &log, telemetry, outcome, stream, done] {
        StartLoad(*context, spec, host, log, telemetry, done, outcome->task);
        outcome->has_begun = true;
        stream->Wake();
      });
  return reactor;
}

}  // namespace orcd
