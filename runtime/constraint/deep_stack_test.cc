#include "runtime/constraint/deep_stack.h"

#include <limits>

#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

// Touches `depth` times 16 KiB of stack. The thread sanitizer follows 65,536 calls.
int Recurse(int depth) {
  volatile char frame[16384];
  frame[depth % 16384] = 1;
  return depth == 0 ? frame[0] : Recurse(depth - 1) + frame[depth % 16384];
}

TEST(DeepStackTest, HasTheStack) {
  int depth = 0;
  ASSERT_TRUE(CallWithStack(256 << 20, [&] { depth = Recurse(6400); }).ok());
  EXPECT_EQ(depth, 6401);
}

TEST(DeepStackTest, SaysIfThereIsNone) {
  bool called = false;
  const absl::Status status = CallWithStack(std::numeric_limits<size_t>::max() / 4096 * 4096, [&] {
                                called = true;
                              }).status();
  EXPECT_FALSE(called);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(status).reason, "CONSTRAINT_LIMIT");
}

}  // namespace
}  // namespace orcd
