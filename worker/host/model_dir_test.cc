#include "worker/host/model_dir.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

TEST(ModelDirTest, OnlyADirectoryThatIsThereIsOne) {
  const std::string base = absl::StrCat(::testing::TempDir(), "/model-dir-", getpid());
  std::filesystem::create_directory(base);
  std::ofstream(base + "/file") << "x";
  std::filesystem::create_directory_symlink(base, base + "/link");
  EXPECT_TRUE(CheckModelDir(base, false).ok());
  EXPECT_TRUE(CheckModelDir(base + "/link", false).ok());
  struct Case {
    std::string dir;
    const char* why;
  };
  for (const Case& c : {Case{base + "/none", "none' is not there; give"},
                        Case{base + "/file", "file' is no directory"},
                        Case{base + "/file/x", "Not a directory"}, Case{"", "'' is empty"}}) {
    EXPECT_THAT(CheckModelDir(c.dir, false).message(), HasSubstr(c.why));
  }
  EXPECT_TRUE(CheckModelDir(base + "/none", true).ok());
  EXPECT_FALSE(CheckModelDir(base + "/file", true).ok());
  std::filesystem::remove_all(base);
}

}  // namespace
}  // namespace orcd
