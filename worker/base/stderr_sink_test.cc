#include "worker/base/stderr_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/logger.h"

namespace orcd {
namespace {

class StderrSinkTest : public ::testing::Test {
 protected:
  StderrSinkTest() : logger_("test", {}) {
    EXPECT_EQ(pipe(fds_), 0);
    EXPECT_EQ(fcntl(fds_[0], F_SETFL, O_NONBLOCK), 0);
    logger_.sinks().push_back(std::make_shared<StderrSink>(fds_[1]));
    logger_.set_pattern("%v");
  }
  ~StderrSinkTest() override {
    close(fds_[0]);
    close(fds_[1]);
  }

  std::string ReadAll() {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(fds_[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, n);
    return text;
  }

  int fds_[2] = {-1, -1};
  spdlog::logger logger_;
};

TEST_F(StderrSinkTest, WritesLines) {
  logger_.info("one");
  logger_.info(std::string(20'000, 'x'));
  EXPECT_EQ(ReadAll(), absl::StrCat("one\n", std::string(20'000, 'x'), "\n"));
}

TEST_F(StderrSinkTest, APipeThatNobodyReadsHoldsNobodyUp) {
  const absl::Time begun = absl::Now();
  for (int i = 0; i < 20'000; ++i) logger_.info("{} {}", i, std::string(100, 'x'));
  EXPECT_LT(absl::Now() - begun, absl::Seconds(5));
  const std::vector<std::string> first = absl::StrSplit(ReadAll(), '\n');
  ASSERT_GT(first.size(), 100u);

  logger_.info("again");
  const std::vector<std::string> second = absl::StrSplit(ReadAll(), '\n', absl::SkipEmpty());
  ASSERT_EQ(second.size(), 2u);
  // The last line of `first` may have been cut off.
  int64_t whole = 0;
  for (const std::string& line : first) whole += absl::EndsWith(line, std::string(100, 'x'));
  EXPECT_EQ(second[0],
            absl::StrCat(20'000 - whole, " log lines are missing here: nobody read them"));
  EXPECT_EQ(second[1], "again");
}

TEST_F(StderrSinkTest, AReaderThatHasGoneIsNoFault) {
  close(fds_[0]);
  signal(SIGPIPE, SIG_IGN);
  logger_.info("into the void");
  fds_[0] = open("/dev/null", O_RDONLY);
}

}  // namespace
}  // namespace orcd
