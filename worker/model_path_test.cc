#include "worker/model_path.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/error.h"

namespace orcd {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ModelPathTest : public testing::Test {
 protected:
  ModelPathTest() : root_(absl::StrCat(testing::TempDir(), "/model-path-", getpid())) {
    fs::create_directories(root_ / "models" / "family");
    std::ofstream(root_ / "models" / "a.gguf") << "a";
    std::ofstream(root_ / "models" / "family" / "b.gguf") << "b";
    std::ofstream(root_ / "models" / "notes.txt") << "n";
    std::ofstream(root_ / "secret.gguf") << "s";
    fs::create_directories(root_ / "models-next-door");
    std::ofstream(root_ / "models-next-door" / "c.gguf") << "c";
    fs::create_symlink("family/b.gguf", root_ / "models" / "inside-link.gguf");
    fs::create_symlink(root_ / "secret.gguf", root_ / "models" / "outside-link.gguf");
    fs::create_directory_symlink(root_ / "models-next-door", root_ / "models" / "door");
    fs::create_directory_symlink("models", root_ / "link-to-models");
  }
  ~ModelPathTest() override { fs::remove_all(root_); }

  absl::StatusOr<std::string> Resolve(const std::string& model) {
    return ResolveModelPath((root_ / "models").string(), model);
  }

  const fs::path root_;
};

TEST_F(ModelPathTest, FilesInside) {
  EXPECT_EQ(*Resolve("a.gguf"), (root_ / "models/a.gguf").string());
  EXPECT_TRUE(Resolve("family/b.gguf").ok());
  EXPECT_TRUE(Resolve("inside-link.gguf").ok());
  EXPECT_TRUE(Resolve("./a.gguf").ok());
}

TEST_F(ModelPathTest, TheModelDirItselfMayBeALink) {
  EXPECT_TRUE(ResolveModelPath((root_ / "link-to-models").string(), "a.gguf").ok());
  EXPECT_TRUE(ResolveModelPath(absl::StrCat((root_ / "models").string(), "/"), "a.gguf").ok());
}

TEST_F(ModelPathTest, PathsOutOfIt) {
  for (const std::string& model : {std::string("../secret.gguf"), std::string("family/../a.gguf"),
                                   std::string(".."), (root_ / "models/a.gguf").string(),
                                   std::string("/etc/passwd"), std::string("outside-link.gguf"),
                                   std::string("door/c.gguf"), std::string("a.gguf\0x", 8)}) {
    const auto path = Resolve(model);
    EXPECT_EQ(path.status().code(), absl::StatusCode::kInvalidArgument) << model;
    const ErrorDetails details = GetErrorDetails(path.status());
    EXPECT_EQ(details.reason, "MODEL_PATH_NOT_ALLOWED") << model;
    EXPECT_EQ(details.field, "model") << model;
  }
}

TEST_F(ModelPathTest, NoFile) {
  const auto path = Resolve("c.gguf");
  EXPECT_EQ(path.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetErrorDetails(path.status()).reason, "MODEL_NOT_FOUND");
  EXPECT_EQ(GetErrorDetails(path.status()).subject, "c.gguf");
  // Says what is there.
  EXPECT_THAT(std::string(path.status().message()), HasSubstr("a.gguf"));
  EXPECT_THAT(std::string(path.status().message()), Not(HasSubstr("notes.txt")));
}

TEST_F(ModelPathTest, NotAFile) {
  EXPECT_EQ(Resolve("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Resolve("family").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Resolve(".").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ModelPathTest, NoModelDir) {
  const auto path = ResolveModelPath((root_ / "nowhere").string(), "a.gguf");
  EXPECT_EQ(path.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(path.status().message()), HasSubstr("cannot be read"));
}

TEST_F(ModelPathTest, ListsTheFilesOfModels) {
  const fs::path models = root_ / "models";
  for (int part = 1; part <= 2; ++part) {
    std::ofstream(models / absl::StrCat("split-0000", part, "-of-00002.gguf")) << "s";
  }
  std::ofstream(models / "odd-00002-of-.gguf") << "o";
  fs::create_directory(models / "folder.gguf");
  std::error_code error;
  EXPECT_THAT(ListModels(models.string(), error),
              testing::ElementsAre("a.gguf", "inside-link.gguf", "odd-00002-of-.gguf",
                                   "outside-link.gguf", "split-00001-of-00002.gguf"));
  EXPECT_FALSE(error);
  EXPECT_THAT(ListModels((root_ / "none").string(), error), testing::IsEmpty());
  EXPECT_TRUE(error);
}

TEST_F(ModelPathTest, TheNameOfAModelIsItsFiles) {
  EXPECT_EQ(DefaultModelId("a.gguf"), "a");
  EXPECT_EQ(DefaultModelId("family/b.gguf"), "b");
  EXPECT_EQ(DefaultModelId("c"), "c");
}

TEST_F(ModelPathTest, OtherFilesOfASplitModel) {
  const std::string dir = (root_ / "models").string();
  EXPECT_TRUE(CheckInsideModelDir(dir, absl::StrCat(dir, "/a.gguf")).ok());
  EXPECT_EQ(CheckInsideModelDir(dir, absl::StrCat(dir, "/outside-link.gguf")).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckInsideModelDir(dir, absl::StrCat(dir, "-next-door/c.gguf")).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace orcd
