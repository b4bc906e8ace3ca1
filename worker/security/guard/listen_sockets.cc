#include "worker/security/guard/listen_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

namespace orcd::guard {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses Resolve(const std::string& host, const std::string& port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &list) != 0) {
    return nullptr;
  }
  return Addresses(list);
}

void SetPort(sockaddr_storage& address, int port) {
  if (address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(static_cast<uint16_t>(port));
  }
}

// True if the list has the address before `each`, for example because a hosts file repeats it.
bool IsRepeated(const addrinfo* list, const addrinfo* each) {
  for (; list != each; list = list->ai_next) {
    if (list->ai_addrlen == each->ai_addrlen &&
        std::memcmp(list->ai_addr, each->ai_addr, each->ai_addrlen) == 0) {
      return true;
    }
  }
  return false;
}

int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

// `both_families`: an IPv6 socket also takes IPv4 connections.
Descriptor ListenOn(const sockaddr_storage& address, socklen_t size, bool both_families) {
  Descriptor fd(socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return {};
  const int on = 1;
  // A restarted worker must not have to wait until the old one's connections are forgotten.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ss_family == AF_INET6) {
    const int only = both_families ? 0 : 1;
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
  }
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return {};
  }
  return fd;
}

}  // namespace

void Descriptor::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

std::optional<ListenSockets> Listen(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const bool wildcard = host.empty() || host == "0.0.0.0" || host == "::";
  Addresses addresses = Resolve(wildcard ? "::" : host, port);
  ListenSockets result;
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    if (IsRepeated(addresses.get(), each)) continue;
    sockaddr_storage storage = {};
    std::memcpy(&storage, each->ai_addr, each->ai_addrlen);
    if (result.port != 0) SetPort(storage, result.port);
    Descriptor fd = ListenOn(storage, each->ai_addrlen, wildcard);
    if (!fd.valid()) {
      // The name may resolve to an address of a family that the machine lacks.
      if (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT) continue;
      return std::nullopt;
    }
    result.port = PortOf(fd.get());
    result.sockets.push_back(std::move(fd));
  }
  if (result.sockets.empty() && wildcard) {
    addresses = Resolve("0.0.0.0", port);
    if (addresses != nullptr) {
      sockaddr_storage storage = {};
      std::memcpy(&storage, addresses->ai_addr, addresses->ai_addrlen);
      Descriptor fd = ListenOn(storage, addresses->ai_addrlen, false);
      if (fd.valid()) {
        result.port = PortOf(fd.get());
        result.sockets.push_back(std::move(fd));
      }
    }
  }
  if (result.sockets.empty()) return std::nullopt;
  return result;
}

}  // namespace orcd::guard
