#include "worker/load_call.h"

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/steady_time.h"
#include "worker/report_stream.h"

namespace orcd {
namespace {

// Short of the 250 ms that are promised, for timers are late.
constexpr absl::Duration kInterval = absl::Milliseconds(150);

// What the load's thread and the call's threads share.
struct Outcome {
  // Guards what follows.
  std::mutex mutex;
  // Set before gRPC can call.
  std::shared_ptr<LoadTask> task;
  std::optional<absl::StatusOr<v1::ModelDescription>> result;
};

ReportStream::Report Poll(Outcome& outcome) {
  std::lock_guard lock(outcome.mutex);
  ReportStream::Report report;
  auto response = std::make_unique<v1::LoadResponse>();
  if (!outcome.result) {
    if (outcome.task != nullptr) {
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

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartLoadCall(grpc::CallbackServerContext* context,
                                                          const v1::LoadRequest& request,
                                                          ModelHost& host, const Logger& log,
                                                          Telemetry* telemetry) {
  auto outcome = std::make_shared<Outcome>();
  auto stream = ReportStream::Create(
      context, [outcome] { return Poll(*outcome); }, kInterval,
      [outcome] {
        std::lock_guard lock(outcome->mutex);
        outcome->task->Cancel();
      });

  log.Info("load begins", {{"model", request.model()}, {"replace", request.replace()}});
  const absl::Time start = SteadyNow();
  TraceContext trace;
  if (telemetry != nullptr) trace = telemetry->ContextOf(*context);
  auto done = [outcome, stream, start, &log, telemetry, trace = std::move(trace),
               model = request.model()](const absl::StatusOr<v1::ModelDescription>& result) {
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
    {
      std::lock_guard lock(outcome->mutex);
      outcome->result = result;
    }
    stream->Wake();
  };
  std::shared_ptr<LoadTask> task = host.Load(ToLoadSpec(request), std::move(done));
  {
    std::lock_guard lock(outcome->mutex);
    outcome->task = std::move(task);
  }
  stream->Wake();
  return stream.get();
}

}  // namespace orcd
