// Finds out when gRPC has got through the calls that it was given before.
#ifndef ORCD_WORKER_GUARD_SERVER_PROBE_H_
#define ORCD_WORKER_GUARD_SERVER_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "worker/guard/listen_sockets.h"

namespace orcd::guard {

// How far gRPC has come: probes sent to it and answered, one after another, and calls of a loop's
// clients that were reset since. gRPC frees such a call after it has been through the same queues
// as a probe that was sent later.
struct ServerProgress {
  uint64_t sent = 0;
  uint64_t answered = 0;
  // Reset calls that gRPC may not have freed.
  int64_t unconfirmed = 0;
  // Bytes charged for reset calls that gRPC has freed since.
  int64_t freed_bytes = 0;
  // Calls that the server has ended, and of those the ones that gRPC has freed since for sure.
  uint64_t ended = 0;
  uint64_t ended_and_freed = 0;
  // Charges of ended calls that are kept until gRPC has freed them.
  int64_t kept = 0;
  // There is nobody to ask for now; time has to tell. Whoever sees to it that gRPC is asked again
  // makes it false.
  bool unknown = false;

  // The probe whose answer says that all that was given to gRPC until now is done: not the one
  // under way, nor the next, which some of gRPC's threads may overtake.
  uint64_t Fence() const { return sent + 2; }

  // gRPC frees a call some time after its end. Few of them are not worth the asking.
  static constexpr uint64_t kFewEnded = 64;
  bool ManyEnded() const { return ended - ended_and_freed > kFewEnded; }
  bool MustAsk() const {
    return unconfirmed > 0 || kept > 0 || ended - ended_and_freed > kFewEnded / 2;
  }
};

// A connection of the guard's own to gRPC, on which it calls grpc.health.v1.Health/Check: whatever
// the answer is, it comes behind the work that gRPC has. One thread.
class ServerProbe {
 public:
  explicit ServerProbe(ServerProgress& progress) : progress_(progress) {}

  // The socket for gRPC, which the caller hands over; invalid where there can be none.
  Descriptor Connect();
  // Calls, unless a call is under way.
  void Send();
  // Reads what gRPC has written.
  void Receive();

  // Invalid where there is no connection.
  int fd() const { return socket_.get(); }

 private:
  void Write(const std::string& bytes);
  void Fail();

  ServerProgress& progress_;
  // Calls that had ended when the last probe was sent, and the one before.
  uint64_t ended_at_last_ = 0;
  uint64_t ended_before_last_ = 0;
  Descriptor socket_;
  uint32_t stream_ = 0;
  std::string received_;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_GUARD_SERVER_PROBE_H_
