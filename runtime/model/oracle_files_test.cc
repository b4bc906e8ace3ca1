// Reads files that other programs made, of every architecture and of some that do not run here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "runtime/base/error.h"
#include "runtime/model/architectures.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

std::string Name(const std::filesystem::path& path) { return path.stem().string(); }

// A part of the message that refuses the file; empty if the file runs.
std::string RefusalOf(const std::string& name) {
  for (const char* architecture : {"deepseek2", "gemma4"}) {
    if (name.starts_with(architecture)) return "\"" + std::string(architecture);
  }
  return "";
}

TEST(OracleFilesTest, AreReadOrRefusedByName) {
  const char* oracle = std::getenv("ORCD_ORACLE_DIR");
  if (oracle == nullptr) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  int read = 0;
  int refused = 0;
  for (const char* folder : {"arch", "arch2", "hybrid"}) {
    const auto path = std::filesystem::path(oracle) / folder;
    if (!std::filesystem::exists(path)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() != ".gguf") continue;
      const std::string name = Name(entry.path());
      // Some also have tensors of types that are not read.
      const auto gguf = GgufReader::Open(entry.path().string(), AllowedTensorTypes::kSized);
      ASSERT_TRUE(gguf.ok()) << gguf.status();
      const auto spec = ReadModelSpec(**gguf);
      const std::string refusal = RefusalOf(name);
      if (!refusal.empty()) {
        EXPECT_EQ(spec.status().code(), absl::StatusCode::kUnimplemented) << name << spec.status();
        EXPECT_THAT(std::string(spec.status().message()), HasSubstr(refusal)) << name;
        ++refused;
        continue;
      }
      ASSERT_TRUE(spec.ok()) << name << ": " << spec.status();
      const auto weights = ModelWeights::FromGguf(**gguf, *spec);
      EXPECT_TRUE(weights.ok()) << name << ": " << weights.status();
      EXPECT_EQ(spec->skipped_layers, name.find("-mtp-") != std::string::npos ? 1 : 0) << name;
      EXPECT_EQ(spec->recurrent(), std::string(folder) == "hybrid") << name;
      const bool has_experts = name.starts_with("mixtral") || name.starts_with("qwen3moe") ||
                               name.starts_with("gpt-oss") || name.starts_with("glm4moe") ||
                               name.starts_with("qwen35moe") || name.starts_with("qwen3next");
      EXPECT_EQ(spec->layers.back().experts.count > 0, has_experts) << name;
      ++read;
    }
  }
  EXPECT_GE(read, 38);
  EXPECT_GE(refused, 5);
}

}  // namespace
}  // namespace orcd
