// Tests the choice of a GPU and of its kernel set, without a GPU.
#include "cuda/device.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string IdentityFor(int cc, const std::string& kernels = "auto") {
  const auto found = FindKernelSet("GPU 0, NVIDIA T", {.cc = cc}, kernels);
  return found.ok() ? (*found)->numeric_identity : std::string(found.status().message());
}

TEST(FindKernelSetTest, AutoIsTheFastestForTheComputeCapability) {
  EXPECT_EQ(IdentityFor(80), "portable-80");
  EXPECT_EQ(IdentityFor(86), "portable-80");
  EXPECT_EQ(IdentityFor(89), "portable-89");
  EXPECT_EQ(IdentityFor(90), "sm90");
  EXPECT_EQ(IdentityFor(100), "portable-100");
  EXPECT_EQ(IdentityFor(120), "portable-120");
  EXPECT_EQ(IdentityFor(121), "portable-120");
  EXPECT_EQ(IdentityFor(150), "portable-later");
}

TEST(FindKernelSetTest, ASetMayBeNamed) {
  EXPECT_EQ(IdentityFor(90, "portable"), "portable-90");
  EXPECT_EQ(IdentityFor(90, "sm90"), "sm90");
  EXPECT_EQ(IdentityFor(89, "portable"), "portable-89");
  const auto found = FindKernelSet("GPU 0, NVIDIA H200", {.cc = 90}, "portable");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_STREQ((*found)->name, "portable");
}

TEST(FindKernelSetTest, RefusesASetThatIsNotForTheGpu) {
  const absl::Status status = FindKernelSet("GPU 3, NVIDIA L4", {.cc = 89}, "sm90").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetErrorDetails(status).reason, "GPU_UNAVAILABLE");
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("GPU 3, NVIDIA L4, has compute capability 8.9; the kernels sm90 are for 9.0 "
                "(H100, H200); use --kernels auto"));
}

TEST(FindKernelSetTest, RefusesAnUnknownSetAndListsAll) {
  const absl::Status status = FindKernelSet("GPU 0, NVIDIA L4", {.cc = 89}, "sm89").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(status).field, "kernels");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'sm89'"), HasSubstr("auto, sm90 for 9.0 (H100, H200), portable for "
                                                   "8.0 to 8.7")));
}

TEST(FindKernelSetTest, RefusesOlderGpusByName) {
  const absl::Status status = FindKernelSet("GPU 3, Tesla T4", {.cc = 75}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetErrorDetails(status).reason, "GPU_UNAVAILABLE");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("GPU 3, Tesla T4, has compute capability 7.5; this program's kernels "
                              "are built for 9.0 (H100, H200), 8.0 to 8.7"),
                    HasSubstr("use --backend cpu")));
  EXPECT_THAT(IdentityFor(75, "portable"), HasSubstr("the kernels portable are for 8.0"));
}

class FindDeviceTest : public ::testing::Test {
 protected:
  // The index, or the error.
  std::string Find(const std::string& gpu) const {
    const absl::StatusOr<int> found = FindDevice(gpu, uuids_);
    if (found.ok()) return std::to_string(*found);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(GetErrorDetails(found.status()).reason, "GPU_UNAVAILABLE");
    return std::string(found.status().message());
  }

  const std::vector<std::string> uuids_ = {"GPU-5c5ac5b2-0000-0000-0000-000000000001",
                                           "GPU-5c5ac5b3-0000-0000-0000-000000000002",
                                           "MIG-11111111-0000-0000-0000-000000000003"};
};

TEST_F(FindDeviceTest, ByIndexOrTheBeginningOfAUuid) {
  EXPECT_EQ(Find("0"), "0");
  EXPECT_EQ(Find("2"), "2");
  EXPECT_EQ(Find("GPU-5c5ac5b3-0000-0000-0000-000000000002"), "1");
  EXPECT_EQ(Find("GPU-5C5AC5B2"), "0");
  EXPECT_EQ(Find("MIG-1"), "2");
}

TEST_F(FindDeviceTest, SaysWhichThereAre) {
  EXPECT_THAT(Find("3"), HasSubstr("there is no GPU 3: this process can see 3, 0 to 2"));
  EXPECT_THAT(Find("-1"), HasSubstr("there is no GPU -1"));
  EXPECT_THAT(Find("GPU-5c5ac5b"), HasSubstr("there are several GPUs GPU-5c5ac5b: this process can "
                                             "see GPU-5c5ac5b2-0000-0000-0000-000000000001, GPU-"));
  EXPECT_THAT(Find("GPU-11111111"), HasSubstr("there is no GPU GPU-11111111"));
  EXPECT_THAT(Find("5c5ac5b2"), HasSubstr("there is no GPU 5c5ac5b2"));
}

TEST(DriverTest, VersionIsTheKernelModules) {
  EXPECT_EQ(DriverVersionIn("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  "
                            "Release Build  (dvs-builder@U22)\nGCC version:  gcc version 12.3.0\n"),
            "580.82.07");
  EXPECT_EQ(DriverVersionIn("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun\n"),
            "535.183.01");
  EXPECT_EQ(DriverVersionIn(""), "");
  EXPECT_EQ(DriverVersionIn("no version here\nGCC version: 12.3.0\n"), "");
}

TEST(DriverTest, OneThatIsTooOldIsRefusedWithBothVersions) {
  const absl::Status old = DriverTooOld("535.183.01", 12020, 13000);
  EXPECT_EQ(GetErrorDetails(old).reason, "GPU_UNAVAILABLE");
  EXPECT_EQ(old.message(),
            "the NVIDIA driver 535.183.01 is for CUDA 12.2 and this program needs a driver of "
            "branch 580 or later (CUDA 13.0); install one, or on a data-centre GPU the package "
            "cuda-compat-13-0, or use --backend cpu");
  EXPECT_THAT(std::string(DriverTooOld("", 12040, 13000).message()),
              HasSubstr("the NVIDIA driver is for CUDA 12.4"));
  EXPECT_THAT(std::string(DriverTooOld("", 0, 13000).message()),
              HasSubstr("there is no NVIDIA driver; install one of branch 580 or later"));
}

}  // namespace
}  // namespace orcd::cuda
