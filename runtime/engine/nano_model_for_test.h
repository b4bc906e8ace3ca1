// A tiny random model for tests that need a tokenizer and a vocabulary but no sensible output.
#ifndef ORCD_RUNTIME_ENGINE_NANO_MODEL_FOR_TEST_H_
#define ORCD_RUNTIME_ENGINE_NANO_MODEL_FOR_TEST_H_

#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/base/load_observer.h"
#include "runtime/model/model.h"
#include "testing/random_model/random_model.h"

namespace orcd {

inline std::shared_ptr<const Model> NanoModel(RandomModelOptions options = {}) {
  const std::string path = absl::StrCat(::testing::TempDir(), "engine-test-", getpid(), ".gguf");
  options.type = "F16";
  const auto written = WriteRandomModel(options, path);
  EXPECT_TRUE(written.ok()) << written.status();
  NullLoadObserver observer;
  auto model = Model::Load(*written, {}, observer);
  EXPECT_TRUE(model.ok()) << model.status();
  // The mapping stays valid after the file's name is removed.
  unlink(written->c_str());
  return *model;
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_NANO_MODEL_FOR_TEST_H_
