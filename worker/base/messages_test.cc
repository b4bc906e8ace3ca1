#include "worker/base/messages.h"

#include <grpcpp/support/slice.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "orcd/v1/worker.pb.h"

namespace orcd {
namespace {

constexpr int kId[] = {v1::GenerateRequest::kRequestIdFieldNumber};
constexpr int kIdWithin[] = {v1::GenerateManyRequest::kGenerateFieldNumber,
                             v1::GenerateRequest::kRequestIdFieldNumber};

// Returns `bytes` in slices of `size` bytes, as a connection may deliver them.
grpc::ByteBuffer InSlices(const std::string& bytes, size_t size) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += size) slices.emplace_back(bytes.substr(at, size));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Peek(const std::string& bytes, std::span<const int> path) {
  return PeekString(InSlices(bytes, 1000), path);
}

TEST(PeekStringTest, FindsAnIdBesideWhateverElse) {
  v1::GenerateRequest request;
  request.set_request_id("mine");
  request.set_model_id("m");
  request.mutable_text()->set_text(std::string(100'000, 'x'));
  for (const size_t size : {1, 3, 1 << 20}) {
    EXPECT_EQ(PeekString(InSlices(request.SerializeAsString(), size), kId), "mine") << size;
  }
  v1::GenerateManyRequest many;
  *many.mutable_generate() = request;
  many.mutable_timeout()->set_seconds(1);
  EXPECT_EQ(Peek(many.SerializeAsString(), kIdWithin), "mine");
}

TEST(PeekStringTest, FindsItBehindOthers) {
  v1::GenerateRequest id;
  id.set_request_id("mine");
  v1::GenerateRequest rest;
  rest.set_model_id("m");
  rest.mutable_text()->set_text(std::string(100'000, 'x'));
  EXPECT_EQ(Peek(rest.SerializeAsString() + id.SerializeAsString(), kId), "mine");
}

TEST(PeekStringTest, IsEmptyWhereThereIsNone) {
  v1::GenerateRequest request;
  EXPECT_EQ(Peek("", kId), "");
  request.set_model_id("m");
  EXPECT_EQ(Peek(request.SerializeAsString(), kId), "");
  v1::GenerateManyRequest many;
  many.mutable_cancel()->set_request_id("not this one");
  EXPECT_EQ(Peek(many.SerializeAsString(), kIdWithin), "");
  *many.mutable_generate() = request;
  EXPECT_EQ(Peek(many.SerializeAsString(), kIdWithin), "");
}

TEST(PeekStringTest, IsEmptyWhereTheBytesAreNoMessage) {
  // A length beyond the end, an endless number, an invalid tag, and a group that does not end.
  for (const std::string bytes : {"\x0a\x7fshort", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
                                  "\x07", "\x13\x13\x13", "\x13\x18\x01\x14\x0a\x04mine"}) {
    EXPECT_EQ(Peek(bytes, kId), "");
    EXPECT_EQ(Peek(bytes, kIdWithin), "");
  }
}

TEST(PeekStringTest, LooksNoFurtherThanItsBounds) {
  v1::GenerateRequest id;
  id.set_request_id(std::string(1'000'000, 'x'));
  EXPECT_EQ(Peek(id.SerializeAsString(), kId), "");
  id.set_request_id("mine");
  std::string many_fields;
  // Field 2, empty, a thousand times.
  for (int i = 0; i < 1000; ++i) many_fields += std::string("\x12\x00", 2);
  EXPECT_EQ(Peek(many_fields + id.SerializeAsString(), kId), "");
}

}  // namespace
}  // namespace orcd
