// A worker on a GPU: it uses the GPU, reports why it cannot, and ends properly if the GPU fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "integration_tests/test_models.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kNoGpuExitCode = 5;

// The path of `name` in the folder of this program.
std::string Beside(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

// The error message of a start that must fail.
std::string FailedStart(const WorkerOptions& options) {
  const auto worker = WorkerProcess::Start(options);
  EXPECT_FALSE(worker.ok());
  return std::string(worker.status().message());
}

class GpuTest : public WorkerTest {
 protected:
  static std::vector<std::string> OnGpu(std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"--backend", "cuda"};
    if (const char* const kernels = std::getenv("ORCD_TEST_KERNELS")) {
      args.insert(args.end(), {"--kernels", kernels});
    }
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  // Free GPU memory, from the error message of a load that asks for too much.
  int64_t FreeBytes() {
    StartWorker(OnGpu({"--kv-cache-bytes", "4TiB"}));
    if (HasFatalFailure()) return 0;
    const std::string message = client().Load("nano.gguf").error.message;
    StopWorker();
    int64_t bytes = 0;
    const size_t end = message.find(" are free");
    const size_t of = message.rfind(" of ", end);
    const size_t begin = message.rfind(' ', of - 1) + 1;
    EXPECT_TRUE(end != std::string::npos &&
                absl::SimpleAtoi(message.substr(begin, of - begin), &bytes))
        << message;
    return bytes;
  }
};

TEST_F(GpuTest, TakesTheGpuWhereThereIsOne) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  const v1::WorkerStatus status = client().Status();
  EXPECT_EQ(status.device().backend(), "cuda");
  EXPECT_THAT(status.device().name(), HasSubstr("NVIDIA"));
  EXPECT_GT(status.memory().weights_bytes(), 0u);
  const bool is_small = status.device().gpu().memory_total_bytes() < uint64_t{30} << 30;
  EXPECT_EQ(status.queue().max_running_requests(), is_small ? 64u : 256u);
}

TEST_F(GpuTest, SaysWhichGpuAndKernelsItHas) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded(OnGpu()));
  const v1::WorkerStatus status = client().Status();
  const v1::Device& device = status.device();
  EXPECT_THAT(device.kernels(), AnyOf("portable", "sm90"));
  EXPECT_THAT(device.numeric_identity(), ::testing::StartsWith(device.kernels()));
  EXPECT_EQ(status.model().numeric_identity(), device.numeric_identity());
  EXPECT_THAT(device.gpu().uuid(),
              AnyOf(::testing::StartsWith("GPU-"), ::testing::StartsWith("MIG-")));
  EXPECT_THAT(device.gpu().compute_capability(), ::testing::MatchesRegex("[0-9]+\\.[0-9]"));
  EXPECT_THAT(device.gpu().driver_cuda_version(), ::testing::MatchesRegex("[0-9]+\\.[0-9]"));
  EXPECT_EQ(device.gpu().required_driver(), "580");
  EXPECT_THAT(worker().Log(), HasSubstr(device.gpu().uuid()));
  // A container may lack the library that counts errors.
  std::cerr << "errors of the GPU: " << device.gpu().errors().ShortDebugString() << "\n";
}

TEST_F(GpuTest, ItsUuidNamesIt) {
  ASSERT_NO_FATAL_FAILURE(StartWorker(OnGpu()));
  const v1::Gpu gpu = client().Status().device().gpu();
  StopWorker();
  for (const std::string& uuid : {gpu.uuid(), gpu.uuid().substr(0, 12)}) {
    ASSERT_NO_FATAL_FAILURE(StartWorker(OnGpu({"--gpu", uuid})));
    EXPECT_EQ(client().Status().device().gpu().uuid(), gpu.uuid());
    StopWorker();
  }
  // CUDA_VISIBLE_DEVICES takes UUIDs as well, and numbers what it names.
  WorkerOptions options;
  options.environment = {"CUDA_VISIBLE_DEVICES=" + gpu.uuid()};
  for (const std::string& name : {std::string("0"), gpu.uuid()}) {
    options.args = OnGpu({"--gpu", name});
    const auto worker = WorkerProcess::Start(options);
    ASSERT_TRUE(worker.ok()) << worker.status();
    EXPECT_EQ(WorkerClient((*worker)->address()).Status().device().gpu().uuid(), gpu.uuid());
  }
}

