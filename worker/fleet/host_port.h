// Addresses in the form that flags take: host:port.
#ifndef ORCD_WORKER_FLEET_HOST_PORT_H_
#define ORCD_WORKER_FLEET_HOST_PORT_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orcd {

// A name, an IPv4 address or an IPv6 address, and a port.
struct HostPort {
  // An IPv6 address has no brackets here.
  std::string host;
  int port = 0;
  bool is_ipv6 = false;

  // The text that was parsed; an IPv6 address has brackets.
  std::string ToString() const;
};

// Parses host:port with a port of min_port to 65535. An IPv6 address needs brackets. Fails with
// kInvalidArgument, the reason and an example: no port, a port out of range, blanks or control
// characters, an IPv6 address without brackets, or a host that is neither an address nor a name.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text, int min_port);

// Parses a host without a port: a name, an IPv4 address, or an IPv6 address with brackets or
// without. The port of the result is 0. Fails with kInvalidArgument like ParseHostPort.
absl::StatusOr<HostPort> ParseHost(std::string_view text);

}  // namespace orcd

#endif  // ORCD_WORKER_FLEET_HOST_PORT_H_
