#include "worker/api/vllm/zip_archive.h"

#include <zip.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace orcd {
namespace {

std::string Read(const std::string& archive, const std::string& name) {
  zip_error_t error;
  zip_source_t* source = zip_source_buffer_create(archive.data(), archive.size(), 0, &error);
  zip_t* zip = zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &error);
  if (zip == nullptr) return "no archive";
  zip_stat_t stat;
  std::string content = "no such entry";
  if (zip_stat(zip, name.c_str(), 0, &stat) == 0) {
    content.resize(stat.size);
    zip_file_t* file = zip_fopen(zip, name.c_str(), 0);
    EXPECT_EQ(zip_fread(file, content.data(), content.size()),
              static_cast<zip_int64_t>(content.size()));
    EXPECT_EQ(zip_fclose(file), 0) << "the sum is wrong";
  }
  zip_discard(zip);
  return content;
}

TEST(ZipArchiveTest, HoldsWhatWasPutIn) {
  const std::string large(3 << 20, 'x');
  const auto archive = MakeZip({{"a.json", "{}"}, {"b.json", large}, {"empty", ""}});
  ASSERT_TRUE(archive.ok()) << archive.status();
  EXPECT_LT(archive->size(), large.size() / 100) << "not deflated";
  EXPECT_EQ(Read(*archive, "a.json"), "{}");
  EXPECT_EQ(Read(*archive, "b.json"), large);
  EXPECT_EQ(Read(*archive, "empty"), "");
  EXPECT_EQ(Read(*archive, "c"), "no such entry");
}

TEST(ZipArchiveTest, TheSameEntriesGiveTheSameBytesWhereverOneIs) {
  const auto here = MakeZip({{"a", "text"}});
  setenv("TZ", "Asia/Tokyo", 1);
  const auto elsewhere = MakeZip({{"a", "text"}});
  unsetenv("TZ");
  ASSERT_TRUE(here.ok() && elsewhere.ok());
  EXPECT_EQ(*here, *elsewhere);
}

TEST(ZipArchiveTest, RefusesTwoEntriesOfOneName) {
  EXPECT_EQ(MakeZip({{"a", "1"}, {"a", "2"}}).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace orcd
