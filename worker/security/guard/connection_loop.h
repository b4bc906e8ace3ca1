// A thread that accepts connections and moves their bytes.
#ifndef ORCD_WORKER_SECURITY_GUARD_CONNECTION_LOOP_H_
#define ORCD_WORKER_SECURITY_GUARD_CONNECTION_LOOP_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "worker/security/guard/connection.h"
#include "worker/security/guard/guard_options.h"
#include "worker/security/guard/listen_sockets.h"
#include "worker/security/guard/server_probe.h"
#include "worker/security/guard/transport_budget.h"

namespace orcd::guard {

// State that the loops of one guard share. Outlives them.
struct LoopShared {
  LoopShared(const GuardOptions& guard_options, ServerSide given)
      : options(guard_options),
        server{
            .connect = [this, connect = std::move(given.connect)](int fd) { Connect(connect, fd); },
            .make_local = std::move(given.make_local)},
        budget(guard_options.max_total_bytes) {}

  // Returns true if connections were accepted until now. From then on the server gets no
  // connection, neither one that is already accepted nor one of the guard itself, because the
  // server may be stopping.
  bool StopAccepting();

  const GuardOptions options;
  // `connect` closes the socket if no more connections are accepted.
  const ServerSide server;
  TransportBudget budget;
  // Connections in service. Connections that are ending do not count.
  std::atomic<int> connections = 0;
  // Set by a loop that refused a connection because it had none to dismiss; another loop may have
  // one.
  std::atomic<bool> room_wanted = false;
  std::atomic<bool> accepting = true;
  std::atomic<bool> stopping = false;

 private:
  void Connect(const std::function<void(int fd)>& connect, int fd);

  // Held while a connection is handed to the server.
  std::mutex connecting_;
};

// Owns the connections that it accepted, and an epoll set of them and the listening sockets. All
// work of a connection is done on the loop's thread, a bounded part in each turn.
class ConnectionLoop {
 public:
  // `shared` and `sockets` must outlive the loop.
  ConnectionLoop(LoopShared& shared, const std::vector<Descriptor>& sockets);
  // Ends the thread and the connections that are left.
  ~ConnectionLoop();

  bool valid() const { return epoll_.valid() && wake_.valid(); }
  void Start();
  // Makes the loop look at the changes in `shared`.
  void Wake();
  // Number of connections, including those that are ending. Any thread.
  int open() const { return open_.load(); }

 private:
  struct Slot {
    std::unique_ptr<Connection> connection;
    // The events that are registered with epoll.
    uint32_t client_events = 0;
    uint32_t server_events = 0;
    bool server_added = false;
    bool active = true;
    absl::Time accepted;
    bool queued = false;
    size_t index = 0;
  };
  struct Linger {
    absl::Time until;
    uint64_t fence;
    int64_t charge;
  };

  void Run();
  int WaitMilliseconds() const;
  void Listen(bool on);
  void Accept(int socket, absl::Time now);
  void Add(Descriptor client, absl::Time now);
  // Ends a connection without calls, or the oldest one if the options say so. False if there is
  // none to end.
  bool MakeRoom(absl::Time now);
  // Dismisses a connection for another loop that had none to dismiss.
  void MakeRoomForOthers(absl::Time now);
  void OnEvent(Slot& slot, bool server, uint32_t events, absl::Time now);
  // Registers with epoll the events that the connection now waits for, or removes a closed
  // connection.
  void Settle(Slot& slot, absl::Time now);
  void Watch(int fd, bool add, uint32_t& told, uint32_t wanted, uint64_t tag) const;
  void Remove(Slot& slot, absl::Time now);
  void Tick(absl::Time now);
  // Sends gRPC a probe if some charge waits for gRPC's progress.
  void Probe(absl::Time now);
  void OnProbe(absl::Time now);
  void ReleaseLingering(absl::Time now);

  LoopShared& shared_;
  const std::vector<Descriptor>& sockets_;
  Descriptor epoll_;
  Descriptor wake_;
  ServerProgress progress_;
  ServerProbe probe_;
  std::vector<std::unique_ptr<Slot>> slots_;
  // Slots removed in this round. Events of the round may still name them.
  std::vector<std::unique_ptr<Slot>> removed_;
  // Slots with input that no event announces.
  std::vector<Slot*> queued_;
  // Charges of closed connections, kept because gRPC does not free all their memory at once.
  std::deque<Linger> lingering_;
  bool listening_ = false;
  // Time to listen again after descriptors ran out.
  absl::Time listen_again_;
  absl::Time next_tick_;
  // Time at which freed memory is returned to the system, and how often that is repeated: gRPC
  // frees some of it late.
  absl::Time trim_at_ = absl::InfiniteFuture();
  int trims_left_ = 0;
  Connection::Scratch scratch_;
  std::atomic<int> open_ = 0;
  std::thread thread_;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_SECURITY_GUARD_CONNECTION_LOOP_H_
