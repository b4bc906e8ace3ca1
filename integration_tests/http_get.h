// A minimal HTTP client and socket helpers for tests of endpoints.
#ifndef ORCD_INTEGRATION_TESTS_HTTP_GET_H_
#define ORCD_INTEGRATION_TESTS_HTTP_GET_H_

#include <string>

namespace orcd::testing {

// Connects a socket to `address` (host:port, an IPv6 address in brackets). The caller closes it.
// Returns -1 if nobody listens there.
int ConnectTo(const std::string& address);

// The body of the answer to GET `path` at `address`; empty if the status is not 200.
std::string HttpGet(const std::string& address, const std::string& path);

// Makes the TCP socket listen on a free port of 127.0.0.1. Returns the port, or -1.
int ListenOnLoopback(int socket);

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_HTTP_GET_H_
