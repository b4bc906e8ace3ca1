// Messages to and from the bytes of a call.
//
// The service takes requests as bytes and parses them itself: gRPC answers a request that it cannot
// parse (in proto3 also one whose strings are not UTF-8) with UNIMPLEMENTED and no word of why.
#ifndef ORCD_WORKER_MESSAGES_H_
#define ORCD_WORKER_MESSAGES_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orcd {

// kInvalidArgument (MALFORMED_REQUEST) where `bytes` are no message of this type.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);

template <typename Request>
absl::StatusOr<Request> ParseRequest(const grpc::ByteBuffer& bytes) {
  Request request;
  absl::Status status = ParseMessage(bytes, request);
  if (!status.ok()) return status;
  return request;
}

// A short string of a message that is not parsed yet: `path` has the numbers of the fields that
// lead to it. Empty where it is absent or long, where many other fields come before it, or where
// the bytes are no message; its cost does not grow with the message.
std::string PeekString(const grpc::ByteBuffer& bytes, std::span<const int> path);

// The most that gRPC's clients take in a message unless they are told otherwise.
inline constexpr size_t kMaxReplyBytes = 4 << 20;

// kResourceExhausted (OUTPUT_TOO_LARGE) where a reply has more: a client would say that its own
// limit is exceeded, and not what to do.
absl::Status CheckReplySize(size_t bytes);

// For the messages of a generation, whose text is UTF-8 already.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

// For messages that may hold text from outside: a string that is not UTF-8 goes out with U+FFFD in
// place of each bad byte.
grpc::ByteBuffer SerializeReply(const google::protobuf::Message& message);

}  // namespace orcd

#endif  // ORCD_WORKER_MESSAGES_H_
