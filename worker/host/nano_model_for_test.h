// A model directory with a random-weight model; its destructor removes the directory.
#ifndef ORCD_WORKER_HOST_NANO_MODEL_FOR_TEST_H_
#define ORCD_WORKER_HOST_NANO_MODEL_FOR_TEST_H_

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testing/random_model/random_model.h"

namespace orcd {

class NanoModelDir {
 public:
  NanoModelDir() {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/models-XXXXXX");
    path_ = mkdtemp(pattern.data());
    Write("nano.gguf", 1);
  }
  ~NanoModelDir() { std::filesystem::remove_all(path_); }
  NanoModelDir(const NanoModelDir&) = delete;
  NanoModelDir& operator=(const NanoModelDir&) = delete;

  void Write(const std::string& name, uint64_t seed) {
    RandomModelOptions options;
    options.seed = seed;
    const auto written = WriteRandomModel(options, absl::StrCat(path_, "/", name));
    EXPECT_TRUE(written.ok()) << written.status();
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_NANO_MODEL_FOR_TEST_H_
