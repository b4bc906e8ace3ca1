#include "integration_tests/worker_fixture.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "integration_tests/test_models.h"

namespace orcd::testing {
namespace {

constexpr char kKvFlag[] = "--kv-cache-bytes";

}  // namespace

void WorkerTest::SetUp() { WriteNanoModel(models_.File("nano.gguf")); }

void WorkerTest::TearDown() {
  client_ = nullptr;
  if (worker_ == nullptr) return;
  if (worker_->Running()) StopWorker();
  if (HasFailure()) std::cerr << "The worker's log:\n" << worker_->Log();
}

void WorkerTest::StopWorker() {
  client_ = nullptr;
  const absl::StatusOr<ProcessEnd> end = worker_->Terminate(Bound(absl::Seconds(10)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 0) << "signal " << end->signal.value_or(0);
}

void WorkerTest::StartWorker(std::vector<std::string> args) {
  WorkerOptions options;
  options.model_dir = models_.path().string();
  options.args = std::move(args);
  if (std::find(options.args.begin(), options.args.end(), kKvFlag) == options.args.end()) {
    // Holds a few long sequences.
    options.args.insert(options.args.end(), {kKvFlag, "64MiB"});
  }
  client_ = nullptr;
  absl::StatusOr<std::unique_ptr<WorkerProcess>> worker = WorkerProcess::Start(options);
  ASSERT_TRUE(worker.ok()) << worker.status();
  worker_ = *std::move(worker);
  client_ = std::make_unique<WorkerClient>(worker_->address());
}

void WorkerTest::StartLoaded(std::vector<std::string> args) {
  ASSERT_NO_FATAL_FAILURE(StartWorker(std::move(args)));
  const LoadResult result = client_->Load("nano.gguf");
  ASSERT_TRUE(result.error.ok()) << result.error;
  ASSERT_TRUE(result.loaded);
}

v1::GenerateRequest WorkerTest::EndlessRequest(const std::string& request_id) {
  v1::GenerateRequest request = TextRequest("Once upon a time", 1);
  request.set_request_id(request_id);
  request.mutable_sampling()->set_seed(1);
  request.mutable_stop()->set_ignore_eog(true);
  request.mutable_stop()->clear_max_tokens();
  return request;
}

}  // namespace orcd::testing
