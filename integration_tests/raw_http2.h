// An HTTP/2 client that writes any frames a test wants, over plaintext or TLS.
#ifndef ORCD_INTEGRATION_TESTS_RAW_HTTP2_H_
#define ORCD_INTEGRATION_TESTS_RAW_HTTP2_H_

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace orcd::testing {

std::string RawFrame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload = "");
// A header as an HPACK literal without indexing, which changes no table.
std::string RawHeader(std::string_view name, std::string_view value);
// The header block of a call of `path`, with `more` encoded headers at its end.
std::string RawCall(std::string_view path, std::string_view more = "");

// Owns the socket. Bytes that the server does not take in time are not sent, so half a frame may
// have gone. One thread.
class RawHttp2 {
 public:
  // Connects to host:port (an IPv4 address) and sends the preface and empty SETTINGS. `tls` selects
  // TLS, which accepts any server certificate.
  RawHttp2(const std::string& address, bool tls);
  ~RawHttp2();
  RawHttp2(const RawHttp2&) = delete;
  RawHttp2& operator=(const RawHttp2&) = delete;

  // False once the connection is gone, or if the server takes nothing for `patience`.
  bool Send(std::string_view bytes, absl::Duration patience = absl::Milliseconds(200));
  // Reads what has come and keeps the headers of its frames, at most kMaxFrames.
  void Drain();
  struct Frame {
    uint8_t type;
    uint32_t stream;
  };
  const std::vector<Frame>& frames() const { return frames_; }
  bool open() const { return open_; }

 private:
  static constexpr size_t kMaxFrames = 10000;

  void Parse(std::string_view bytes);

  int fd_ = -1;
  std::vector<Frame> frames_;
  // The incomplete header of the current frame, and the bytes of its payload still to come.
  std::string header_;
  size_t payload_left_ = 0;
  bool open_ = false;
  SSL_CTX* context_ = nullptr;
  SSL* ssl_ = nullptr;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_RAW_HTTP2_H_
