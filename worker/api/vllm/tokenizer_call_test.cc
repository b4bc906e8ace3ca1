#include "worker/api/vllm/tokenizer_call.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "testing/event.h"
#include "testing/eventually.h"
#include "vllm/vllm_engine.grpc.pb.h"
#include "worker/api/vllm/wire.h"
#include "worker/base/status_details.h"
#include "worker/host/load_for_test.h"
#include "worker/host/nano_model_for_test.h"
#include "worker/stream/refused_call.h"

namespace orcd {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

class Service final : public vllm_wire::VllmEngine::WithRawCallbackMethod_GetTokenizer<
                          vllm_wire::VllmEngine::Service> {
 public:
  explicit Service(TokenizerCalls& calls) : calls_(calls) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* GetTokenizer(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer*) override {
    const auto stream = calls_.Start(context);
    ++begun;
    if (stream.ok()) return *stream;
    return new RefusedStream(ToGrpcStatus(stream.status(), context));
  }

  std::atomic<int> begun = 0;

 private:
  TokenizerCalls& calls_;
};

struct Call {
  explicit Call(vllm_wire::VllmEngine::Stub& stub) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + kLong));
    reader = stub.GetTokenizer(&context, {});
  }
  grpc::Status Finish() {
    vllm_wire::GetTokenizerChunk chunk;
    while (reader->Read(&chunk)) bytes += chunk.data();
    return reader->Finish();
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<vllm_wire::GetTokenizerChunk>> reader;
  std::string bytes;
};

std::string Reason(const grpc::Status& status) {
  google::rpc::Status rpc;
  google::rpc::ErrorInfo info;
  if (!rpc.ParseFromString(status.error_details())) return "no details";
  for (const auto& any : rpc.details()) {
    if (any.UnpackTo(&info)) break;
  }
  return info.reason();
}

ModelHostOptions Options(const std::string& model_dir) {
  ModelHostOptions options = NullHostOptions(model_dir);
  options.load.backend.max_seqs = 4;
  options.load.backend.block_tokens = 16;
  options.load.backend.kv_cache_bytes = 1 << 20;
  return options;
}

TEST(TokenizerCallsTest, AreBoundedAndTheirPlacesFreeAgain) {
  const NanoModelDir models;
  ModelHost host(Options(models.path()));
  Event may_go_on;
  TokenizerArchives archives(host, [&](const Engine&) -> absl::StatusOr<TokenizerArchive> {
    EXPECT_TRUE(may_go_on.WaitFor(kLong));
    return TokenizerArchive{.bytes = std::string(200'000, 'x'), .sha256 = "sum"};
  });
  ASSERT_NO_FATAL_FAILURE(LoadNanoModel(host));

  constexpr int kCalls = 2;
  TokenizerCalls calls(archives, kCalls);
  Service service(calls);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto stub = vllm_wire::VllmEngine::NewStub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));

  std::vector<std::unique_ptr<Call>> waiting;
  for (int i = 0; i < kCalls; ++i) waiting.push_back(std::make_unique<Call>(*stub));
  ASSERT_TRUE(Eventually([&] { return service.begun == kCalls; }));
  const grpc::Status refused = Call(*stub).Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Reason(refused), "TOO_MANY_CALLS");
  may_go_on.Notify();
  for (const auto& call : waiting) {
    const grpc::Status status = call->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(call->bytes.size(), 200'000u);
  }
  EXPECT_TRUE(Eventually([&] { return Call(*stub).Finish().ok(); }));
  server->Shutdown();
}

}  // namespace
}  // namespace orcd
