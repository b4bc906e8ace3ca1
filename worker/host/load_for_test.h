// A ModelHost with the model of a NanoModelDir loaded.
#ifndef ORCD_WORKER_HOST_LOAD_FOR_TEST_H_
#define ORCD_WORKER_HOST_LOAD_FOR_TEST_H_

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "testing/event.h"
#include "worker/host/model_host.h"

namespace orcd {

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
