#include "worker/fleet/directive_actions.h"

#include <optional>
#include <utility>

#include "runtime/base/steady_time.h"
#include "worker/api/orcd/drain_call.h"
#include "worker/api/orcd/load_call.h"

namespace orcd {
namespace {

void LogEnd(const Logger& log, std::string_view action, const absl::Status& status) {
  if (status.ok()) {
    log.Info("directive carried out", {{"action", action}});
  } else {
    log.Warning("directive failed", {{"action", action},
                                     {"code", absl::StatusCodeToString(status.code())},
                                     {"error", std::string(status.message())}});
  }
}

}  // namespace

Directives::Actions DirectiveActions(ModelHost& host, const Logger& log, Telemetry& telemetry,
                                     std::function<void()> on_exit) {
  Directives::Actions actions;
  actions.load = [&host, &log, &telemetry](const v1::LoadRequest& request, Directives::Done done) {
    log.Info("load begins",
             {{"model", request.model()}, {"replace", request.replace()}, {"by", "directive"}});
    auto ended = [&log, &telemetry, model = request.model(), begun = SteadyNow(),
                  done = std::move(done)](const absl::StatusOr<v1::ModelDescription>& loaded) {
      // A directive belongs to no caller's trace.
      telemetry.OnLoadEnded(TraceContext(), model, begun, loaded.status());
      LogEnd(log, "load", loaded.status());
      done(loaded.status());
    };
    // Load looks the file up first, and heartbeats must not wait for a disk.
    host.threads().disk.PostAlways(0, [&host, spec = ToLoadSpec(request),
                                       ended = std::move(ended)] { host.Load(spec, ended); });
  };
  actions.unload = [&host, &log](const v1::UnloadRequest& request, Directives::Done done) {
    host.Unload(request.model_id(), request.force(),
                [&log, done = std::move(done)](const absl::StatusOr<v1::UnloadResponse>& unloaded) {
                  LogEnd(log, "unload", unloaded.status());
                  done(unloaded.status());
                });
  };
  actions.drain = [&host, &log, on_exit = std::move(on_exit)](const v1::DrainRequest& request,
                                                              Directives::Done done) {
    const absl::StatusOr<std::optional<absl::Duration>> timeout = DrainTimeout(request);
    if (!timeout.ok()) {
      LogEnd(log, "drain", timeout.status());
      done(timeout.status());
      return;
    }
    log.Info("drain begins", {{"by", "directive"}, {"exit", request.exit()}});
    host.Drain(*timeout);
    host.WhenDrained(
        [&log, on_exit, exit = request.exit(), done = std::move(done)](const absl::Status& status) {
          LogEnd(log, "drain", status);
          done(status);
          if (exit && status.ok()) on_exit();
        });
  };
  return actions;
}

}  // namespace orcd
