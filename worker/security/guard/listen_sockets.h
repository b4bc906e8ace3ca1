// Sockets that listen on an address given by a flag.
#ifndef ORCD_WORKER_SECURITY_GUARD_LISTEN_SOCKETS_H_
#define ORCD_WORKER_SECURITY_GUARD_LISTEN_SOCKETS_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace orcd::guard {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close();

 private:
  int fd_ = -1;
};

struct ListenSockets {
  // One non-blocking socket for each address that the host's name resolves to.
  std::vector<Descriptor> sockets;
  int port = 0;
};

// Listens on host:port. The host is an IPv4 address, an IPv6 address in brackets, or a name;
// 0.0.0.0 and [::] stand for all addresses of both families. Port 0 takes any free port. Returns
// nothing if one of the addresses cannot be bound. The port is not shared with another process.
std::optional<ListenSockets> Listen(const std::string& address);

}  // namespace orcd::guard

#endif  // ORCD_WORKER_SECURITY_GUARD_LISTEN_SOCKETS_H_
