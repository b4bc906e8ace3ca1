#include "integration_tests/real_model_fixture.h"

#include <cstdlib>
#include <fstream>

namespace orcd::testing {
namespace {

std::filesystem::path ModelCache() {
  if (const char* cache = std::getenv("ORCD_MODEL_CACHE"); cache != nullptr && *cache != '\0') {
    return cache;
  }
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home == nullptr ? "/" : home) / ".cache/orcd/models";
}

}  // namespace

void RealModelTest::SetUp() {
  model_path_ = ModelCache() / file_;
  if (!std::filesystem::exists(model_path_)) {
    GTEST_SKIP() << model_path_.string() << " is not there; fetch it with tools/fetch-model "
                 << model_path_.stem().string();
  }
  WorkerOptions options;
  options.model_dir = model_path_.parent_path().string();
  options.args = {"--kv-cache-bytes", std::to_string(kKvCacheBytes)};
  absl::StatusOr<std::unique_ptr<WorkerProcess>> worker = WorkerProcess::Start(options);
  ASSERT_TRUE(worker.ok()) << worker.status();
  worker_ = *std::move(worker);
  client_ = std::make_unique<WorkerClient>(worker_->address());
}

void RealModelTest::TearDown() {
  if (worker_ == nullptr) return;
  client_ = nullptr;
  const absl::StatusOr<ProcessEnd> end = worker_->Terminate(Bound(absl::Seconds(40)));
  EXPECT_TRUE(end.ok()) << end.status();
  if (end.ok()) {
    EXPECT_EQ(end->exit_code, 0) << "signal " << end->signal.value_or(0);
  }
  if (HasFailure()) std::cerr << "The worker's log:\n" << worker_->Log();
}

void RealModelTest::Load() {
  const LoadResult result = client_->Load(file_);
  ASSERT_TRUE(result.error.ok()) << result.error;
  ASSERT_TRUE(result.loaded);
  description_ = *result.loaded;
}

void RealModelTest::WarmPageCache() const {
  std::ifstream file(model_path_, std::ios::binary);
  std::vector<char> buffer(1 << 20);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()))) {
  }
}

std::filesystem::path ArtifactDir(const std::string& name) {
  const std::filesystem::path build =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  std::filesystem::path dir = build / "artifacts" / name;
  std::filesystem::create_directories(dir);
  return dir;
}

}  // namespace orcd::testing
