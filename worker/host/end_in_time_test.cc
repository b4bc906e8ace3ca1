#include "worker/host/end_in_time.h"

#include <unistd.h>

#include "gtest/gtest.h"
#include "worker/base/exit_codes.h"

namespace orcd {
namespace {

TEST(EndInTimeDeathTest, AHangIsEndedWithTheCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        EndInTime(1, ExitCode::kFault);
        while (true) pause();
      },
      ::testing::ExitedWithCode(static_cast<int>(ExitCode::kFault)), "too long to stop");
}

TEST(EndInTimeDeathTest, AProcessThatEndsHasItsOwnCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        EndInTime(60, ExitCode::kFault);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace orcd
