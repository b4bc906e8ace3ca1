// An HTTP server that answers as a test says, well or badly.
#ifndef ORCD_INTEGRATION_TESTS_SCRIPTED_HTTP_SERVER_H_
#define ORCD_INTEGRATION_TESTS_SCRIPTED_HTTP_SERVER_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace orcd {

// Owns a socket of 127.0.0.1 and a thread per connection; closes each connection after one answer.
class ScriptedHttpServer {
 public:
  struct Request {
    std::string method;
    std::string path;
    // In lower case, one per line.
    std::string headers;
    std::string body;
  };
  // Returns the whole answer, byte for byte. Without an answer the connection stays open and
  // silent. Called from any thread.
  using Handler = std::function<std::optional<std::string>(const Request&)>;

  // Port 0: any free port.
  explicit ScriptedHttpServer(Handler handler, int port = 0) : handler_(std::move(handler)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_, any, size) == 0 && ::listen(listener_, 64) == 0 &&
        ::getsockname(listener_, any, &size) == 0) {
      port_ = ntohs(address.sin_port);
      acceptor_ = std::thread([this] { Accept(); });
    }
  }

  ~ScriptedHttpServer() {
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    if (acceptor_.joinable()) acceptor_.join();
    {
      std::lock_guard lock(mutex_);
      for (const Connection& connection : connections_) ::shutdown(connection.fd, SHUT_RDWR);
    }
    // Nothing is added once the acceptor has ended.
    for (Connection& connection : connections_) {
      connection.thread.join();
      ::close(connection.fd);
    }
    ::close(listener_);
  }
  ScriptedHttpServer(const ScriptedHttpServer&) = delete;
  ScriptedHttpServer& operator=(const ScriptedHttpServer&) = delete;

  // 0 if the server does not listen.
  int port() const { return port_; }
  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_); }

  static std::string Answer(int status, const std::string& body) {
    return absl::StrCat("HTTP/1.1 ", status, " Scripted\r\ncontent-type: application/json\r\n",
                        "content-length: ", body.size(), "\r\nconnection: close\r\n\r\n", body);
  }

 private:
  struct Connection {
    int fd = -1;
    std::thread thread;
  };

  void Accept() {
    while (!stopping_) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      std::lock_guard lock(mutex_);
      connections_.push_back({fd, std::thread([this, fd] { Serve(fd); })});
    }
  }

  void Serve(int fd) const {
    std::string bytes;
    char buffer[4096];
    const std::optional<Request> request = [&]() -> std::optional<Request> {
      for (ssize_t n; (n = ::recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
        bytes.append(buffer, static_cast<size_t>(n));
        if (auto whole = Parse(bytes)) return whole;
      }
      return std::nullopt;
    }();
    if (!request) return;
    const std::optional<std::string> answer = handler_(*request);
    size_t sent = 0;
    while (answer && sent < answer->size()) {
      const ssize_t n = ::send(fd, answer->data() + sent, answer->size() - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
    if (answer) ::shutdown(fd, SHUT_WR);
    while (::recv(fd, buffer, sizeof(buffer), 0) > 0) {
    }
  }

  // Null until the whole request is there.
  static std::optional<Request> Parse(const std::string& bytes) {
    const size_t head_end = bytes.find("\r\n\r\n");
    if (head_end == std::string::npos) return std::nullopt;
    Request request;
    const size_t space = bytes.find(' ');
    request.method = bytes.substr(0, space);
    request.path = bytes.substr(space + 1, bytes.find(' ', space + 1) - space - 1);
    request.headers = absl::AsciiStrToLower(bytes.substr(0, head_end + 2));
    constexpr char kLength[] = "\r\ncontent-length: ";
    size_t length = 0;
    if (const size_t at = request.headers.find(kLength); at != std::string::npos) {
      const size_t begin = at + sizeof(kLength) - 1;
      uint64_t number = 0;
      const size_t end = request.headers.find("\r\n", begin);
      if (absl::SimpleAtoi(request.headers.substr(begin, end - begin), &number)) length = number;
    }
    request.body = bytes.substr(head_end + 4);
    if (request.body.size() < length) return std::nullopt;
    return request;
  }

  const Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread acceptor_;

  std::mutex mutex_;
  // Guarded by mutex_ while the acceptor runs.
  std::list<Connection> connections_;
};

}  // namespace orcd

#endif  // ORCD_INTEGRATION_TESTS_SCRIPTED_HTTP_SERVER_H_
