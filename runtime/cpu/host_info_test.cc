#include "runtime/cpu/host_info.h"

#include <unistd.h>

#include "gtest/gtest.h"

namespace orcd::cpu {
namespace {

TEST(HostInfo, IsPlausible) {
  EXPECT_FALSE(ProcessorName().empty());
  EXPECT_GE(UsableCores(), 1);
  EXPECT_LE(UsableCores(), sysconf(_SC_NPROCESSORS_CONF));
  const int64_t installed = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  EXPECT_GT(AvailableMemoryBytes(), int64_t{16} << 20);
  EXPECT_LE(AvailableMemoryBytes(), installed);
}

}  // namespace
}  // namespace orcd::cpu
