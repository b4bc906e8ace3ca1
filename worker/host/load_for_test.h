// A ModelHost with the model of a NanoModelDir loaded, which computes nothing.
#ifndef ORCD_WORKER_HOST_LOAD_FOR_TEST_H_
#define ORCD_WORKER_HOST_LOAD_FOR_TEST_H_

#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "runtime/null/null_backend.h"
#include "testing/event.h"
#include "worker/host/model_host.h"

namespace orcd {

// Options of a host with the null backend, each step of which takes `step_time`.
inline ModelHostOptions NullHostOptions(const std::string& model_dir,
                                        absl::Duration step_time = absl::ZeroDuration()) {
  ModelHostOptions options;
  options.model_dir = model_dir;
  options.backend = {.make = NullBackendFactory(step_time), .self_check = false};
  return options;
}

// Loads nano.gguf of the host's model directory and waits until it serves.
inline void LoadNanoModel(ModelHost& host) {
  Event loaded;
  host.Load({.model = "nano.gguf"}, [&](const absl::StatusOr<v1::ModelDescription>& result) {
    EXPECT_TRUE(result.ok()) << result.status();
    loaded.Notify();
  });
  ASSERT_TRUE(loaded.WaitFor(absl::Seconds(20)));
}

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_LOAD_FOR_TEST_H_
