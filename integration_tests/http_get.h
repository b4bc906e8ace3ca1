// The least of HTTP and sockets that a test of an endpoint needs.
#ifndef ORCD_INTEGRATION_TESTS_HTTP_GET_H_
#define ORCD_INTEGRATION_TESTS_HTTP_GET_H_

#include <string>

namespace orcd::testing {

// A socket that is connected to `address` (host:port, an IPv6 address in brackets), which the
// caller closes; -1 where nobody listens there.
int ConnectTo(const std::string& address);

// The body of the answer to GET `path` at `address`; empty where it is not 200.
std::string HttpGet(const std::string& address, const std::string& path);

// Makes the TCP socket listen on a free port of 127.0.0.1; the port, or -1.
int ListenOnLoopback(int socket);

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_HTTP_GET_H_
