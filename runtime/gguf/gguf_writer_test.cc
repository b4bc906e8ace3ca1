#include "runtime/gguf/gguf_writer.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

std::string PathOf(const std::string& name) {
  return ::testing::TempDir() + "/" + name + "." + std::to_string(getpid());
}

GgufWriter OneTensor() {
  GgufWriter writer;
  writer.SetString("general.architecture", "qwen2");
  writer.AddTensor("t", TensorType::kF32, std::array<uint64_t, 1>{1 << 20});
  return writer;
}

TEST(GgufWriterTest, SaysWhyAFileCannotBeWritten) {
  const auto nowhere = OneTensor().CreateFile(PathOf("no_such_folder") + "/m.gguf");
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetErrorDetails(nowhere.status()).reason, "FILE_UNWRITABLE");
}

// A limit on file size simulates a disk that is full after so many bytes.
TEST(GgufWriterTest, AFullDiskLeavesNothingBehind) {
  const std::string path = PathOf("full.gguf");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto file = OneTensor().CreateFile(path);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(file.status()).reason, "DISK_FULL");
  for (const auto& entry : std::filesystem::directory_iterator(::testing::TempDir())) {
    EXPECT_FALSE(entry.path().string().starts_with(path)) << entry.path();
  }
}

}  // namespace
}  // namespace orcd
