// A thread that accepts connections and moves their bytes.
#ifndef ORCD_WORKER_GUARD_CONNECTION_LOOP_H_
#define ORCD_WORKER_GUARD_CONNECTION_LOOP_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "worker/guard/connection.h"
#include "worker/guard/guard_options.h"
#include "worker/guard/listen_sockets.h"
#include "worker/guard/server_probe.h"
#include "worker/guard/transport_budget.h"

namespace orcd::guard {

// What the loops of one guard share; outlives them.
struct LoopShared {
  LoopShared(const GuardOptions& guard_options, ConnectServer connect_server)
      : options(guard_options),
        connect([this, given = std::move(connect_server)](int fd) { Connect(given, fd); }),
        budget(guard_options.max_total_bytes) {}

  // Whether connections were accepted until now. Afterwards the server gets none any more, also of
  // those that are accepted already and of the guard's own: it may be stopping.
  bool StopAccepting();

  const GuardOptions options;
  // Hands the socket to the server, or closes it.
  const ConnectServer connect;
  TransportBudget budget;
  // Connections that are served, not those that are ending.
  std::atomic<int> connections = 0;
  // A loop that had no connection to dismiss has refused one; another loop may have one.
  std::atomic<bool> room_wanted = false;
  std::atomic<bool> accepting = true;
  std::atomic<bool> stopping = false;

 private:
  void Connect(const ConnectServer& server, int fd);

  // Held while the server is handed a connection.
  std::mutex connecting_;
};

// Owns the connections that it accepted and an epoll set with them and the listening sockets. All
// of a connection's work is done on the loop's thread, a bounded part of it a turn.
class ConnectionLoop {
 public:
  // `shared` and `sockets` must outlive the loop.
  ConnectionLoop(LoopShared& shared, const std::vector<Descriptor>& sockets);
  // Ends the thread, and with it what connections are left.
  ~ConnectionLoop();

  bool valid() const { return epoll_.valid() && wake_.valid(); }
  void Start();
  // Has the loop look at what has changed in `shared`.
  void Wake();
  // Connections, those that are ending as well. Any thread.
  int open() const { return open_.load(); }

 private:
  struct Slot {
    std::unique_ptr<Connection> connection;
    // What epoll has been told.
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
  // Ends a connection without calls, or the oldest where the options say so; false where there is
  // none.
  bool MakeRoom(absl::Time now);
  // Does what another loop could not.
  void MakeRoomForOthers(absl::Time now);
  void OnEvent(Slot& slot, bool server, uint32_t events, absl::Time now);
  // Tells epoll what the connection waits for now, or takes leave of it.
  void Settle(Slot& slot, absl::Time now);
  void Watch(int fd, bool add, uint32_t& told, uint32_t wanted, uint64_t tag) const;
  void Remove(Slot& slot, absl::Time now);
  void Tick(absl::Time now);
  // Asks gRPC how far it is where somebody waits to know.
  void Probe();
  void OnProbe(absl::Time now);
  void ReleaseLingering(absl::Time now);

  LoopShared& shared_;
  const std::vector<Descriptor>& sockets_;
  Descriptor epoll_;
  Descriptor wake_;
  ServerProgress progress_;
  ServerProbe probe_;
  std::vector<std::unique_ptr<Slot>> slots_;
  // Removed in this round; events of the round may still name them.
  std::vector<std::unique_ptr<Slot>> removed_;
  // Have input that no event will tell of.
  std::vector<Slot*> queued_;
  // Charges of connections that are gone, for gRPC has not freed all of theirs at once.
  std::deque<Linger> lingering_;
  bool listening_ = false;
  // Descriptors ran out; listen again then.
  absl::Time listen_again_;
  absl::Time next_tick_;
  // When freed memory is given back to the system, and how often that is done again: gRPC frees
  // some of it late.
  absl::Time trim_at_ = absl::InfiniteFuture();
  int trims_left_ = 0;
  Connection::Scratch scratch_;
  std::atomic<int> open_ = 0;
  std::thread thread_;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_GUARD_CONNECTION_LOOP_H_
