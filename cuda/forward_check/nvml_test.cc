// Tests what is read from the driver's management library, with a made-up one.
#include "cuda/nvml.h"

#include <dlfcn.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/fake_nvml/fake_nvml.h"
#include "cuda/gpu_watch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd::cuda {
namespace {

using ::testing::ElementsAre;

constexpr char kLibrary[] = ORCD_FAKE_NVML;

class NvmlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    library_ = dlopen(kLibrary, RTLD_NOW);
    ASSERT_NE(library_, nullptr) << dlerror();
    fake_ = reinterpret_cast<decltype(&FakeNvmlOf)>(dlsym(library_, "FakeNvmlOf"))();
    std::construct_at(fake_);
  }
  void TearDown() override {
    EXPECT_EQ(fake_->users, 0);
    dlclose(library_);
  }

  void* library_ = nullptr;
  FakeNvml* fake_ = nullptr;
};

TEST_F(NvmlTest, IsAbsentWithoutTheLibraryOrIfItDoesNotStart) {
  EXPECT_EQ(Nvml::Load("libno-such-library.so.1"), nullptr);
  // A library of other functions.
  EXPECT_EQ(Nvml::Load("libm.so.6"), nullptr);
  fake_->init_error = 9;
  EXPECT_EQ(Nvml::Load(kLibrary), nullptr);
}

TEST_F(NvmlTest, ReadsTheErrorsOfAGpu) {
  const auto nvml = Nvml::Load(kLibrary);
  ASSERT_NE(nvml, nullptr);
  EXPECT_EQ(nvml->DriverVersion(), "580.82.07");
  EXPECT_EQ(nvml->Find("GPU-other"), nullptr);
  const auto gpu = nvml->Find(kFakeGpu);
  ASSERT_NE(gpu, nullptr);
  fake_->errors[0][0] = 1;
  fake_->errors[0][1] = 2;
  fake_->errors[1][0] = 30;
  fake_->errors[1][1] = 40;
  fake_->remap_pending = true;
  const GpuMemoryErrors errors = gpu->MemoryErrors();
  EXPECT_EQ(errors.corrected, 1u);
  EXPECT_EQ(errors.uncorrected, 2u);
  EXPECT_EQ(errors.lifetime_corrected, 30u);
  EXPECT_EQ(errors.lifetime_uncorrected, 40u);
  EXPECT_EQ(errors.remap_pending, true);
  EXPECT_EQ(errors.remap_failed, false);
  EXPECT_TRUE(gpu->follows_xids());
  EXPECT_THAT(gpu->TakeXids(), ElementsAre());
  fake_->xid = 31;
  fake_->xids = 2;
  EXPECT_THAT(gpu->TakeXids(), ElementsAre(31, 31));
  EXPECT_THAT(gpu->TakeXids(), ElementsAre());
}

TEST_F(NvmlTest, NumbersThatTheDriverDoesNotGiveAreAbsent) {
  fake_->has_ecc = fake_->has_events = false;
  const auto nvml = Nvml::Load(kLibrary);
  ASSERT_NE(nvml, nullptr);
  const auto gpu = nvml->Find(kFakeGpu);
  ASSERT_NE(gpu, nullptr);
  EXPECT_FALSE(gpu->MemoryErrors().uncorrected.has_value());
  EXPECT_FALSE(gpu->MemoryErrors().lifetime_corrected.has_value());
  EXPECT_FALSE(gpu->MemoryErrors().remap_failed.has_value());
  EXPECT_FALSE(gpu->follows_xids());
  EXPECT_THAT(gpu->TakeXids(), ElementsAre());
}

// The reports that a GpuWatch made.
class Reports {
 public:
  void Add(const GpuReport& report) {
    std::lock_guard lock(mutex_);
    reports_.push_back(report);
    changed_.notify_all();
  }
  GpuReport Await(size_t index) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reports_.size() > index; });
    return reports_[index];
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return reports_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GpuReport> reports_;
};

TEST_F(NvmlTest, TheWatchReportsAgainAndAgain) {
  Reports reports;
  const GpuWatch watch({.uuid = kFakeGpu, .period = absl::Milliseconds(1), .library = kLibrary},
                       [&](const GpuReport& report) { reports.Add(report); });
  EXPECT_TRUE(reports.Await(0).follows_xids);
  EXPECT_EQ(reports.Await(0).memory.uncorrected, 0u);
  fake_->errors[0][1] = 1;
  // The next report may have been begun before.
  EXPECT_EQ(reports.Await(reports.count() + 1).memory.uncorrected, 1u);
}

TEST_F(NvmlTest, TheWatchOfAnUnknownGpuReportsNothing) {
  Reports reports;
  {
    const GpuWatch watch(
        {.uuid = "GPU-other", .period = absl::Milliseconds(1), .library = kLibrary},
        [&](const GpuReport& report) { reports.Add(report); });
    const GpuWatch no_library({.uuid = kFakeGpu, .library = "libno-such-library.so.1"},
                              [&](const GpuReport& report) { reports.Add(report); });
  }
  EXPECT_EQ(reports.count(), 0u);
}

}  // namespace
}  // namespace orcd::cuda
