#include "integration_tests/test_models.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "integration_tests/gguf_editor.h"
#include "testing/random_model/random_model.h"

namespace orcd::testing {

void WriteNanoModel(const std::string& path, uint64_t seed) {
  RandomModelOptions options;
  options.type = "F16";
  options.seed = seed;
  const absl::StatusOr<std::string> written = WriteRandomModel(options, path);
  if (!written.ok()) {
    std::fprintf(stderr, "%s: %s\n", path.c_str(), written.status().ToString().c_str());
    std::abort();
  }
}

void WriteSlowToLoadModel(const std::string& path) {
  constexpr int kLayers = 128;
  constexpr uint32_t kF32 = 0;
  constexpr uint64_t kAlignment = 32;
  WriteNanoModel(path);
  GgufEditor file(path);
  // Layers of zeros add nothing to the residual stream, and only a sparse region to the file.
  const std::vector<GgufEditor::Tensor> originals = file.tensors;
  uint64_t end = file.data.size();
  for (int layer = 2; layer < kLayers; ++layer) {
    for (const GgufEditor::Tensor& original : originals) {
      if (!absl::StartsWith(original.name, "blk.0.")) continue;
      GgufEditor::Tensor tensor = original;
      tensor.name = absl::StrCat("blk.", layer, ".", absl::StripPrefix(original.name, "blk.0."));
      tensor.type = kF32;
      tensor.offset = end;
      uint64_t bytes = sizeof(float);
      for (const uint64_t n : tensor.ne) bytes *= n;
      end += (bytes + kAlignment - 1) / kAlignment * kAlignment;
      file.tensors.push_back(std::move(tensor));
    }
  }
  file.Set("qwen2.block_count", kGgufU32, U32Bytes(kLayers));
  file.Write(path);
  std::filesystem::resize_file(path, file.DataOffset() + end);
}

}  // namespace orcd::testing
