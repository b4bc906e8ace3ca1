#include "runtime/gguf/mapped_file.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

constexpr size_t kPages = 16;

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// The process id keeps two runs of this test from sharing files.
std::string PathOf(const std::string& name) {
  return ::testing::TempDir() + "/" + name + "." + std::to_string(getpid());
}

std::string WriteFile(const std::string& name, const std::string& content) {
  std::string path = PathOf(name);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  return path;
}

std::string WritePages(const std::string& name) {
  return WriteFile(name, std::string(kPages * PageBytes(), 'x'));
}

uint64_t Sum(const MappedFile& file) {
  uint64_t sum = 0;
  for (std::byte byte : file.bytes()) sum += static_cast<uint64_t>(byte);
  return sum;
}

TEST(MappedFileTest, ViewsTheBytes) {
  const std::string path = WriteFile("mapped_small", "GGUF?");
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->path(), path);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()),
            "GGUF?");
  EXPECT_TRUE(file->CheckIntact().ok());
}

TEST(MappedFileTest, MovesWithItsMapping) {
  auto a = MappedFile::Open(WriteFile("mapped_a", "aaaa"));
  auto b = MappedFile::Open(WriteFile("mapped_b", "bb"));
  ASSERT_TRUE(a.ok() && b.ok());
  MappedFile moved = *std::move(a);
  EXPECT_EQ(moved.bytes().size(), 4u);
  moved = *std::move(b);
  EXPECT_EQ(moved.bytes().size(), 2u);
  EXPECT_EQ(static_cast<char>(moved.bytes()[0]), 'b');
  EXPECT_TRUE(moved.CheckIntact().ok());
}

TEST(MappedFileTest, SaysWhyItCannotOpen) {
  const auto missing = MappedFile::Open(::testing::TempDir() + "/no_such_file");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetErrorDetails(missing.status()).reason, "FILE_NOT_FOUND");

  const auto directory = MappedFile::Open(::testing::TempDir());
  EXPECT_EQ(directory.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(directory.status()).reason, "FILE_NOT_REGULAR");

  const std::string loop = PathOf("mapped_loop");
  std::filesystem::remove(loop);
  std::filesystem::create_symlink(loop, loop);
  const auto endless = MappedFile::Open(loop);
  EXPECT_EQ(endless.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(endless.status()).reason, "FILE_UNREADABLE");

  const auto empty = MappedFile::Open(WriteFile("mapped_empty", ""));
  EXPECT_EQ(empty.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(empty.status()).reason, "FILE_EMPTY");
}

TEST(MappedFileTest, DoesNotWaitForThePipesWriter) {
  const std::string path = PathOf("mapped_pipe");
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(GetErrorDetails(MappedFile::Open(path).status()).reason, "FILE_NOT_REGULAR");
}

TEST(MappedFileTest, MayNotBeReadByThisUser) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const std::string path = WriteFile("mapped_private", "secret");
  chmod(path.c_str(), 0);
  const auto file = MappedFile::Open(path);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kPermissionDenied);
}

TEST(MappedFileTest, SurvivesBeingCutShort) {
  const std::string path = WritePages("mapped_cut");
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok());
  const uint64_t kept = 3 * PageBytes() + 100;
  std::filesystem::resize_file(path, kept);
  // The rest reads as zeros, including the rest of the page that was cut.
  EXPECT_EQ(Sum(*file), kept * 'x');
  const absl::Status status = file->CheckIntact();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(GetErrorDetails(status).reason, "FILE_CHANGED");
  EXPECT_NE(status.message().find(path), std::string::npos);
}

TEST(MappedFileTest, RemembersLostPagesWhenTheSizeIsBack) {
  const std::string path = WritePages("mapped_back");
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok());
  const auto time = std::filesystem::last_write_time(path);
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(Sum(*file), 0u);
  std::filesystem::resize_file(path, kPages * PageBytes());
  std::filesystem::last_write_time(path, time);
  EXPECT_EQ(file->CheckIntact().code(), absl::StatusCode::kDataLoss);
}

TEST(MappedFileTest, OneLostFileLeavesOthersIntact) {
  auto lost = MappedFile::Open(WritePages("mapped_lost"));
  auto kept = MappedFile::Open(WritePages("mapped_kept"));
  ASSERT_TRUE(lost.ok() && kept.ok());
  std::filesystem::resize_file(lost->path(), 1);
  EXPECT_EQ(Sum(*lost), uint64_t{'x'});
  EXPECT_EQ(Sum(*kept), kPages * PageBytes() * 'x');
  EXPECT_TRUE(kept->CheckIntact().ok());
  EXPECT_FALSE(lost->CheckIntact().ok());
}

