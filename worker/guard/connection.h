// One client's connection: its socket, its TLS, its filter and the socket pair to gRPC.
#ifndef ORCD_WORKER_GUARD_CONNECTION_H_
#define ORCD_WORKER_GUARD_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker/guard/connection_filter.h"
#include "worker/guard/guard_options.h"
#include "worker/guard/listen_sockets.h"
#include "worker/guard/tls_session.h"

namespace orcd::guard {

// Takes over a connected socket that does not block and serves HTTP/2 on it.
using ConnectServer = std::function<void(int fd)>;

// Moves bytes between a client and gRPC, at most 64 KiB each way a turn. Reads neither side while
// the other does not take what was read before. One thread.
class Connection {
 public:
  enum class Phase {
    // TLS, then HTTP/2's preface; gRPC knows nothing of the connection.
    kHandshake,
    kPreface,
    kOpen,
    // Nothing is read; what is left is written, then the client is given time to read it.
    kFlush,
    kLinger,
    kClosed,
  };
  // Which sides an event says can be read or written.
  struct Ready {
    bool client_in = false;
    bool client_out = false;
    bool server_in = false;
    bool server_out = false;
  };
  // Buffers that a thread's connections share.
  struct Scratch {
    std::vector<uint8_t> input = std::vector<uint8_t>(64 << 10);
    ConnectionFilter::Output output;
  };

  // All that is given by reference must outlive the connection. `client` does not block.
  Connection(const GuardOptions& options, const ConnectServer& connect, TransportBudget& total,
             ServerProgress& progress, Descriptor client, absl::Time now);

  bool ChargeConnection() { return filter_.ChargeConnection(); }
  // Moves what there is to move.
  void Turn(const Ready& ready, absl::Time now, Scratch& scratch);
  // Ends what has taken too long, and releases charges that are due.
  void Tick(absl::Time now, Scratch& scratch);
  // Ends the connection with a GOAWAY.
  void Dismiss(absl::Time now, Scratch& scratch);
  // A side has hung up: the client is gone; the server has written all it will.
  void OnClientGone() { phase_ = Phase::kClosed; }
  void OnServerGone() { server_gone_ = true; }
  // Closes both sides; nothing may be called afterwards.
  void Close();

  Phase phase() const { return phase_; }
  bool active() const { return phase_ < Phase::kFlush; }
  // Whether there is input that no event will tell of.
  bool wants_turn() const;
  // Epoll's events that the sides wait for.
  uint32_t client_events() const;
  uint32_t server_events() const;
  int client_fd() const { return client_.get(); }
  // Invalid before kOpen and after the server has gone.
  int server_fd() const { return server_.get(); }
  bool server_gone() const { return server_gone_; }
  // Since when it has had no call that makes it one in use; nothing while it has one.
  std::optional<absl::Time> idle_since() const;
  const ConnectionFilter& filter() const { return filter_; }
  int64_t DetachCharge() { return filter_.DetachCharge(); }

 private:
  void Handshake();
  void ReadClient(absl::Time now, Scratch& scratch);
  void ReadServer(absl::Time now, Scratch& scratch);
  void Feed(std::span<const uint8_t> bytes, absl::Time now, Scratch& scratch);
  // Writes what waits and then `fresh`; what the side does not take waits.
  void ToClient(std::string& fresh);
  void ToServer(std::string& fresh);
  bool MayReadClient() const;
  void OpenServer();
  void BeginFlush(absl::Time now, absl::Duration limit);
  void Flush(absl::Time now);
  void Linger(Scratch& scratch);
  IoResult Receive(std::span<uint8_t> bytes, size_t& count);
  IoResult SendClient(std::span<const uint8_t> bytes, size_t& count);

  const ConnectServer& connect_;
  Descriptor client_;
  Descriptor server_;
  std::unique_ptr<TlsSession> tls_;
  ConnectionFilter filter_;
  Phase phase_ = Phase::kPreface;
  // When the phase ends at the latest; kOpen has no end.
  absl::Time deadline_;
  absl::Time idle_since_;
  // What a side did not take yet.
  std::string to_client_;
  std::string to_server_;
  // Read from the client, and not to be looked at before the server has answered.
  std::string held_;
  // TLS wants to write before it can go on reading.
  bool tls_wants_write_ = false;
  // TLS may have whole records that were not read: the buffer was full before.
  bool tls_more_ = false;
  bool server_gone_ = false;
  size_t discarded_ = 0;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_GUARD_CONNECTION_H_
