// Starts a worker under too small a limit on its address space.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "integration_tests/worker_process.h"

namespace orcd::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// If the libraries do not fit beside the program, the dynamic loader ends it; then threads do not
// fit; with a little more memory, gRPC's allocations fail instead. No limit that lets the system
// map the program ends it by a signal.
TEST(ExhaustionTest, AnAddressSpaceThatIsTooSmallIsSaidSo) {
  const uint64_t program = std::filesystem::file_size(
      std::filesystem::read_symlink("/proc/self/exe").replace_filename("worker-orcd"));
  int ended = 0;
  for (const uint64_t mebibytes : {32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352}) {
    WorkerOptions options;
    options.args = {"--backend", "null"};
    options.address_space = mebibytes << 20;
    if (options.address_space < program) continue;
    const auto worker = WorkerProcess::Start(options);
    if (worker.ok()) {
      const auto end = (*worker)->Terminate();
      ASSERT_TRUE(end.ok()) << end.status();
      // If the worker just fits, it may fail to start a thread later on.
      EXPECT_THAT(end->exit_code, AnyOf(0, 73)) << mebibytes << " MiB\n" << (*worker)->Log();
      continue;
    }
    ++ended;
    EXPECT_THAT(worker.status().ToString(),
                AnyOf(AllOf(HasSubstr("exited with 73"),
                            HasSubstr("(RLIMIT_AS, ulimit -v) is limited to " +
                                      std::to_string(mebibytes * 1024) + " KiB")),
                      // Or the dynamic loader itself ends the process.
                      AllOf(HasSubstr("exited with 127"),
                            HasSubstr("error while loading shared libraries"))))
        << mebibytes << " MiB";
  }
  EXPECT_GT(ended, 4) << "no limit was too small: this shows nothing";
}

}  // namespace
}  // namespace orcd::testing
