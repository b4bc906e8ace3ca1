#include "integration_tests/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace orcd::testing {
namespace {

// An idle relay notices a cut or its end within this time.
constexpr int kLookEveryMs = 10;

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

Relay::Relay() {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::abort();
  }
  address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  thread_ = std::thread([this] { Run(); });
}

Relay::~Relay() {
  stop_ = true;
  thread_.join();
  for (const Connection& connection : connections_) {
    ::close(connection.client);
    ::close(connection.server);
  }
  ::close(listener_);
}

void Relay::SetTarget(const std::string& address) {
  std::lock_guard lock(mutex_);
  target_port_ = std::atoi(address.substr(address.rfind(':') + 1).c_str());
}

void Relay::Cut() {
  std::lock_guard lock(mutex_);
  is_cut_ = true;
  for (Connection& connection : connections_) connection.is_silent = true;
}

void Relay::Restore() {
  std::lock_guard lock(mutex_);
  is_cut_ = false;
}

void Relay::Run() {
  std::vector<pollfd> fds;
  while (!stop_) {
    fds.clear();
    {
      std::lock_guard lock(mutex_);
      const auto add = [&fds](int fd) { fds.push_back({fd, POLLIN, 0}); };
      if (!is_cut_ && target_port_ != 0) add(listener_);
      for (const Connection& connection : connections_) {
        if (connection.is_silent) continue;
        add(connection.client);
        add(connection.server);
      }
    }
    ::poll(fds.data(), fds.size(), kLookEveryMs);
    std::lock_guard lock(mutex_);
    for (const pollfd& ready : fds) {
      if (ready.revents == 0) continue;
      if (ready.fd == listener_) {
        if (!is_cut_) Accept();
        continue;
      }
      for (auto it = connections_.begin(); it != connections_.end(); ++it) {
        if (it->is_silent || (ready.fd != it->client && ready.fd != it->server)) continue;
        if (!Pass(ready.fd, ready.fd == it->client ? it->server : it->client)) {
          ::close(it->client);
          ::close(it->server);
          connections_.erase(it);
        }
        break;
      }
    }
  }
}

void Relay::Accept() {
  const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;
  const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(target_port_);
  if (::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    ::close(client);
    ::close(server);
    return;
  }
  connections_.push_back({client, server, /*is_silent=*/false});
}

bool Relay::Pass(int from, int to) {
  char buffer[64 << 10];
  const ssize_t read = ::recv(from, buffer, sizeof(buffer), MSG_DONTWAIT);
  // The descriptor was reused by a connection that has no data.
  if (read < 0 && errno == EAGAIN) return true;
  if (read <= 0) return false;
  for (ssize_t passed = 0; passed < read;) {
    const ssize_t sent =
        ::send(to, buffer + passed, static_cast<size_t>(read - passed), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    passed += sent;
  }
  return true;
}

}  // namespace orcd::testing
