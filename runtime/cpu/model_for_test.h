// Models for tests of the whole backend.
#ifndef ORCD_RUNTIME_CPU_MODEL_FOR_TEST_H_
#define ORCD_RUNTIME_CPU_MODEL_FOR_TEST_H_

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/steps_for_test.h"
#include "runtime/base/load_observer.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/model/model.h"
#include "testing/random_model/random_model.h"

namespace orcd::cpu {

inline std::shared_ptr<const Model> LoadTestModel(const std::string& path, bool with_text = true) {
  NullLoadObserver observer;
  auto model = Model::Load(path, {.with_text = with_text}, observer);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

// Writes a random model of the smallest size; returns its path.
inline std::string WriteNanoModel(const std::string& type,
                                  const std::string& architecture = "qwen2") {
  std::string path = ::testing::TempDir() + "cpu_" + architecture + "_" + type + "_" +
                     std::to_string(getpid()) + ".gguf";
  auto written = WriteRandomModel(
      {.architecture = architecture, .size = "nano", .type = type, .threads = 1}, path);
  EXPECT_TRUE(written.ok()) << written.status();
  return path;
}

// Loads a random model of the smallest size. Its file is gone once nothing uses it.
inline std::shared_ptr<const Model> NanoModel(const std::string& type,
                                              const std::string& architecture = "qwen2") {
  const std::string path = WriteNanoModel(type, architecture);
  auto model = LoadTestModel(path);
  unlink(path.c_str());
  return model;
}

inline BackendOptions SmallOptions() {
  BackendOptions options;
  options.max_seqs = 4;
  options.max_step_tokens = 128;
  options.kv_cache_bytes = 4 << 20;
  options.threads = 2;
  return options;
}

inline std::unique_ptr<Backend> MakeTestBackend(std::shared_ptr<const Model> model,
                                                const BackendOptions& options = SmallOptions()) {
  NullLoadObserver observer;
  auto backend = CreateCpuBackend(std::move(model), options, observer);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_MODEL_FOR_TEST_H_
