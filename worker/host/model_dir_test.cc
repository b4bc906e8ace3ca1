#include "worker/host/model_dir.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/files.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

TEST(ModelDirTest, OnlyADirectoryThatIsThereIsOne) {
  const TempDir dir;
  const std::string base = dir.path().string();
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
}

}  // namespace
}  // namespace orcd
