// Who this worker is.
#ifndef ORCD_WORKER_IDENTITY_H_
#define ORCD_WORKER_IDENTITY_H_

#include <string>

#include "absl/status/status.h"

namespace orcd {

// This machine's name.
std::string HostName();

// A random UUID (RFC 9562, version 4).
std::string MakeInstanceId();

// The machine's name and the port of `listen` (host:port): the same after a restart, and another
// one for each worker on a machine. Where the port is left to the system (0) nothing tells workers
// apart but the process, and the start of `instance_id` stands in its place.
std::string DefaultWorkerId(const std::string& listen, const std::string& instance_id);

// kInvalidArgument where `worker_id` is not up to 256 bytes of UTF-8 without control characters. It
// comes back in every status, heartbeat, log line and metric.
absl::Status CheckWorkerId(const std::string& worker_id);

// The address under which others reach a server bound to `bound` (host:port): `host` and the bound
// port, an IPv6 address in brackets. Where `host` (as ParseHost takes it) is empty, `bound` itself,
// with this machine's name in place of a host that means "all".
std::string ReachableAddress(const std::string& bound, const std::string& host = "");

}  // namespace orcd

#endif  // ORCD_WORKER_IDENTITY_H_
