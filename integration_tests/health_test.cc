// The worker's state as probes, people and tools see it.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using grpc::health::v1::HealthCheckResponse;

class HealthTest : public WorkerTest {
 protected:
  HealthCheckResponse::ServingStatus Serving(const std::string& name) {
    HealthCheckResponse::ServingStatus status = HealthCheckResponse::UNKNOWN;
    const RpcError error = client().Check(name, &status);
    EXPECT_TRUE(error.ok()) << name << ": " << error;
    return status;
  }

  // Readiness is the status of "" and of the service's own name.
  void ExpectReady(bool ready) {
    const auto wanted = ready ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
    EXPECT_EQ(Serving(""), wanted);
    EXPECT_EQ(Serving("orcd.v1.Worker"), wanted);
    EXPECT_EQ(Serving("liveness"), HealthCheckResponse::SERVING);
    EXPECT_EQ(Serving("startup"), HealthCheckResponse::SERVING);
  }
};

TEST_F(HealthTest, ReadinessFollowsTheModel) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  ExpectReady(false);
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_IDLE);
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  ExpectReady(true);
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_READY);
  ASSERT_TRUE(client().Unload(false).ok());
  ExpectReady(false);
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_IDLE);
  EXPECT_TRUE(client().Load("missing.gguf").error.code == grpc::StatusCode::NOT_FOUND);
  ExpectReady(false);
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  ExpectReady(true);

  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  auto drain = stub().Drain(&context, {});
  v1::DrainResponse response;
  while (drain->Read(&response)) {
  }
  ASSERT_TRUE(drain->Finish().ok());
  ExpectReady(false);
}

TEST_F(HealthTest, UnknownNameIsNotFound) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  HealthCheckResponse::ServingStatus status;
  EXPECT_EQ(client().Check("nobody", &status).code, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(client().Check("orcd.v1.Orchestrator", &status).code, grpc::StatusCode::NOT_FOUND);
}

TEST_F(HealthTest, WatchSendsEachChange) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(60));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("orcd.v1.Worker");
  auto watch = client().health_stub().Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  ASSERT_TRUE(client().Unload(false).ok());
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  context.TryCancel();
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(HealthTest, WatchOfAnUnknownNameStaysOpen) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(60));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("nobody");
  auto watch = client().health_stub().Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
}

TEST_F(HealthTest, StatusOfAnIdleWorkerSaysWhoItIs) {
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--worker-id", "worker-7"}));
  const v1::WorkerStatus status = client().Status();
  EXPECT_EQ(status.worker_id(), "worker-7");
  EXPECT_FALSE(status.instance_id().empty());
  EXPECT_FALSE(status.version().empty());
  EXPECT_FALSE(status.has_model());
  EXPECT_FALSE(status.has_load());
  EXPECT_FALSE(status.has_kv_blocks());
  EXPECT_EQ(status.memory().weights_bytes(), 0u);
  EXPECT_GT(status.memory().process_resident_bytes(), 0u);
  EXPECT_TRUE(status.has_uptime());
}

TEST_F(HealthTest, InstanceIsNewWithEachProcess) {
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--worker-id", "worker-7"}));
  const std::string first = client().Status().instance_id();
  ASSERT_NO_FATAL_FAILURE(StopWorker());
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--worker-id", "worker-7"}));
  EXPECT_NE(client().Status().instance_id(), first);
}

TEST_F(HealthTest, StatusOfAReadyWorkerCountsWhatHappens) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--max-seqs", "3", "--max-waiting", "5"}));
  v1::WorkerStatus status = client().Status();
  EXPECT_EQ(status.device().backend(), "cpu");
  EXPECT_FALSE(status.device().name().empty());
  EXPECT_GT(status.device().threads(), 0u);
  EXPECT_GT(status.memory().weights_bytes(), 0u);
  EXPECT_GT(status.memory().kv_bytes(), 0u);
  EXPECT_EQ(status.queue().max_running_requests(), 3u);
  EXPECT_EQ(status.queue().max_waiting_requests(), 5u);
  EXPECT_EQ(status.queue().finished_requests(), 0u);
  EXPECT_GT(status.kv_blocks().tokens_per_block(), 0u);

  v1::GenerateRequest request = EndlessRequest("count");
  request.mutable_stop()->set_max_tokens(25);
  ASSERT_TRUE(IsComplete(client().Generate(request)));
  ASSERT_TRUE(client().WaitForQuiet());
  status = client().Status();
  EXPECT_EQ(status.queue().finished_requests(), 1u);
  EXPECT_EQ(status.queue().generated_tokens(), 25u);
  EXPECT_TRUE(status.has_last_step_age());

  GenerateCall call(stub(), EndlessRequest("running"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  status = client().Status();
  EXPECT_EQ(status.queue().running_requests(), 1u);
  EXPECT_LT(status.kv_blocks().free(), status.kv_blocks().total());
}

// Counters since the start of the process continue over a reload.
TEST_F(HealthTest, CountersSurviveAReload) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  v1::GenerateRequest request = EndlessRequest("count");
  request.mutable_stop()->set_max_tokens(10);
  ASSERT_TRUE(IsComplete(client().Generate(request)));
  ASSERT_TRUE(client().WaitForQuiet());
  ASSERT_TRUE(client().Unload(false).ok());
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  ASSERT_TRUE(IsComplete(client().Generate(request)));
  ASSERT_TRUE(client().WaitForQuiet());
  EXPECT_EQ(client().Status().queue().finished_requests(), 2u);
  EXPECT_EQ(client().Status().queue().generated_tokens(), 20u);
}

template <typename Service, typename Request, typename Response>
std::set<std::string> ReflectedServices(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(10));
  const auto call = Service::NewStub(channel)->ServerReflectionInfo(&context);
  Request request;
  request.set_list_services("*");
  EXPECT_TRUE(call->Write(request));
  Response response;
  EXPECT_TRUE(call->Read(&response));
  call->WritesDone();
  const grpc::Status status = call->Finish();
  EXPECT_TRUE(status.ok()) << DecodeError(status);
  std::set<std::string> services;
  for (const auto& service : response.list_services_response().service()) {
    services.insert(service.name());
  }
  return services;
}

// Current clients ask for reflection v1 first; older ones know only v1alpha.
TEST_F(HealthTest, BothReflectionsListTheServices) {
  namespace v1 = grpc::reflection::v1;
  namespace v1alpha = grpc::reflection::v1alpha;
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  const auto listed = ReflectedServices<v1::ServerReflection, v1::ServerReflectionRequest,
                                        v1::ServerReflectionResponse>(client().channel());
  EXPECT_THAT(listed, ::testing::IsSupersetOf({"orcd.v1.Worker", "grpc.health.v1.Health",
                                               "grpc.reflection.v1.ServerReflection",
                                               "grpc.reflection.v1alpha.ServerReflection"}));
  const auto alpha = ReflectedServices<v1alpha::ServerReflection, v1alpha::ServerReflectionRequest,
                                       v1alpha::ServerReflectionResponse>(client().channel());
  EXPECT_EQ(alpha, listed);
}

}  // namespace
}  // namespace orcd::testing
