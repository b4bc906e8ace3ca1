#include "integration_tests/raw_http2.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

namespace orcd::testing {
namespace {

constexpr char kAlpn[] = "\x02h2";

bool Await(int fd, int16_t events, absl::Duration patience) {
  pollfd wanted = {.fd = fd, .events = events, .revents = 0};
  return poll(&wanted, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) == 1;
}

void AppendNumber(uint32_t value, int bytes, std::string& out) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    out.push_back(static_cast<char>(value >> shift));
  }
}

void AppendLength(size_t size, std::string& out) {
  if (size < 127) {
    out.push_back(static_cast<char>(size));
    return;
  }
  out.push_back(127);
  for (size -= 127; size >= 128; size >>= 7) out.push_back(static_cast<char>(size % 128 + 128));
  out.push_back(static_cast<char>(size));
}

}  // namespace

std::string RawFrame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string frame;
  AppendNumber(static_cast<uint32_t>(payload.size()), 3, frame);
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  AppendNumber(stream, 4, frame);
  frame.append(payload);
  return frame;
}

std::string RawHeader(std::string_view name, std::string_view value) {
  std::string field(1, '\0');
  AppendLength(name.size(), field);
  field.append(name);
  AppendLength(value.size(), field);
  field.append(value);
  return field;
}

std::string RawCall(std::string_view path, std::string_view more) {
  // Static table entries for `:method: POST` and `:scheme: http`.
  std::string block = "\x83\x86";
  block += RawHeader(":path", path) + RawHeader(":authority", "worker") +
           RawHeader("te", "trailers") + RawHeader("content-type", "application/grpc");
  block.append(more);
  return block;
}

RawHttp2::RawHttp2(const std::string& address, bool tls) {
  signal(SIGPIPE, SIG_IGN);
  const size_t colon = address.rfind(':');
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &where.sin_addr);
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) != 0) return;
  if (tls) {
    context_ = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_alpn_protos(context_, reinterpret_cast<const uint8_t*>(kAlpn), 3);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, fd_);
    if (SSL_connect(ssl_) != 1) return;
    SSL_set_mode(ssl_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  }
  fcntl(fd_, F_SETFL, O_NONBLOCK);
  open_ = true;
  Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + RawFrame(4, 0, 0));
}

RawHttp2::~RawHttp2() {
  SSL_free(ssl_);
  SSL_CTX_free(context_);
  if (fd_ >= 0) close(fd_);
}

bool RawHttp2::Send(std::string_view bytes, absl::Duration patience) {
  while (open_ && !bytes.empty()) {
    const auto size = static_cast<int>(bytes.size());
    const ssize_t sent = ssl_ != nullptr ? SSL_write(ssl_, bytes.data(), size)
                                         : send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
      continue;
    }
    const bool blocked = ssl_ != nullptr
                             ? SSL_get_error(ssl_, static_cast<int>(sent)) == SSL_ERROR_WANT_WRITE
                             : errno == EAGAIN;
    ERR_clear_error();
    if (!blocked) open_ = false;
    if (!blocked || !Await(fd_, POLLOUT, patience)) return false;
  }
  return open_;
}

void RawHttp2::Parse(std::string_view bytes) {
  while (!bytes.empty()) {
    if (payload_left_ > 0) {
      const size_t skip = std::min(payload_left_, bytes.size());
      payload_left_ -= skip;
      bytes.remove_prefix(skip);
      continue;
    }
    header_.push_back(bytes.front());
    bytes.remove_prefix(1);
    if (header_.size() < 9) continue;
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(header_[i]); };
    payload_left_ = size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | byte(2);
    const uint32_t stream =
        uint32_t{byte(5)} << 24 | uint32_t{byte(6)} << 16 | uint32_t{byte(7)} << 8 | byte(8);
    if (frames_.size() < kMaxFrames) frames_.push_back({.type = byte(3), .stream = stream});
    header_.clear();
  }
}

void RawHttp2::Drain() {
  std::array<char, 65536> buffer;
  while (open_) {
    const ssize_t got = ssl_ != nullptr
                            ? SSL_read(ssl_, buffer.data(), static_cast<int>(buffer.size()))
                            : recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got > 0) {
      Parse({buffer.data(), static_cast<size_t>(got)});
      continue;
    }
    const bool blocked = ssl_ != nullptr
                             ? SSL_get_error(ssl_, static_cast<int>(got)) == SSL_ERROR_WANT_READ
                             : got < 0 && errno == EAGAIN;
    ERR_clear_error();
    if (!blocked) open_ = false;
    return;
  }
}

}  // namespace orcd::testing
