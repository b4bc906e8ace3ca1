#include "worker/host/status_figures.h"

#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(StatusFiguresTest, WithoutAModelThereAreTotalsAndWhatStaysTheSame) {
  v1::WorkerStatus idle;
  idle.set_worker_id("w");
  idle.mutable_device()->set_backend("cpu");
  idle.mutable_queue()->set_max_waiting_requests(7);
  StatusFigures figures(idle);
  figures.AddEnded({.finished_requests = 2, .computed_prompt_tokens = 9, .generated_tokens = 30});
  figures.AddEnded({.finished_requests = 1, .generated_tokens = 4});
  const v1::WorkerStatus status = figures.Measure(nullptr, nullptr, 123);
  EXPECT_EQ(status.worker_id(), "w");
  EXPECT_EQ(status.device().backend(), "cpu");
  EXPECT_EQ(status.queue().max_waiting_requests(), 7u);
  EXPECT_EQ(status.queue().finished_requests(), 3u);
  EXPECT_EQ(status.queue().generated_tokens(), 34u);
  EXPECT_EQ(status.memory().process_resident_bytes(), 123u);
  EXPECT_TRUE(status.has_uptime());
  EXPECT_FALSE(status.has_kv_blocks());
  EXPECT_FALSE(status.has_rates());
  EXPECT_FALSE(status.has_constraints());
  EXPECT_FALSE(status.has_speculation());
  EXPECT_FALSE(status.has_experts());
  EXPECT_GT(ResidentBytes(), 1u << 20);
}

}  // namespace
}  // namespace orcd
