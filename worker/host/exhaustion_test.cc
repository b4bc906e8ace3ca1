#include "worker/host/exhaustion.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <stdexcept>
#include <system_error>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/base/exit_codes.h"

namespace orcd {
namespace {

using ::testing::ExitedWithCode;
using ::testing::KilledBySignal;

// An exception that leaves this function ends the process.
void EndBy(const std::function<void()>& faulty) noexcept {
  ExitOnExhaustion();
  faulty();
}

void ThrowSystemError(std::errc code) { throw std::system_error(std::make_error_code(code)); }

TEST(ExhaustionDeathTest, AThreadOrMemoryThatIsMissingEndsWithTheListedCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto listed = ExitedWithCode(static_cast<int>(ExitCode::kNoResources));
  EXPECT_EXIT(EndBy([] { throw std::bad_alloc(); }), listed, "no more memory.*RLIMIT_AS");
  EXPECT_EXIT(EndBy([] { ThrowSystemError(std::errc::resource_unavailable_try_again); }), listed,
              "no other thread.*RLIMIT_NPROC");
  EXPECT_EXIT(EndBy([] { ThrowSystemError(std::errc::not_enough_memory); }), listed, "pids.max");
}

TEST(ExhaustionDeathTest, OtherFaultsAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(EndBy([] { std::abort(); }), KilledBySignal(SIGABRT), "");
  EXPECT_EXIT(EndBy([] { throw std::logic_error("broken"); }), KilledBySignal(SIGABRT), "broken");
  EXPECT_EXIT(EndBy([] { ThrowSystemError(std::errc::io_error); }), KilledBySignal(SIGABRT), "");
}

TEST(ExhaustionDeathTest, AnAbortFromOutsideIsNotSwallowed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(EndBy([] {
                kill(getpid(), SIGABRT);
                _exit(0);
              }),
              KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace orcd
