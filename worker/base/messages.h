// Converts messages to and from the bytes of a call.
//
// The service takes requests as bytes and parses them itself. gRPC answers a request that it cannot
// parse (in proto3 also one whose strings are not UTF-8) with UNIMPLEMENTED and no explanation.
#ifndef ORCD_WORKER_BASE_MESSAGES_H_
#define ORCD_WORKER_BASE_MESSAGES_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orcd {

// Parses `bytes`. Fails with kInvalidArgument (MALFORMED_REQUEST) if they are no message of this
// type.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);

template <typename Request>
absl::StatusOr<Request> ParseRequest(const grpc::ByteBuffer& bytes) {
  Request request;
  absl::Status status = ParseMessage(bytes, request);
  if (!status.ok()) return status;
  return request;
}

// Reads a short string from an unparsed message. `path` has the numbers of the fields that lead to
// it. Empty if the string is absent or long, if many other fields come before it, or if the bytes
// are no message. The cost does not grow with the message.
std::string PeekString(const grpc::ByteBuffer& bytes, std::span<const int> path);

// Largest message that gRPC clients accept by default.
inline constexpr size_t kMaxReplyBytes = 4 << 20;

// Returns kResourceExhausted (OUTPUT_TOO_LARGE) if a reply is larger than kMaxReplyBytes. The
// client's own error would only say that its limit is exceeded, and not what to do.
absl::Status CheckReplySize(size_t bytes);

// For the messages of a generation, whose text is UTF-8 already.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

// For messages that may hold text from outside. Each byte that is not UTF-8 is sent as U+FFFD.
grpc::ByteBuffer SerializeReply(const google::protobuf::Message& message);

}  // namespace orcd

#endif  // ORCD_WORKER_BASE_MESSAGES_H_
