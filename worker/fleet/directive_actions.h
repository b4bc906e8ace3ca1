// Carries an orchestrator's directives out on this worker.
#ifndef ORCD_WORKER_FLEET_DIRECTIVE_ACTIONS_H_
#define ORCD_WORKER_FLEET_DIRECTIVE_ACTIONS_H_

#include <functional>

#include "worker/base/logging.h"
#include "worker/fleet/directives.h"
#include "worker/host/model_host.h"
#include "worker/observe/telemetry.h"

namespace orcd {

// Returns actions that do the same as the calls Load, Unload and Drain. `on_exit` is called once a
// drain that asks for the worker's exit is over. `host`, `log` and `telemetry` must outlive the
// actions.
Directives::Actions DirectiveActions(ModelHost& host, const Logger& log, Telemetry& telemetry,
                                     std::function<void()> on_exit);

}  // namespace orcd

#endif  // ORCD_WORKER_FLEET_DIRECTIVE_ACTIONS_H_
