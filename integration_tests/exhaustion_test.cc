// A worker that the system gives too little to start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "integration_tests/worker_process.h"

namespace orcd::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Its libraries fit into 64 MiB and its threads do not; where there is a little more, gRPC is the
// one that finds none. Nowhere does it end by a signal.
TEST(ExhaustionTest, AnAddressSpaceThatIsTooSmallIsSaidSo) {
  int ended = 0;
  for (const uint64_t mebibytes : {32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352}) {
    WorkerOptions options;
    options.args = {"--backend", "null"};
    options.address_space = mebibytes << 20;
    const auto worker = WorkerProcess::Start(options);
    if (worker.ok()) {
      const auto end = (*worker)->Terminate();
      ASSERT_TRUE(end.ok()) << end.status();
      // Where it just fits, a thread may be missing later on.
      EXPECT_THAT(end->exit_code, AnyOf(0, 73)) << mebibytes << " MiB\n" << (*worker)->Log();
      continue;
    }
    ++ended;
    EXPECT_THAT(worker.status().ToString(),
                AnyOf(AllOf(HasSubstr("exited with 73"),
                            HasSubstr("(RLIMIT_AS, ulimit -v) is limited to " +
                                      std::to_string(mebibytes * 1024) + " KiB")),
                      // The loader's own end.
                      AllOf(HasSubstr("exited with 127"),
                            HasSubstr("error while loading shared libraries"))))
        << mebibytes << " MiB";
  }
  EXPECT_GT(ended, 4) << "no limit was too small: this shows nothing";
}

}  // namespace
}  // namespace orcd::testing
