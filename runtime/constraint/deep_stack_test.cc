#include "runtime/constraint/deep_stack.h"

#include <limits>

#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

// Touches `depth` KiB of stack.
int Recurse(int depth) {
  volatile char frame[1024];
  frame[depth % 1024] = 1;
  return depth == 0 ? frame[0] : Recurse(depth - 1) + frame[depth % 1024];
}

TEST(DeepStackTest, HasTheStack) {
  int depth = 0;
  ASSERT_TRUE(CallWithStack(256 << 20, [&] { depth = Recurse(100 << 10); }).ok());
  EXPECT_EQ(depth, (100 << 10) + 1);
}

TEST(DeepStackTest, SaysIfThereIsNone) {
  bool called = false;
  const absl::Status status =
      CallWithStack(std::numeric_limits<size_t>::max() / 4096 * 4096, [&] { called = true; }).status();
  EXPECT_FALSE(called);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(status).reason, "CONSTRAINT_LIMIT");
}

}  // namespace
}  // namespace orcd
