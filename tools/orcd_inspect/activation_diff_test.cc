#include "tools/orcd_inspect/activation_diff.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace orcd {
namespace {

void Report(ActivationTap& tap, TapPoint point, int layer, const std::vector<float>& values) {
  tap.OnActivation(point, layer, values, 1, static_cast<int64_t>(values.size()));
}

TEST(ActivationDiff, AddsUpOverSteps) {
  ActivationDiff diff;
  for (int step = 0; step < 2; ++step) {
    Report(diff.a(), TapPoint::kEmbed, -1, {1, 2});
    Report(diff.a(), TapPoint::kQ, 3, {3, 4.5f});
    Report(diff.b(), TapPoint::kEmbed, -1, {1, 2});
    Report(diff.b(), TapPoint::kQ, 3, {3, 4});
    ASSERT_TRUE(diff.FinishStep().ok());
  }
  ASSERT_EQ(diff.operations().size(), 2u);
  EXPECT_EQ(diff.operations()[0].Nmse(), 0);
  EXPECT_EQ(diff.operations()[0].Label(), "embed");
  EXPECT_DOUBLE_EQ(diff.operations()[1].Nmse(), 0.25 / 25);
  EXPECT_EQ(diff.operations()[1].max_error, 0.5);
  EXPECT_EQ(diff.operations()[1].Label(), "layer 3 q");
}

TEST(ActivationDiff, CountsWhatIsNotFiniteAndNeverPassesIt) {
  ActivationDiff diff;
  Report(diff.a(), TapPoint::kQ, 0, {NAN, 2, std::numeric_limits<float>::infinity()});
  Report(diff.b(), TapPoint::kQ, 0, {1, NAN, std::numeric_limits<float>::infinity()});
  ASSERT_TRUE(diff.FinishStep().ok());
  EXPECT_EQ(diff.operations()[0].nonfinite_a, 2);
  EXPECT_EQ(diff.operations()[0].nonfinite_b, 2);
  EXPECT_TRUE(std::isinf(diff.operations()[0].Nmse()));
}

TEST(ActivationDiff, AReferenceOfZeros) {
  ActivationDiff diff;
  Report(diff.a(), TapPoint::kQ, 0, {0, 1});
  Report(diff.b(), TapPoint::kQ, 0, {0, 0});
  ASSERT_TRUE(diff.FinishStep().ok());
  EXPECT_TRUE(std::isinf(diff.operations()[0].Nmse()));
}

TEST(ActivationDiff, DifferentReportsAreNoComparison) {
  ActivationDiff names;
  Report(names.a(), TapPoint::kQ, 0, {1});
  Report(names.b(), TapPoint::kK, 0, {1});
  EXPECT_EQ(names.FinishStep().code(), absl::StatusCode::kInternal);
  ActivationDiff shapes;
  Report(shapes.a(), TapPoint::kQ, 0, {1});
  Report(shapes.b(), TapPoint::kQ, 0, {1, 2});
  EXPECT_EQ(shapes.FinishStep().code(), absl::StatusCode::kInternal);
  ActivationDiff fewer;
  Report(fewer.a(), TapPoint::kQ, 0, {1});
  EXPECT_EQ(fewer.FinishStep().code(), absl::StatusCode::kInternal);
  ActivationDiff more;
  Report(more.b(), TapPoint::kQ, 0, {1});
  EXPECT_EQ(more.FinishStep().code(), absl::StatusCode::kInternal);
  // The next step starts afresh.
  Report(more.a(), TapPoint::kQ, 0, {1});
  Report(more.b(), TapPoint::kQ, 0, {1});
  EXPECT_TRUE(more.FinishStep().ok());
}

}  // namespace
}  // namespace orcd