// The portable kernels are for every GPU that a worker takes.
TEST_F(GpuTest, KernelsMayBeChosen) {
  for (const char* kernels : {"portable", "auto"}) {
    ASSERT_NO_FATAL_FAILURE(StartLoaded({"--backend", "cuda", "--kernels", kernels}));
    const v1::Device device = client().Status().device();
    const bool is_sm90 =
        kernels == std::string("auto") && device.gpu().compute_capability() == "9.0";
    EXPECT_EQ(device.kernels(), is_sm90 ? "sm90" : "portable");
    const Generation generation = client().Generate(TextRequest("Hello", 20));
    ASSERT_TRUE(IsComplete(generation)) << generation.error;
    EXPECT_EQ(generation.started->numeric_identity(), device.numeric_identity());
    StopWorker();
  }
}

TEST_F(GpuTest, TheSameRequestGivesTheSameTokens) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded(OnGpu()));
  v1::GenerateRequest request = TextRequest("Hello", 60);
  request.mutable_sampling()->set_seed(3);
  request.mutable_stop()->set_ignore_eog(true);
  const Generation first = client().Generate(request);
  ASSERT_TRUE(IsComplete(first));
  std::vector<std::unique_ptr<GenerateCall>> others;
  for (int i = 0; i < 20; ++i) {
    others.push_back(std::make_unique<GenerateCall>(
        stub(), EndlessRequest(absl::StrCat("other-", i)), absl::Seconds(60)));
    ASSERT_TRUE(others.back()->ReadUntilTokens(1 + i));
  }
  const Generation among_others = client().Generate(request);
  ASSERT_TRUE(IsComplete(among_others));
  EXPECT_EQ(first.ids, among_others.ids);
  others.clear();
  EXPECT_TRUE(client().WaitForQuiet());
}

TEST_F(GpuTest, ACancelledRequestIsGone) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded(OnGpu()));
  GenerateCall call(stub(), EndlessRequest("endless"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(10));
  bool found = false;
  ASSERT_TRUE(client().Cancel("endless", &found).ok());
  EXPECT_TRUE(found);
  const v1::WorkerStatus status = client().Status();
  EXPECT_EQ(status.kv_blocks().free(), status.kv_blocks().total());
}

TEST_F(GpuTest, MoreThanThereIsIsRefusedWithTheNumbers) {
  ASSERT_NO_FATAL_FAILURE(StartWorker(OnGpu({"--kv-cache-bytes", "4TiB"})));
  const LoadResult load = client().Load("nano.gguf");
  EXPECT_TRUE(IsError(load.error, grpc::StatusCode::RESOURCE_EXHAUSTED, "INSUFFICIENT_MEMORY"));
  for (const char* part : {"weights ", "workspace ", "KV cache 4398", "are free"}) {
    EXPECT_THAT(load.error.message, HasSubstr(part));
  }
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_IDLE);
}

TEST_F(GpuTest, UnloadGivesTheMemoryBack) {
  const int64_t most = FreeBytes() / 10 * 6;
  ASSERT_NO_FATAL_FAILURE(StartLoaded(OnGpu({"--kv-cache-bytes", absl::StrCat(most)})));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client().Unload(/*force=*/false).ok());
    const LoadResult again = client().Load("nano.gguf");
    ASSERT_TRUE(again.error.ok()) << again.error;
  }
}

TEST_F(GpuTest, MemoryThatAnotherHoldsIsSaidSo) {
  const int64_t most = FreeBytes() / 10 * 9;
  ASSERT_NO_FATAL_FAILURE(StartLoaded(OnGpu({"--kv-cache-bytes", absl::StrCat(most)})));
  WorkerOptions options;
  options.model_dir = models().path();
  options.args = OnGpu({"--kv-cache-bytes", absl::StrCat(most / 2)});
  const auto second = WorkerProcess::Start(options);
  ASSERT_TRUE(second.ok()) << second.status();
  {
    WorkerClient other((*second)->address());
    const LoadResult load = other.Load("nano.gguf");
    EXPECT_TRUE(IsError(load.error, grpc::StatusCode::RESOURCE_EXHAUSTED, "INSUFFICIENT_MEMORY"));
    EXPECT_THAT(load.error.message, HasSubstr("end what else uses the GPU"));
    EXPECT_EQ(other.Status().state(), v1::WORKER_STATE_IDLE);
  }
  EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 5))));
}

