// The server side of one TLS connection, on a non-blocking socket.
#ifndef ORCD_WORKER_SECURITY_GUARD_TLS_SESSION_H_
#define ORCD_WORKER_SECURITY_GUARD_TLS_SESSION_H_

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace orcd::guard {

// The result of an operation on a socket.
enum class IoResult { kDone, kWantRead, kWantWrite, kClosed };

// Owns the TLS state; the caller owns the socket. TLS 1.2 or later, without renegotiation. For one
// thread.
class TlsSession {
 public:
  // Keeps `context` for the life of the session. `fd` is a connected non-blocking socket.
  TlsSession(std::shared_ptr<SSL_CTX> context, int fd);

  // kDone once the handshake is complete; kClosed if it failed.
  IoResult Handshake();
  // Reads at most bytes.size() into `bytes` and sets `count` to the number of bytes read, with any
  // result. A result other than kDone means that TLS holds no whole unread record: the socket's
  // next event announces the next one.
  IoResult Read(std::span<uint8_t> bytes, size_t& count);
  IoResult Write(std::span<const uint8_t> bytes, size_t& count);
  // Tells the client that nothing follows.
  void SendCloseNotify();

  // The common name and the alternative names (DNS, email, URI, IP, in the certificate's order) of
  // the client's certificate. Empty if the client sent no certificate or it was not verified.
  std::vector<std::string> PeerNames() const;

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  IoResult ResultOf(int returned);

  const std::shared_ptr<SSL_CTX> context_;
  std::unique_ptr<SSL, Free> ssl_;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_SECURITY_GUARD_TLS_SESSION_H_
