#include "worker/base/messages.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "worker/base/message_text.h"

namespace orcd {
namespace {

using google::protobuf::internal::WireFormatLite;

// Serialisers write fields in the order of their numbers, so an id comes early.
constexpr int kMostPeekedFields = 16;
constexpr int kMostPeekedBytes = 256;

// Moves to the contents of a length-delimited field and returns its length; -1 if it is not found.
int FindField(google::protobuf::io::CodedInputStream& input, int number) {
  for (int i = 0; i < kMostPeekedFields; ++i) {
    const uint32_t tag = input.ReadTag();
    if (tag == 0) return -1;
    if (tag == WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED)) {
      int length = 0;
      return input.ReadVarintSizeAsInt(&length) ? length : -1;
    }
    // A group has any number of fields.
    const bool is_group =
        WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_START_GROUP;
    if (is_group || !WireFormatLite::SkipField(&input, tag)) return -1;
  }
  return -1;
}

}  // namespace

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  // A copy, since the reader's constructor consumes its buffer.
  grpc::ByteBuffer buffer(bytes);
  grpc::ProtoBufferReader reader(&buffer);
  if (reader.status().ok() && message.ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("the request is no valid ", message.GetTypeName(),
                                ": its bytes are malformed, or a string in it is not UTF-8; send "
                                "text as UTF-8 or the prompt as token ids"),
                   {.reason = "MALFORMED_REQUEST", .field = message.GetTypeName()});
}

std::string PeekString(const grpc::ByteBuffer& bytes, std::span<const int> path) {
  grpc::ByteBuffer buffer(bytes);
  grpc::ProtoBufferReader reader(&buffer);
  if (!reader.status().ok()) return {};
  google::protobuf::io::CodedInputStream input(&reader);
  int length = 0;
  for (const int number : path) {
    length = FindField(input, number);
    if (length < 0) return {};
    input.PushLimit(length);
  }
  std::string value;
  return length <= kMostPeekedBytes && input.ReadString(&value, length) ? value : std::string();
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
