// Cancels requests by id, at whatever stage they are.
#ifndef ORCD_WORKER_API_ORCD_CANCEL_REQUESTS_H_
#define ORCD_WORKER_API_ORCD_CANCEL_REQUESTS_H_

#include <functional>
#include <string>
#include <vector>

#include "worker/host/model_host.h"
#include "worker/observe/telemetry.h"

namespace orcd {

// Cancels the requests named by `ids`, which must be distinct: those that the engine runs or
// queues, and those that are not parsed yet. Calls `done` once, when the engine has freed their
// slots and blocks, either before this function returns or later on a thread of the host's write
// queue. `found` is true if any such request existed. A request that is not parsed yet ends when a
// thread comes to it, which may be after `done`. `telemetry` may be null.
void CancelRequests(ModelHost& host, Telemetry* telemetry, const std::vector<std::string>& ids,
                    std::function<void(bool found)> done);

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_CANCEL_REQUESTS_H_
