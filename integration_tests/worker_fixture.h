// The fixture of tests that talk to a worker with a tiny random model.
#ifndef ORCD_INTEGRATION_TESTS_WORKER_FIXTURE_H_
#define ORCD_INTEGRATION_TESTS_WORKER_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "integration_tests/temp_dir.h"
#include "integration_tests/worker_client.h"
#include "integration_tests/worker_process.h"

namespace orcd::testing {

// A model directory with `nano.gguf` in it, and a worker over it. The end of each test ends the
// worker by SIGTERM and expects exit code 0, so that whatever a sanitizer has to say is heard;
// where the test failed the worker's log is printed.
class WorkerTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Starts the worker; a fatal failure where it does not come up. A test that calls it again must
  // have ended the first.
  void StartWorker(std::vector<std::string> args = {});
  // Starts the worker and loads `nano.gguf`.
  void StartLoaded(std::vector<std::string> args = {});

  // Ends the client, then the worker by SIGTERM, and expects exit code 0.
  void StopWorker();

  WorkerProcess& worker() { return *worker_; }
  WorkerClient& client() { return *client_; }
  // Only where the worker was started.
  v1::Worker::Stub& stub() { return client_->stub(); }
  const TempDir& models() const { return models_; }

  // A request that goes on for thousands of tokens unless something ends it.
  static v1::GenerateRequest EndlessRequest(const std::string& request_id);

 private:
  TempDir models_;
  std::unique_ptr<WorkerProcess> worker_;
  std::unique_ptr<WorkerClient> client_;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_WORKER_FIXTURE_H_
