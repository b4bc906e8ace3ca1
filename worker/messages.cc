#include "worker/messages.h"

#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/error.h"
#include "worker/message_text.h"

namespace orcd {

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  // A copy: the reader's constructor consumes what it is given.
  grpc::ByteBuffer buffer(bytes);
  grpc::ProtoBufferReader reader(&buffer);
  if (reader.status().ok() && message.ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("the request is no valid ", message.GetTypeName(),
                                ": its bytes are malformed, or a string in it is not UTF-8; send "
                                "text as UTF-8 or the prompt as token ids"),
                   {.reason = "MALFORMED_REQUEST", .field = message.GetTypeName()});
}

absl::Status CheckReplySize(size_t bytes) {
  if (bytes <= kMaxReplyBytes) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("the reply has ", bytes, " bytes, and clients take ", kMaxReplyBytes,
                   " in a message; ask for less at a time, as with shorter text"),
      {.reason = "OUTPUT_TOO_LARGE", .subject = "reply:bytes"});
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer SerializeReply(const google::protobuf::Message& message) {
  if (FindInvalidText(message).empty()) return SerializeMessage(message);
  const std::unique_ptr<google::protobuf::Message> valid(message.New());
  valid->CopyFrom(message);
  MakeTextValid(*valid);
  return SerializeMessage(*valid);
}

}  // namespace orcd
