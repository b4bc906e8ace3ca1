// One server side of TLS on a socket that does not block.
#ifndef ORCD_WORKER_GUARD_TLS_SESSION_H_
#define ORCD_WORKER_GUARD_TLS_SESSION_H_

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace orcd::guard {

// How an operation on a socket ended.
enum class IoResult { kDone, kWantRead, kWantWrite, kClosed };

// Owns the TLS state; the socket is the caller's. TLS 1.2 or later, without renegotiation. One
// thread.
class TlsSession {
 public:
  // `context` is kept for as long as the session; `fd` is a connected socket that does not block.
  TlsSession(std::shared_ptr<SSL_CTX> context, int fd);

  // kDone once the handshake is complete; kClosed where it failed.
  IoResult Handshake();
  // Reads at most bytes.size() into `bytes`; `count` is how many were read, with any result.
  // Anything but kDone: no whole record is left that no event of the socket will tell of.
  IoResult Read(std::span<uint8_t> bytes, size_t& count);
  IoResult Write(std::span<const uint8_t> bytes, size_t& count);
  // Tells the client that nothing follows.
  void SendCloseNotify();

  // The common name and the alternative names (DNS, email, URI, IP, in the certificate's order) of
  // the client's certificate; none where it showed none or it was not verified.
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

#endif  // ORCD_WORKER_GUARD_TLS_SESSION_H_
