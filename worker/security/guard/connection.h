// One client's connection: its socket, its TLS, its filter and its server's side.
#ifndef ORCD_WORKER_SECURITY_GUARD_CONNECTION_H_
#define ORCD_WORKER_SECURITY_GUARD_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker/security/guard/connection_filter.h"
#include "worker/security/guard/guard_options.h"
#include "worker/security/guard/listen_sockets.h"
#include "worker/security/guard/local_server.h"
#include "worker/security/guard/tls_session.h"

namespace orcd::guard {

// Moves bytes between a client and its server (gRPC behind a socket pair, or a LocalServer), at
// most 64 KiB each way in a turn. Does not read from one side while the other side has not taken
// the bytes read before. For one thread.
class Connection {
 public:
  enum class Phase {
    // TLS, then the preface of HTTP/2. The server does not know of the connection yet.
    kHandshake,
    kPreface,
    kOpen,
    // In kFlush nothing is read and the remaining bytes are written. In kLinger the client has time
    // to read them.
    kFlush,
    kLinger,
    kClosed,
  };
  // The sides that an event reports as readable or writable.
  struct Ready {
    bool client_in = false;
    bool client_out = false;
    bool server_in = false;
    bool server_out = false;
  };
  // Buffers that the connections of one thread share.
  struct Scratch {
    std::vector<uint8_t> input = std::vector<uint8_t>(64 << 10);
    ConnectionFilter::Output output;
    // Bytes of a local server.
    std::string from_local;
  };

  // All reference arguments must outlive the connection. `client` is non-blocking.
  Connection(const GuardOptions& options, const ServerSide& server, TransportBudget& total,
             ServerProgress& progress, Descriptor client, absl::Time now);

  bool ChargeConnection() { return filter_.ChargeConnection(); }
  // Moves the bytes that can be moved now.
  void Turn(const Ready& ready, absl::Time now, Scratch& scratch);
  // Ends the connection if it has taken too long, and releases charges that are due.
  void Tick(absl::Time now, Scratch& scratch);
  // Ends the connection with a GOAWAY.
  void Dismiss(absl::Time now, Scratch& scratch);
  // Report that a side has hung up. A client that hangs up is gone; a server that does so has
  // written all its bytes.
  void OnClientGone() { phase_ = Phase::kClosed; }
  void OnServerGone() { server_gone_ = true; }
  // Ends a connection whose server is local, once the server has said its last words.
  void EndLocalServer(absl::Time now, Scratch& scratch);
  // Closes both sides. No other call may follow.
  void Close();

  Phase phase() const { return phase_; }
  bool active() const { return phase_ < Phase::kFlush; }
  // True if there is input that no event announces.
  bool wants_turn() const;
  // The epoll events that each side waits for.
  uint32_t client_events() const;
  uint32_t server_events() const;
  int client_fd() const { return client_.get(); }
  // Invalid before kOpen, after the server has gone, and if the server is local.
  int server_fd() const { return server_.get(); }
  bool server_gone() const { return server_gone_; }
  // The time since which the connection has had no call that counts as use. Nothing while it has
  // one.
  std::optional<absl::Time> idle_since() const;
  const ConnectionFilter& filter() const { return filter_; }
  int64_t DetachCharge() { return filter_.DetachCharge(); }

 private:
  void Handshake();
  void ReadClient(absl::Time now, Scratch& scratch);
  void ReadServer(absl::Time now, Scratch& scratch);
  void Feed(std::span<const uint8_t> bytes, absl::Time now, Scratch& scratch);
  // Write the waiting bytes and then `fresh`. Bytes that the side does not take wait.
  void ToClient(std::string& fresh);
  void ToServer(std::string& fresh);
  bool MayReadClient() const;
  bool has_server() const { return server_.valid() || local_ != nullptr; }
  void OpenServer();
  void BeginFlush(absl::Time now, absl::Duration limit);
  void Flush(absl::Time now);
  void Linger(Scratch& scratch);
  IoResult Receive(std::span<uint8_t> bytes, size_t& count);
  IoResult SendClient(std::span<const uint8_t> bytes, size_t& count);
  // Sets `bytes` to bytes of the server.
  IoResult ReceiveServer(Scratch& scratch, std::span<const uint8_t>& bytes);
  IoResult SendServer(std::span<const uint8_t> bytes, size_t& count);

  const ServerSide& server_side_;
  Descriptor client_;
  // One of the two is set from kOpen on.
  Descriptor server_;
  std::unique_ptr<LocalServer> local_;
  std::unique_ptr<TlsSession> tls_;
  ConnectionFilter filter_;
  Phase phase_ = Phase::kPreface;
  // Latest end of the phase; kOpen has no end.
  absl::Time deadline_;
  absl::Time idle_since_;
  // Bytes that a side has not taken yet.
  std::string to_client_;
  std::string to_server_;
  // Bytes read from the client that must not be processed before the server has answered.
  std::string held_;
  // TLS must write before it can go on reading.
  bool tls_wants_write_ = false;
  // TLS may hold whole unread records, because the buffer was full after the last read.
  bool tls_more_ = false;
  bool server_gone_ = false;
  // The local server may have more to send.
  bool local_more_ = false;
  size_t discarded_ = 0;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_SECURITY_GUARD_CONNECTION_H_
