#include "worker/host/within_memory.h"

#include <new>
#include <string>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(WithinMemoryTest, ReturnsWhatTheWorkDoes) {
  const absl::StatusOr<int> seven = WithinMemory([] { return absl::StatusOr<int>(7); });
  ASSERT_TRUE(seven.ok());
  EXPECT_EQ(*seven, 7);
  EXPECT_EQ(WithinMemory([] { return absl::NotFoundError("it"); }), absl::NotFoundError("it"));
}

TEST(WithinMemoryTest, MemoryThatIsMissingIsAnError) {
  const auto status = WithinMemory([]() -> absl::Status { throw std::bad_alloc(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(status).reason, "INSUFFICIENT_MEMORY");
  const auto result = WithinMemory([]() -> absl::StatusOr<std::string> { throw std::bad_alloc(); });
  EXPECT_EQ(GetErrorDetails(result.status()).reason, "INSUFFICIENT_MEMORY");
}

}  // namespace
}  // namespace orcd