TEST(MappedFileTest, ManyReadersOfALostFileLive) {
  auto file = MappedFile::Open(WritePages("mapped_many"));
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(file->path(), 0);
  std::vector<std::thread> readers;
  std::vector<uint64_t> sums(8, 1);
  for (uint64_t& sum : sums) readers.emplace_back([&] { sum = Sum(*file); });
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(sums, std::vector<uint64_t>(8, 0));
  EXPECT_FALSE(file->CheckIntact().ok());
}

TEST(MappedFileTest, NoticesThatItWasWrittenTo) {
  const std::string path = WriteFile("mapped_written", "before");
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok());
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) + std::chrono::milliseconds(1));
  EXPECT_EQ(file->CheckIntact().code(), absl::StatusCode::kDataLoss);
}

TEST(MappedFileTest, ATouchIsDistinguishedFromOtherChanges) {
  const std::string path = WriteFile("mapped_touched", "before");
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE(file->TouchedAt());
  EXPECT_EQ(IdentifyFile(path), file->identity());
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) + std::chrono::milliseconds(1));
  ASSERT_TRUE(file->TouchedAt());
  EXPECT_NE(IdentifyFile(path), file->identity());
  file->AcceptTouch(*file->TouchedAt());
  EXPECT_FALSE(file->TouchedAt());
  EXPECT_TRUE(file->CheckIntact().ok());
  EXPECT_EQ(IdentifyFile(path), file->identity());
  // A moved MappedFile keeps the accepted modification time.
  const MappedFile moved = *std::move(file);
  EXPECT_TRUE(moved.CheckIntact().ok());
  EXPECT_EQ(IdentifyFile(path), moved.identity());
  std::filesystem::resize_file(path, 3);
  EXPECT_FALSE(moved.TouchedAt()) << "bytes are gone";
  EXPECT_FALSE(moved.CheckIntact().ok());
}

TEST(MappedFileTest, AnotherFileAtThePathIsAnother) {
  const std::string path = WriteFile("mapped_renamed", "before");
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok());
  const std::string other = WriteFile("mapped_renamed_other", "before");
  std::filesystem::last_write_time(other, std::filesystem::last_write_time(path));
  std::filesystem::rename(other, path);
  EXPECT_NE(IdentifyFile(path), file->identity());
  EXPECT_TRUE(file->CheckIntact().ok());
  EXPECT_FALSE(IdentifyFile(path + "_that_is_not_there"));
}

TEST(MappedFileTest, DoesNotMindBeingRemoved) {
  const std::string path = WritePages("mapped_removed");
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok());
  std::filesystem::remove(path);
  EXPECT_EQ(Sum(*file), kPages * PageBytes() * 'x');
  EXPECT_TRUE(file->CheckIntact().ok());
}

TEST(SigbusWatchTest, TableIsBoundedAndReusable) {
  const std::byte byte{};
  std::vector<SigbusWatch> watches;
  while (true) {
    auto watch = SigbusWatch::Create({&byte, 1});
    if (!watch) break;
    watches.push_back(*std::move(watch));
  }
  EXPECT_LE(watches.size(), static_cast<size_t>(SigbusWatch::kMaxWatches));
  const auto full = MappedFile::Open(WriteFile("mapped_full", "x"));
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(full.status()).reason, "FILE_LIMIT");
  watches.clear();
  EXPECT_TRUE(MappedFile::Open(WriteFile("mapped_full", "x")).ok());
}

// Faults outside watched mappings go to the previous handler.
using SigbusDeathTest = ::testing::Test;

TEST(SigbusDeathTest, PassesForeignFaultsOn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        // Installed before the first watch, so that this is the previous handler.
        signal(SIGBUS, [](int) { _exit(42); });
        auto file = MappedFile::Open(WritePages("mapped_foreign"));
        raise(SIGBUS);
      },
      ::testing::ExitedWithCode(42), "");
}

TEST(SigbusDeathTest, EndsTheProcessWhereNobodyElseHandles) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        signal(SIGBUS, SIG_DFL);
        auto file = MappedFile::Open(WritePages("mapped_default"));
        raise(SIGBUS);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace orcd
