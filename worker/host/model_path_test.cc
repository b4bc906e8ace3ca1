#include "worker/host/model_path.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "testing/files.h"

namespace orcd {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ModelPathTest : public ::testing::Test {
 protected:
  ModelPathTest() {
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

  absl::StatusOr<std::string> Resolve(const std::string& model) {
    return ResolveModelPath((root_ / "models").string(), model);
  }

  const TempDir dir_;
  const fs::path root_ = dir_.path();
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
  // The message names the available models.
  EXPECT_THAT(std::string(path.status().message()), HasSubstr("a.gguf"));
  EXPECT_THAT(std::string(path.status().message()), Not(HasSubstr("notes.txt")));
}

TEST_F(ModelPathTest, NoFileNamesWhatIsBelowToo) {
  const fs::path models = root_ / "models";
  fs::create_directories(models / "deep" / "er");
  std::ofstream(models / "deep" / "er" / "d.GGUF") << "d";
  std::ofstream(models / "deep" / "split-00001-of-00002.gguf") << "s";
  std::ofstream(models / "deep" / "split-00002-of-00002.gguf") << "s";
  EXPECT_THAT(std::string(Resolve("none.gguf").status().message()),
              HasSubstr("it has a.gguf, inside-link.gguf, outside-link.gguf, "
                        "deep/split-00001-of-00002.gguf, family/b.gguf, deep/er/d.GGUF"));
  for (int i = 0; i < 20; ++i) std::ofstream(models / absl::StrCat("many", 10 + i, ".gguf")) << "m";
  const std::string message(Resolve("none.gguf").status().message());
  EXPECT_THAT(message, HasSubstr("inside-link.gguf, many10.gguf"));
  EXPECT_THAT(message, HasSubstr(" and 18 more"));
}

TEST_F(ModelPathTest, AnErrorThatIsNoAbsenceIsNotCalledOne) {
  const fs::path models = root_ / "models";
  fs::create_symlink("loop.gguf", models / "loop.gguf");
  const absl::Status loop = Resolve("loop.gguf").status();
  EXPECT_EQ(GetErrorDetails(loop).reason, "FILE_UNREADABLE") << loop;
  const absl::Status longer = Resolve(std::string(1000, 'x') + ".gguf").status();
  EXPECT_EQ(longer.code(), absl::StatusCode::kInvalidArgument) << longer;
  EXPECT_EQ(GetErrorDetails(longer).reason, "FILE_UNREADABLE");
}

TEST_F(ModelPathTest, TheEndingMayBeInCapitals) {
  const fs::path models = root_ / "models";
  std::ofstream(models / "B.GGUF") << "b";
  std::ofstream(models / "c-00001-of-00002.Gguf") << "c";
  std::ofstream(models / "c-00002-of-00002.Gguf") << "c";
  std::error_code error;
  EXPECT_THAT(ListModels(models.string(), error),
              ::testing::ElementsAre("B.GGUF", "a.gguf", "c-00001-of-00002.Gguf",
                                     "inside-link.gguf", "outside-link.gguf"));
  EXPECT_EQ(DefaultModelId("B.GGUF"), "B");
  EXPECT_EQ(FindModelFile(models.string(), "B"), "B.GGUF");
  EXPECT_EQ(FindModelFile(models.string(), "B.GGUF"), "B.GGUF");
  EXPECT_EQ(FindModelFile(models.string(), "a"), "a.gguf");
  EXPECT_EQ(FindModelFile(models.string(), "none"), "none.gguf");
  EXPECT_EQ(FindModelFile(models.string(), "family/b"), "family/b.gguf");
}

TEST_F(ModelPathTest, NamesThatAreNoUtf8) {
  const fs::path models = root_ / "models";
  std::ofstream(models / "d\xe9.gguf") << "d";
  EXPECT_EQ(DefaultModelId("d\xe9.gguf"), "d\xEF\xBF\xBD");
  EXPECT_EQ(FindModelFile(models.string(), "d\xEF\xBF\xBD"), "d\xe9.gguf");
  EXPECT_EQ(FindModelFile(models.string(), "d\xEF\xBF\xBD.gguf"), "d\xe9.gguf");
  const std::string message(Resolve("none.gguf").status().message());
  EXPECT_THAT(message, HasSubstr("d\xEF\xBF\xBD.gguf"));
}

// Uses the layout of huggingface_hub: files in `snapshots/REVISION` are links to `blobs/SUM`.
TEST_F(ModelPathTest, ASnapshotOfTheHuggingFaceCache) {
  const fs::path hub = root_ / "hub";
  const fs::path folder = hub / "models--Qwen--Qwen2.5-0.5B-Instruct-GGUF";
  const fs::path snapshot = folder / "snapshots" / "9217f5db79a29953eb74d5343926648285ec7e67";
  fs::create_directories(folder / "blobs");
  fs::create_directories(snapshot / "sub");
  fs::create_directories(hub / "models--other--secret" / "blobs");
  std::ofstream(folder / "blobs" / "74a4da8c9f") << "m";
  std::ofstream(hub / "models--other--secret" / "blobs" / "1") << "s";
  fs::create_symlink("../../blobs/74a4da8c9f", snapshot / "m.gguf");
  fs::create_symlink("../../../blobs/74a4da8c9f", snapshot / "sub" / "s.gguf");
  fs::create_symlink("../../../models--other--secret/blobs/1", snapshot / "other.gguf");
  fs::create_symlink(root_ / "secret.gguf", snapshot / "out.gguf");
  fs::create_symlink("../../refs", snapshot / "refs.gguf");
  std::ofstream(folder / "refs") << "main";

  const auto resolve = [&](const fs::path& dir, const std::string& model) {
    return ResolveModelPath(dir.string(), model);
  };
  EXPECT_EQ(*resolve(snapshot, "m.gguf"), (snapshot / "m.gguf").string());
  EXPECT_TRUE(resolve(snapshot, "sub/s.gguf").ok());
  EXPECT_TRUE(resolve(snapshot / "sub", "s.gguf").ok());
  EXPECT_TRUE(CheckInsideModelDir(snapshot.string(), (snapshot / "m.gguf").string()).ok());
  EXPECT_TRUE(resolve(folder, "snapshots/9217f5db79a29953eb74d5343926648285ec7e67/m.gguf").ok());
  for (const char* out : {"other.gguf", "out.gguf", "refs.gguf"}) {
    const absl::Status refused = resolve(snapshot, out).status();
    EXPECT_EQ(GetErrorDetails(refused).reason, "MODEL_PATH_NOT_ALLOWED") << out;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("Hugging Face"));
  }
  // A folder that only resembles the hub's cache gives access to nothing but itself.
  const fs::path alike = root_ / "alike" / "snapshots" / "r";
  fs::create_directories(alike);
  fs::create_directories(root_ / "alike" / "blobs");
  std::ofstream(root_ / "alike" / "blobs" / "1") << "s";
  fs::create_symlink("../../blobs/1", alike / "m.gguf");
  EXPECT_EQ(GetErrorDetails(resolve(alike, "m.gguf").status()).reason, "MODEL_PATH_NOT_ALLOWED");
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
              ::testing::ElementsAre("a.gguf", "inside-link.gguf", "odd-00002-of-.gguf",
                                     "outside-link.gguf", "split-00001-of-00002.gguf"));
  EXPECT_FALSE(error);
  EXPECT_THAT(ListModels((root_ / "none").string(), error), ::testing::IsEmpty());
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
