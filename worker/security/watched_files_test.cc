#include "worker/security/watched_files.h"

#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "testing/eventually.h"
#include "testing/files.h"

namespace orcd {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Watches two files that must hold the same word; the word `bad` is refused.
class WatchedFilesTest : public ::testing::Test {
 protected:
  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
  }
  void WriteBoth(const std::string& text) {
    Write(first_, text);
    Write(second_, text);
  }
  FileSet Files() const {
    return {.paths = {first_, second_}, .reason = "PAIR_INVALID", .advice = "write a word to both"};
  }
  absl::StatusOr<LastGood<std::string>> Watch(FileWatcher& watcher) {
    return LastGood<std::string>::Watch(
        watcher, Files(),
        [this](const std::vector<std::string>& contents)
            -> absl::StatusOr<std::shared_ptr<const std::string>> {
          ++parsed_;
          if (contents[0] != contents[1]) return absl::InvalidArgumentError("they differ");
          if (contents[0] == "bad") return absl::InvalidArgumentError("they are bad");
          return std::make_shared<const std::string>(contents[0]);
        },
        [](const std::string& word) { return word == "old" ? "the word is old" : ""; });
  }
  // Returns the log of `looks` looks.
  std::string Look(int looks = 2) {
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < looks; ++i) watcher_.Look();
    return ::testing::internal::GetCapturedStderr();
  }

  const Logger log_{LogFormat::kText, LogLevel::kInfo};
  // Looks only when the test tells it to.
  FileWatcher watcher_{log_, absl::Hours(1)};
  const TempDir dir_;
  const std::string first_ = dir_.File("first");
  const std::string second_ = dir_.File("second");
  std::atomic<int> parsed_ = 0;
};

TEST_F(WatchedFilesTest, TheFirstReadingMustSucceed) {
  Write(first_, "a");
  absl::Status status = Watch(watcher_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(status).reason, "PAIR_INVALID");
  EXPECT_THAT(std::string(status.message()), HasSubstr(second_ + ": cannot be read: No such file"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("; write a word to both"));
  Write(second_, "");
  EXPECT_THAT(std::string(Watch(watcher_).status().message()), HasSubstr(second_ + ": is empty"));
  Write(second_, "b");
  EXPECT_THAT(std::string(Watch(watcher_).status().message()), HasSubstr("they differ"));
  Write(second_, std::string(FileWatcher::kMaxBytes + 1, 'x'));
  EXPECT_THAT(std::string(Watch(watcher_).status().message()), HasSubstr("more than 4194304"));
  Write(second_, "a");
  const auto word = Watch(watcher_);
  ASSERT_TRUE(word.ok()) << word.status();
  EXPECT_EQ(*word->Get(), "a");
}

TEST_F(WatchedFilesTest, AChangeIsTakenOnceTwoLooksHaveSeenIt) {
  WriteBoth("a");
  const auto word = Watch(watcher_);
  ASSERT_TRUE(word.ok()) << word.status();
  const auto before = word->Get();
  EXPECT_THAT(Look(), IsEmpty());
  EXPECT_EQ(word->Get(), before);
  WriteBoth("b");
  EXPECT_THAT(Look(1), IsEmpty());
  EXPECT_EQ(*word->Get(), "a");
  EXPECT_THAT(Look(1), HasSubstr("info files read again"));
  EXPECT_EQ(*word->Get(), "b");
  EXPECT_EQ(*before, "a") << "whoever uses it has it still";
  EXPECT_THAT(Look(), IsEmpty());
}

TEST_F(WatchedFilesTest, OneThatIsBeingWrittenIsWaitedForWithoutAWord) {
  WriteBoth("a");
  const auto word = Watch(watcher_);
  ASSERT_TRUE(word.ok()) << word.status();
  Write(first_, "");
  EXPECT_THAT(Look(1), IsEmpty());
  Write(first_, "bb");
  EXPECT_THAT(Look(1), IsEmpty());
  WriteBoth("b");
  EXPECT_THAT(Look(2), HasSubstr("read again"));
  EXPECT_EQ(*word->Get(), "b");
}

TEST_F(WatchedFilesTest, UnusableContentIsLoggedOnceAndTheLastGoodStays) {
  WriteBoth("a");
  const auto word = Watch(watcher_);
  ASSERT_TRUE(word.ok()) << word.status();
  Write(first_, "");
  EXPECT_THAT(Look(), HasSubstr(first_ + ": is empty"));
  EXPECT_THAT(Look(10), IsEmpty());
  fs::remove(first_);
  EXPECT_THAT(Look(), HasSubstr(first_ + ": cannot be read"));
  EXPECT_THAT(Look(10), IsEmpty());
  fs::create_directory(first_);
  EXPECT_THAT(Look(), HasSubstr(first_ + ": is no regular file any more"));
  fs::remove(first_);
  // The pipe has no writer: opening it as a file would wait for ever.
  ASSERT_EQ(mkfifo(first_.c_str(), 0600), 0);
  EXPECT_THAT(Look(10), IsEmpty());
  fs::remove(first_);
  Write(first_, "b");
  EXPECT_THAT(Look(), HasSubstr("they differ"));
  Write(first_, "c");
  EXPECT_THAT(Look(10), IsEmpty()) << "the reason is the same";
  WriteBoth("bad");
  EXPECT_THAT(Look(), HasSubstr("they are bad"));
  EXPECT_EQ(*word->Get(), "a");
  // Unchanged content is not parsed again at each look.
  const int parsed = parsed_;
  EXPECT_THAT(Look(10), IsEmpty());
  EXPECT_EQ(parsed_, parsed);

  WriteBoth("a");
  EXPECT_THAT(Look(), HasSubstr("info files are again what is in use"));
  EXPECT_THAT(Look(10), IsEmpty());
  WriteBoth("bad");
  EXPECT_THAT(Look(), HasSubstr("they are bad")) << "said anew: it was good in between";
  WriteBoth("b");
  EXPECT_THAT(Look(), HasSubstr("info files read again"));
  EXPECT_EQ(*word->Get(), "b");
}

TEST_F(WatchedFilesTest, AWarningIsSaidAtTheStartAndWheneverItComesAbout) {
  WriteBoth("old");
  ::testing::internal::CaptureStderr();
  const auto word = Watch(watcher_);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("the word is old"));
  ASSERT_TRUE(word.ok()) << word.status();
  EXPECT_THAT(Look(10), IsEmpty());
  WriteBoth("new");
  EXPECT_THAT(Look(), Not(HasSubstr("the word is old")));
  WriteBoth("old");
  EXPECT_THAT(Look(), HasSubstr("the word is old"));
}

TEST_F(WatchedFilesTest, APipeIsReadOnce) {
  ASSERT_EQ(mkfifo(first_.c_str(), 0600), 0);
  Write(second_, "a");
  std::thread writer([this] { Write(first_, "a"); });
  const auto word = Watch(watcher_);
  writer.join();
  ASSERT_TRUE(word.ok()) << word.status();
  EXPECT_THAT(Look(10), IsEmpty());
  EXPECT_EQ(*word->Get(), "a");
}

TEST_F(WatchedFilesTest, TheThreadLooksByItself) {
  FileWatcher watcher(log_, absl::Milliseconds(5));
  WriteBoth("a");
  const auto word = Watch(watcher);
  ASSERT_TRUE(word.ok()) << word.status();
  WriteBoth("b");
  EXPECT_TRUE(Eventually([&] { return *word->Get() == "b"; }));
}

}  // namespace
}  // namespace orcd
