// Ends requests by their ids, wherever they are on their way.
#ifndef ORCD_WORKER_CANCEL_REQUESTS_H_
#define ORCD_WORKER_CANCEL_REQUESTS_H_

#include <functional>
#include <string>
#include <vector>

#include "worker/model_host.h"
#include "worker/telemetry.h"

namespace orcd {

// Ends those of `ids`, which are distinct, that the engine runs or queues, and those that still
// wait to be read. `done` is called once, by this call or later on a thread of the host's write
// queue, when what the engine held for them is free: it says whether there was any. `telemetry` may
// be null.
void CancelRequests(ModelHost& host, Telemetry* telemetry, const std::vector<std::string>& ids,
                    std::function<void(bool found)> done);

}  // namespace orcd

#endif  // ORCD_WORKER_CANCEL_REQUESTS_H_
