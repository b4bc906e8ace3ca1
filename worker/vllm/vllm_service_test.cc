#include "worker/vllm/vllm_service.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <memory>

#include "gtest/gtest.h"
#include "runtime/null/null_backend.h"
#include "worker/engine_writes_for_test.h"
#include "worker/event_for_test.h"
#include "worker/nano_model_for_test.h"
#include "worker/server.h"

namespace orcd {
namespace {

ModelHostOptions Options(const std::string& model_dir) {
  ModelHostOptions options;
  options.model_dir = model_dir;
  options.backend = {.make = NullBackendFactory(absl::ZeroDuration()), .self_check = false};
  return options;
}

// A new method fails until it is called here.
TEST(VllmServiceTest, TheEnginesThreadWritesToNoCall) {
  const NanoModelDir dir;
  const Logger log(LogFormat::kText, LogLevel::kError);
  ModelHost host(Options(dir.path()));
  VllmService service(host, log);
  Event loaded;
  host.Load({.model = "nano.gguf"}, [&](const absl::StatusOr<v1::ModelDescription>& result) {
    EXPECT_TRUE(result.ok()) << result.status();
    loaded.Notify();
  });
  ASSERT_TRUE(loaded.WaitFor(absl::Seconds(20)));
  EngineWrites::Install();
  auto server = Server::Start({.listen = "127.0.0.1:0"}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();

  auto generate = std::make_shared<vllm_wire::GenerateRequest>();
  generate->set_request_id("r");
  generate->mutable_tokenized()->add_input_ids(5);
  generate->mutable_sampling_params()->set_max_tokens(5);
  auto streamed = std::make_shared<vllm_wire::GenerateRequest>(*generate);
  streamed->set_stream(true);
  auto abort = std::make_shared<vllm_wire::AbortRequest>();
  abort->add_request_ids("r");
  ExpectNoEngineWrites(
      grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()),
      *vllm_wire::GenerateRequest::descriptor()->file()->service(0),
      {{"Generate", generate},
       {"Generate", streamed},
       {"HealthCheck", std::make_shared<vllm_wire::HealthCheckRequest>()},
       {"Abort", abort},
       {"GetModelInfo", std::make_shared<vllm_wire::GetModelInfoRequest>()},
       {"GetServerInfo", std::make_shared<vllm_wire::GetServerInfoRequest>()},
       {"GetLoads", std::make_shared<vllm_wire::GetLoadsRequest>()},
       {"GetTokenizer", std::make_shared<vllm_wire::GetTokenizerRequest>()},
       {"SubscribeKvEvents", std::make_shared<vllm_wire::SubscribeKvEventsRequest>(),
        /*hang_up=*/true}});
  service.Shutdown();
  (*server)->Stop(absl::Seconds(5));
}

}  // namespace
}  // namespace orcd
