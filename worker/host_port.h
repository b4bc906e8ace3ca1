// Addresses as flags name them: host:port.
#ifndef ORCD_WORKER_HOST_PORT_H_
#define ORCD_WORKER_HOST_PORT_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orcd {

// A name, an IPv4 address or an IPv6 address, and a port.
struct HostPort {
  // An IPv6 address stands here without its brackets.
  std::string host;
  int port = 0;
  bool is_ipv6 = false;

  // As it was parsed; an IPv6 address in brackets.
  std::string ToString() const;
};

// Parses host:port with a port of min_port to 65535 and, where the host is an IPv6 address,
// brackets around it. kInvalidArgument with the reason and an example: no port, a port out of
// range, blanks or control characters, an IPv6 address without brackets, a host that is neither an
// address nor a name.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text, int min_port);

// Parses a host without a port: a name, an IPv4 address, an IPv6 address with brackets or without.
// The port of the result is 0. kInvalidArgument as ParseHostPort.
absl::StatusOr<HostPort> ParseHost(std::string_view text);

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_PORT_H_
