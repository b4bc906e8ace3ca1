#include "integration_tests/raw_call.h"

#include <grpcpp/generic/generic_stub.h>

namespace orcd::testing {

RpcError SendRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 const std::string& bytes) {
  grpc::GenericStub generic(channel);
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(10));
  grpc::CompletionQueue queue;
  const auto wait = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = generic.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  EXPECT_TRUE(wait());
  const grpc::Slice slice(bytes);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  wait();
  grpc::ByteBuffer reply;
  do {
    call->Read(&reply, nullptr);
  } while (wait());
  grpc::Status status;
  call->Finish(&status, nullptr);
  EXPECT_TRUE(wait());
  return DecodeError(status);
}

}  // namespace orcd::testing
