// Who this worker is.
#ifndef ORCD_WORKER_IDENTITY_H_
#define ORCD_WORKER_IDENTITY_H_

#include <string>

namespace orcd {

// This machine's name.
std::string HostName();

// A random UUID (RFC 9562, version 4).
std::string MakeInstanceId();

// The machine's name and the port of `listen` (host:port): the same after a restart, and another
// one for each worker on a machine. Where the port is left to the system (0) nothing tells workers
// apart but the process, and the start of `instance_id` stands in its place.
std::string DefaultWorkerId(const std::string& listen, const std::string& instance_id);

// The address under which others reach a server bound to `bound` (host:port): the same, with this
// machine's name in place of a host that means "all".
std::string ReachableAddress(const std::string& bound);

}  // namespace orcd

#endif  // ORCD_WORKER_IDENTITY_H_
