#include "worker/host/gpu_errors.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

TEST(GpuErrorsReportedTest, ReportsTheNewest) {
  GpuErrorsReported reported;
  EXPECT_FALSE(reported.Get().has_value());
  v1::GpuErrors errors;
  EXPECT_TRUE(reported.Update(errors).ok());
  errors.set_xids(2);
  errors.set_last_xid(31);
  EXPECT_TRUE(reported.Update(errors).ok()) << "an Xid may be another process's";
  ASSERT_TRUE(reported.Get().has_value());
  EXPECT_EQ(reported.Get()->last_xid(), 31u);
  EXPECT_FALSE(reported.Get()->has_ecc_uncorrected());
}

TEST(GpuErrorsReportedTest, OnlyUncorrectedErrorsThatAreNewAreAFault) {
  GpuErrorsReported reported;
  v1::GpuErrors errors;
  errors.set_ecc_uncorrected(3);
  EXPECT_TRUE(reported.Update(errors).ok()) << "they were there before the worker";
  errors.set_ecc_corrected(1000);
  EXPECT_TRUE(reported.Update(errors).ok());
  errors.set_ecc_uncorrected(5);
  const absl::Status fault = reported.Update(errors);
  EXPECT_TRUE(absl::IsUnavailable(fault)) << fault;
  EXPECT_EQ(GetErrorDetails(fault).reason, "GPU_MEMORY_ERROR");
  EXPECT_THAT(std::string(fault.message()), ::testing::HasSubstr("had 2 errors that ECC"));
  EXPECT_EQ(reported.Get()->ecc_uncorrected(), 5u);
}

}  // namespace
}  // namespace orcd