TEST(GpuStartTest, AGpuThatIsNotThere) {
  WorkerOptions options;
  for (const char* backend : {"auto", "cuda"}) {
    options.args = {"--backend", backend, "--gpu", "63"};
    const std::string why = FailedStart(options);
    EXPECT_THAT(why, HasSubstr(absl::StrCat("exited with ", kNoGpuExitCode))) << backend;
    EXPECT_THAT(why, HasSubstr("there is no GPU 63")) << backend;
  }
  options.args = {"--backend", "cuda", "--gpu", "GPU-00000000-0000"};
  EXPECT_THAT(FailedStart(options),
              HasSubstr("there is no GPU GPU-00000000-0000: this process can see "));
}

TEST(GpuStartTest, NoGpuAtAll) {
  WorkerOptions options;
  options.environment = {"CUDA_VISIBLE_DEVICES="};
  options.args = {"--backend", "cuda"};
  const std::string why = FailedStart(options);
  EXPECT_THAT(why, HasSubstr(absl::StrCat("exited with ", kNoGpuExitCode)));
  EXPECT_THAT(why, HasSubstr("no NVIDIA GPU"));

  options.args = {"--backend", "auto"};
  const auto worker = WorkerProcess::Start(options);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(WorkerClient((*worker)->address()).Status().device().backend(), "cpu");
}

TEST(GpuFaultTest, AStickyErrorEndsStreamsAndTheWorker) {
  const TempDir models;
  WriteNanoModel(models.File("nano.gguf"));
  const std::string fault = models.File("fault");
  WorkerOptions options;
  options.model_dir = models.path();
  options.args = {"--backend", "cuda"};
  options.environment = {
      absl::StrCat("CUDA_INJECTION64_PATH=", Beside("libgpu_fault_injection.so")),
      absl::StrCat("ORCD_GPU_FAULT_FILE=", fault)};
  const auto started = WorkerProcess::Start(options);
  ASSERT_TRUE(started.ok()) << started.status();
  WorkerProcess& worker = **started;
  WorkerClient client(worker.address());
  ASSERT_TRUE(client.Load("nano.gguf").error.ok());

  std::vector<std::unique_ptr<GenerateCall>> calls;
  for (int i = 0; i < 4; ++i) {
    v1::GenerateRequest request = TextRequest("Hello", 100000);
    request.mutable_stop()->set_ignore_eog(true);
    request.mutable_stop()->clear_max_tokens();
    calls.push_back(std::make_unique<GenerateCall>(client.stub(), request, absl::Seconds(60)));
    ASSERT_TRUE(calls.back()->ReadUntilTokens(3));
  }
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(60));
  grpc::health::v1::HealthCheckRequest all;
  const auto watch = client.health_stub().Watch(&context, all);
  grpc::health::v1::HealthCheckResponse health;
  ASSERT_TRUE(watch->Read(&health));
  EXPECT_EQ(health.status(), grpc::health::v1::HealthCheckResponse::SERVING);

  std::ofstream(fault) << "now";
  for (auto& call : calls) {
    const Generation& generation = call->Finish();
    EXPECT_TRUE(IsError(generation.error, grpc::StatusCode::INTERNAL, "BACKEND_FAULT"));
    EXPECT_EQ(generation.violation, "");
  }
  EXPECT_TRUE(watch->Read(&health));
  EXPECT_EQ(health.status(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  const auto end = worker.WaitForEnd(Bound(absl::Seconds(30)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, kFaultExitCode) << worker.Log();
  EXPECT_THAT(worker.Log(), HasSubstr("cudaErrorLaunchFailure"));
}

}  // namespace
}  // namespace orcd::testing
