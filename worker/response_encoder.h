// How the events of a request become messages of a protocol.
#ifndef ORCD_WORKER_RESPONSE_ENCODER_H_
#define ORCD_WORKER_RESPONSE_ENCODER_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "runtime/engine/request.h"

namespace orcd {

// Of one request. Called by one thread at a time, in the order of the events; those between may be
// merged, and none but the end comes where the client has gone.
class ResponseEncoder {
 public:
  struct End {
    // In the order in which they are to be written.
    std::vector<grpc::ByteBuffer> messages = {};
    absl::Status status = absl::OkStatus();
  };

  virtual ~ResponseEncoder() = default;

  // The message that says so, where the protocol has one.
  virtual std::optional<grpc::ByteBuffer> OnStarted(const StartedEvent& event) = 0;
  virtual std::optional<grpc::ByteBuffer> OnDelta(DeltaEvent event) = 0;
  // The last messages and the call's status. `status` is what orcd.v1 would end with.
  virtual End OnFinished(const FinishedEvent& event, const absl::Status& status) = 0;

  // About what it keeps in memory of the events so far.
  virtual size_t held_bytes() const { return 0; }
};

}  // namespace orcd

#endif  // ORCD_WORKER_RESPONSE_ENCODER_H_
