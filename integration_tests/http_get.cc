#include "integration_tests/http_get.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace orcd::testing {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

int ConnectTo(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return -1;
  std::string host = address.substr(0, colon);
  if (absl::StartsWith(host, "[")) host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) {
    return -1;
  }
  int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
    ::close(fd);
    fd = -1;
  }
  ::freeaddrinfo(found);
  return fd;
}

std::string HttpGet(const std::string& address, const std::string& path) {
  const int fd = ConnectTo(address);
  std::string answer;
  if (fd >= 0) {
    // With HTTP/1.0 the body ends with the connection.
    const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n");
    ::send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    char buffer[4096];
    for (ssize_t n; (n = ::recv(fd, buffer, sizeof(buffer), 0)) > 0;) answer.append(buffer, n);
  }
  if (fd >= 0) ::close(fd);
  const size_t body = answer.find("\r\n\r\n");
  if (body == std::string::npos || !absl::StrContains(answer.substr(0, 20), " 200 ")) return "";
  return answer.substr(body + 4);
}

int ListenOnLoopback(int socket) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(socket, 16) != 0 ||
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return -1;
  }
  return ntohs(address.sin_port);
}

}  // namespace orcd::testing
