// Encodes the events of a request as messages of a protocol.
#ifndef ORCD_WORKER_STREAM_RESPONSE_ENCODER_H_
#define ORCD_WORKER_STREAM_RESPONSE_ENCODER_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "runtime/engine/request.h"

namespace orcd {

// Encoder of one request. One thread at a time calls it, in the order of the events. Deltas may be
// merged, and if the client has gone only the end comes.
class ResponseEncoder {
 public:
  struct End {
    // In the order in which they must be written.
    std::vector<grpc::ByteBuffer> messages = {};
    absl::Status status = absl::OkStatus();
  };

  virtual ~ResponseEncoder() = default;

  // Returns the message for the event, if the protocol has one.
  virtual std::optional<grpc::ByteBuffer> OnStarted(const StartedEvent& event) = 0;
  virtual std::optional<grpc::ByteBuffer> OnDelta(DeltaEvent event) = 0;
  // Returns the last messages and the call's status. `status` is the one that orcd.v1 would end
  // with.
  virtual End OnFinished(const FinishedEvent& event, const absl::Status& status) = 0;

  // True if no message comes before the last ones: the deltas may wait until then.
  virtual bool is_at_once() const { return false; }
  // Approximate memory that the encoder keeps of the events so far.
  virtual size_t held_bytes() const { return 0; }
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_RESPONSE_ENCODER_H_
