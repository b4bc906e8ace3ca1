// The identity of this worker.
#ifndef ORCD_WORKER_FLEET_IDENTITY_H_
#define ORCD_WORKER_FLEET_IDENTITY_H_

#include <string>

#include "absl/status/status.h"

namespace orcd {

// This machine's name.
std::string HostName();

// A random UUID (RFC 9562, version 4).
std::string MakeInstanceId();

// Returns the machine's name and the port of `listen` (host:port). This is stable across restarts
// and distinct for each worker on a machine. If the system chooses the port (0), nothing but the
// process tells workers apart, and the beginning of `instance_id` replaces the port.
std::string DefaultWorkerId(const std::string& listen, const std::string& instance_id);

// Returns kInvalidArgument unless `worker_id` is at most 256 bytes of UTF-8 without control
// characters. The worker repeats it in every status, heartbeat, log line and metric.
absl::Status CheckWorkerId(const std::string& worker_id);

// Returns the address under which others reach a server bound to `bound` (host:port): `host` with
// the bound port, an IPv6 address in brackets. `host` has the form that ParseHost takes. If it is
// empty, the result is `bound`, with this machine's name in place of a host that means "all".
std::string ReachableAddress(const std::string& bound, const std::string& host = "");

}  // namespace orcd

#endif  // ORCD_WORKER_FLEET_IDENTITY_H_
