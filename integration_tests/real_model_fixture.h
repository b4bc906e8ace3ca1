// The fixture of tests that need the real model.
#ifndef ORCD_INTEGRATION_TESTS_REAL_MODEL_FIXTURE_H_
#define ORCD_INTEGRATION_TESTS_REAL_MODEL_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "integration_tests/worker_client.h"
#include "integration_tests/worker_process.h"

namespace orcd::testing {

// Starts a worker over the model cache (ORCD_MODEL_CACHE, or ~/.cache/orcd/models). If the model is
// not there, skips the test and says how to get the model. A fixture of another model than the
// default one derives from this.
class RealModelTest : public ::testing::Test {
 protected:
  static constexpr char kModel[] = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";
  // Holds 10,000 tokens: enough for every test, and little beside the weights.
  static constexpr int64_t kKvCacheBytes = int64_t{128} << 20;

  explicit RealModelTest(std::string file = kModel) : file_(std::move(file)) {}
  void SetUp() override;
  void TearDown() override;

  WorkerProcess& worker() { return *worker_; }
  WorkerClient& client() { return *client_; }
  const std::filesystem::path& model_path() const { return model_path_; }
  uint64_t model_bytes() const { return std::filesystem::file_size(model_path_); }
  // Loads the model; a fatal test failure if that fails.
  void Load();
  // The loaded model, as the load described it.
  const v1::ModelDescription& description() const { return description_; }
  // Reads the file once, so that a load after it measures the worker and not the disk.
  void WarmPageCache() const;

 private:
  const std::string file_;
  std::filesystem::path model_path_;
  v1::ModelDescription description_;
  std::unique_ptr<WorkerProcess> worker_;
  std::unique_ptr<WorkerClient> client_;
};

// The folder for files that a person may want to read: `artifacts/NAME` beside the binaries'
// folder.
std::filesystem::path ArtifactDir(const std::string& name);

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_REAL_MODEL_FIXTURE_H_
