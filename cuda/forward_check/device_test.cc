// Tests the choice of a kernel set, without a GPU.
#include "cuda/device.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd::cuda {
namespace {

using ::testing::HasSubstr;

TEST(FindKernelSetTest, IsThatOfTheComputeCapability) {
  const auto found = FindKernelSet("GPU 0, NVIDIA H200", {.cc = 90, .sms = 132});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_STREQ((*found)->name, "sm90");
  EXPECT_STREQ((*found)->numeric_identity, "sm90");
}

TEST(FindKernelSetTest, RefusesOtherGpusByName) {
  for (const int cc : {75, 80, 89, 100, 120}) {
    const absl::Status status = FindKernelSet("GPU 3, NVIDIA T", {.cc = cc}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << cc;
    EXPECT_EQ(GetErrorDetails(status).reason, "GPU_UNAVAILABLE") << cc;
  }
  EXPECT_THAT(std::string(FindKernelSet("GPU 3, NVIDIA T", {.cc = 80}).status().message()),
              HasSubstr("GPU 3, NVIDIA T, has compute capability 8.0; this program's kernels are "
                        "built for 9.0 (H100, H200); use --backend cpu"));
}

}  // namespace
}  // namespace orcd::cuda
