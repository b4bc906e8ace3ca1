#include "integration_tests/http_get.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
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

std::string HttpGet(const std::string& address, const std::string& path) {
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) return "";
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in peer = Loopback(port);
  std::string answer;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) == 0) {
    // HTTP/1.0: the body ends with the connection.
    const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n");
    ::send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    char buffer[4096];
    for (ssize_t n; (n = ::recv(fd, buffer, sizeof(buffer), 0)) > 0;) answer.append(buffer, n);
  }
  ::close(fd);
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
