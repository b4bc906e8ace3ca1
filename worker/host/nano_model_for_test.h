// A model directory with a random-weight model; its destructor removes the directory.
#ifndef ORCD_WORKER_HOST_NANO_MODEL_FOR_TEST_H_
#define ORCD_WORKER_HOST_NANO_MODEL_FOR_TEST_H_

#include <string>

#include "gtest/gtest.h"
#include "testing/files.h"
#include "testing/random_model/random_model.h"

namespace orcd {

class NanoModelDir {
 public:
  NanoModelDir() { Write("nano.gguf", 1); }

  void Write(const std::string& name, uint64_t seed) {
    RandomModelOptions options;
    options.seed = seed;
    const auto written = WriteRandomModel(options, dir_.File(name));
    EXPECT_TRUE(written.ok()) << written.status();
  }

  const std::string& path() const { return path_; }

 private:
  const TempDir dir_;
  const std::string path_ = dir_.path().string();
};

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_NANO_MODEL_FOR_TEST_H_
