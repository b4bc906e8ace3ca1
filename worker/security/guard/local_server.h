// The server of one connection on the guard's own thread, in place of gRPC behind a socket pair.
#ifndef ORCD_WORKER_SECURITY_GUARD_LOCAL_SERVER_H_
#define ORCD_WORKER_SECURITY_GUARD_LOCAL_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace orcd::guard {

// Bytes of HTTP/2 in and bytes out. Must not block. For one thread.
class LocalServer {
 public:
  virtual ~LocalServer() = default;

  // Consumes bytes from the client. Returns false if the connection must be closed.
  virtual bool Receive(std::span<const uint8_t> bytes) = 0;
  // Appends bytes for the client to `out`, until it has about `most` bytes. Returns false if the
  // connection is over.
  virtual bool Send(size_t most, std::string& out) = 0;
  // Called at least every 200 ms, and before the end if the guard stops. Queues what is to be sent
  // without a request.
  virtual void OnTick() = 0;
};

// The way to the server. One of the two is set.
struct ServerSide {
  // Takes over a connected non-blocking socket and serves HTTP/2 on it.
  std::function<void(int fd)> connect = nullptr;
  // Makes the server of a new connection.
  std::function<std::unique_ptr<LocalServer>()> make_local = nullptr;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_SECURITY_GUARD_LOCAL_SERVER_H_
