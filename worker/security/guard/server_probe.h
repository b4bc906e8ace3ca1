// Finds out when gRPC has finished with the calls that it was given before.
#ifndef ORCD_WORKER_SECURITY_GUARD_SERVER_PROBE_H_
#define ORCD_WORKER_SECURITY_GUARD_SERVER_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "worker/security/guard/listen_sockets.h"

namespace orcd::guard {

// Progress of gRPC: probes sent to it and answered, one after another, and calls of one loop's
// clients that were reset since. A reset call passes the same queues in gRPC as a later probe
// before gRPC frees it, so the answers to later probes (see Fence) tell that it is free.
struct ServerProgress {
  uint64_t sent = 0;
  uint64_t answered = 0;
  // Reset calls that gRPC may not have freed yet.
  int64_t unconfirmed = 0;
  // Charges of calls that gRPC has freed, and peak charges of closed connections, since freed
  // memory was last returned to the system.
  int64_t freed_bytes = 0;
  // Calls that the server has ended, and the number of these that gRPC has certainly freed.
  uint64_t ended = 0;
  uint64_t ended_and_freed = 0;
  // Number of ended calls whose charges are kept until gRPC has freed them.
  int64_t kept = 0;
  // True if there is no probe connection to ask, so that time must decide. Set to false by the code
  // that makes gRPC be asked again.
  bool unknown = false;

  // Number of the probe whose answer means that gRPC has finished with everything it was given
  // until now. It is not the probe under way, nor the next one, which some of gRPC's threads may
  // overtake.
  uint64_t Fence() const { return sent + 2; }

  // Makes every charge due that waits for an answer.
  void ConfirmAll() {
    answered = sent = Fence();
    ended_and_freed = ended;
  }

  // gRPC frees a call some time after its end. Up to this many ended calls do not justify a probe.
  static constexpr uint64_t kFewEnded = 64;
  bool ManyEnded() const { return ended - ended_and_freed > kFewEnded; }
  bool MustProbe() const {
    return unconfirmed > 0 || kept > 0 || ended - ended_and_freed > kFewEnded / 2;
  }
};

// The guard's own connection to gRPC, on which it calls grpc.health.v1.Health/Check. The answer
// comes after the work that gRPC already has, whatever the answer is. For one thread.
class ServerProbe {
 public:
  explicit ServerProbe(ServerProgress& progress) : progress_(progress) {}

  // Returns the socket for gRPC, which the caller hands over. Invalid if no socket pair can be
  // made.
  Descriptor Connect();
  // Makes a call, unless one is under way.
  void Send();
  // Reads the bytes that gRPC has written.
  void Receive();

  // Invalid if there is no connection.
  int fd() const { return socket_.get(); }

 private:
  void Write(const std::string& bytes);
  void Fail();

  ServerProgress& progress_;
  // Number of calls that had ended when the last probe was sent, and when the one before was.
  uint64_t ended_at_last_ = 0;
  uint64_t ended_before_last_ = 0;
  Descriptor socket_;
  uint32_t stream_ = 0;
  std::string received_;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_SECURITY_GUARD_SERVER_PROBE_H_
