// The fixture of tests that talk to a worker with a tiny random model.
#ifndef ORCD_INTEGRATION_TESTS_WORKER_FIXTURE_H_
#define ORCD_INTEGRATION_TESTS_WORKER_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "integration_tests/worker_client.h"
#include "integration_tests/worker_process.h"
#include "testing/files.h"

namespace orcd::testing {

// A model directory with `nano.gguf` in it, and a worker over it. After each test, ends the worker
// with SIGTERM and expects exit code 0, so that a sanitizer's findings fail the test. Prints the
// worker's log if the test failed.
class WorkerTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Starts the worker; a fatal test failure if it does not come up. A test that calls this again
  // must stop the first worker before.
  void StartWorker(std::vector<std::string> args = {});
  // Starts the worker and loads `nano.gguf`.
  void StartLoaded(std::vector<std::string> args = {});

  // Ends the client, then the worker with SIGTERM, and expects exit code 0.
  void StopWorker();

  WorkerProcess& worker() { return *worker_; }
  WorkerClient& client() { return *client_; }
  // Valid only after StartWorker.
  v1::Worker::Stub& stub() { return client_->stub(); }
  const TempDir& models() const { return models_; }

  // A request that runs for thousands of tokens unless something ends it.
  static v1::GenerateRequest EndlessRequest(const std::string& request_id);

 private:
  TempDir models_;
  std::unique_ptr<WorkerProcess> worker_;
  std::unique_ptr<WorkerClient> client_;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_WORKER_FIXTURE_H_
