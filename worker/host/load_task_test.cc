#include "worker/host/load_task.h"

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(LoadTaskTest, ProgressNeverGoesBack) {
  LoadTask task;
  EXPECT_EQ(task.Progress().stage(), v1::LOAD_STAGE_OPEN);
  task.OnProgress(LoadStage::kVerify, 64, 100);
  task.OnProgress(LoadStage::kVerify, 32, 100);
  EXPECT_EQ(task.Progress().bytes_done(), 64u);
  EXPECT_EQ(task.Progress().bytes_total(), 100u);
  task.OnProgress(LoadStage::kOpen, 7, 7);
  EXPECT_EQ(task.Progress().stage(), v1::LOAD_STAGE_VERIFY);
  // A stage begins at zero, whatever the previous stage had.
  task.OnProgress(LoadStage::kPlace, 1, 50);
  EXPECT_EQ(task.Progress().stage(), v1::LOAD_STAGE_PLACE);
  EXPECT_EQ(task.Progress().bytes_done(), 1u);
}

TEST(LoadTaskTest, EtaFollowsFromTheStagesOwnPace) {
  LoadTask task;
  EXPECT_FALSE(task.Eta().has_value());
  EXPECT_FALSE(task.Progress().has_eta());
  task.OnProgress(LoadStage::kVerify, 0, 400);
  EXPECT_FALSE(task.Eta().has_value());
  absl::SleepFor(absl::Milliseconds(20));
  task.OnProgress(LoadStage::kVerify, 100, 400);
  // A quarter took at least 20 ms, so the rest takes at least 60.
  EXPECT_GE(*task.Eta(), absl::Milliseconds(59));
  task.OnProgress(LoadStage::kVerify, 400, 400);
  EXPECT_EQ(*task.Eta(), absl::ZeroDuration());
  // A stage that counts no bytes has nothing to estimate from.
  task.OnProgress(LoadStage::kSelfCheck, 0, 0);
  EXPECT_FALSE(task.Eta().has_value());
}

TEST(LoadTaskTest, Cancel) {
  LoadTask task;
  EXPECT_FALSE(task.cancelled());
  task.Cancel();
  EXPECT_TRUE(task.cancelled());
}

}  // namespace
}  // namespace orcd
