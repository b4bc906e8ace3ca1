// The tables of docs/models.md, as the code of both backends says.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cuda/device.h"
#include "cuda/device_weights.h"
#include "cuda/kernels/common/tile_format.h"
#include "cuda/kernels/sm90/kernel_set.h"
#include "cuda/memory_plan.h"
#include "runtime/base/error.h"
#include "runtime/base/load_observer.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/model/architectures.h"
#include "runtime/model/model.h"
#include "testing/files.h"
#include "testing/random_model/model_shapes.h"
#include "testing/random_model/random_model.h"
#include "testing/test_model.h"

namespace orcd::cuda {
namespace {

// Tests run at the root of the tree.
constexpr char kModelsPath[] = "docs/models.md";

std::string TempPath(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), name, "-", getpid(), ".gguf");
}

// Compares a table with the part of the document between `<!-- name -->` and `<!-- /name -->`, or
// writes it there.
void CheckTable(const std::string& name, const std::string& table) {
  const std::string text = ReadFile(kModelsPath);
  const std::string begin = absl::StrCat("<!-- ", name, " -->\n");
  const size_t open = text.find(begin);
  const size_t end = text.find(absl::StrCat("<!-- /", name, " -->\n"));
  ASSERT_NE(open, std::string::npos) << kModelsPath << " has no " << begin;
  ASSERT_NE(end, std::string::npos) << kModelsPath << " does not end " << name;
  const size_t first = open + begin.size();
  ASSERT_LE(first, end);
  const std::string wanted = absl::StrCat("\n", table, "\n");
  if (std::getenv("ORCD_WRITE_DOCS") != nullptr) {
    std::ofstream(kModelsPath) << text.substr(0, first) << wanted << text.substr(end);
    return;
  }
  EXPECT_EQ(text.substr(first, end - first), wanted)
      << kModelsPath << " is not what the code says; write it anew with "
      << "ORCD_WRITE_DOCS=1 ctest --preset release -R orcd_forward_check_test";
}

BackendOptions SmallOptions() {
  BackendOptions options;
  options.max_seqs = 2;
  options.max_step_tokens = 64;
  options.kv_cache_bytes = 16 << 20;
  options.max_context = 256;
  options.threads = 1;
  return options;
}

absl::Status AskCpu(const std::shared_ptr<const Model>& model) {
  NullLoadObserver observer;
  return CreateCpuBackend(model, SmallOptions(), observer).status();
}

// All of a load on the GPU that needs none.
absl::Status AskGpu(const Model& model) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  ORCD_ASSIGN_OR_RETURN(const DeviceWeights weights,
                        DeviceWeights::Plan(model.spec(), model.weights(), 1));
  DeviceInfo device;
  device.kernels = &sm90::kKernels;
  device.total_bytes = 80 * kGiB;
  device.free_bytes = 70 * kGiB;
  return PlanMemory(model.spec(), weights, SmallOptions(), device).status();
}

// Null, and a failed test, if the model cannot be made.
std::shared_ptr<const Model> MakeModel(const RandomModelOptions& options) {
  const std::string path = TempPath("models-doc");
  const auto written = WriteRandomModel(options, path);
  EXPECT_TRUE(written.ok()) << written.status();
  if (!written.ok()) return nullptr;
  NullLoadObserver observer;
  auto model = Model::Load(path, {.with_text = false}, observer);
  unlink(path.c_str());
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

std::string Cell(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"<", "\\<"}});
}

// A device's answer, as a cell.
std::string Answer(const absl::Status& status) {
  return status.ok() ? "yes" : absl::StrCat("no: ", Cell(std::string(status.message())));
}

// Files of some architectures have experts or have none.
TEST(ModelsDocTest, Architectures) {
  std::string table =
      "| architecture | models | CPU | GPU | compared with |\n|---|---|---|---|---|\n";
  for (const Architecture* row : AllArchitectures()) {
    const std::string name(row->name);
    ASSERT_NE(FindModelShape(name, "nano"), nullptr) << "no random model of " << name << " is made";
    const bool has_both = FindModelShape(name, "nano-moe") != nullptr;
    for (const std::string size : {"nano", "nano-moe"}) {
      if (FindModelShape(name, size) == nullptr) continue;
      const auto model =
          MakeModel({.architecture = name, .size = size, .type = "F16", .threads = 1});
      ASSERT_NE(model, nullptr) << name << " " << size;
      const char* const kind = !has_both        ? ""
                               : size == "nano" ? " without experts"
                                                : " with experts";
      absl::StrAppend(&table, "| `", name, "`", kind, " | ", std::string(row->models), " | ",
                      Answer(AskCpu(model)), " | ", Answer(AskGpu(*model)), " | ",
                      std::string(row->status), " |\n");
    }
  }
  CheckTable("architectures", table);
}

TEST(ModelsDocTest, BlockTypes) {
  std::string table = "| type | bits a weight | CPU | GPU |\n|---|---|---|---|\n";
  for (const TensorTypeInfo& info : AllTensorTypes()) {
    const auto file_type = std::ranges::find(AllFileTypes(), info.type, &FileType::base);
    ASSERT_NE(file_type, AllFileTypes().end()) << "no file type for " << info.name;
    const auto model = MakeModel({.type = std::string(file_type->name), .threads = 1});
    ASSERT_NE(model, nullptr) << info.name;
    std::string gpu = Answer(AskGpu(*model));
    if (gpu == "yes" && info.type != TensorType::kF16 && FormatFor(info.type) == TileFormat::kF16) {
      gpu = "yes, as F16";
    }
    absl::StrAppendFormat(&table, "| %s | %.4g | %s | %s |\n", info.name,
                          8.0 * info.block_bytes / info.block_weights, Answer(AskCpu(model)), gpu);
  }
  CheckTable("types", table);
}

struct RefusedFile {
  const char* what;
  std::function<void(TestModel&)> change;
};

TEST(ModelsDocTest, Refused) {
  const std::vector<RefusedFile> files = {
      {"another architecture", [](TestModel& m) { m.keys["general.architecture"] = "deepseek2"; }},
      {"a vision projector (mmproj)",
       [](TestModel& m) { m.keys["general.architecture"] = "clip"; }},
      {"experts of an architecture that has none",
       [](TestModel& m) { m.keys["qwen2.expert_count"] = uint32_t{8}; }},
      {"a model of embeddings", [](TestModel& m) { m.keys["qwen2.attention.causal"] = false; }},
      {"layers that predict further tokens",
       [](TestModel& m) { m.keys["qwen2.nextn_predict_layers"] = uint32_t{1}; }},
      {"layers of different shapes",
       [](TestModel& m) {
         m.keys["qwen2.feed_forward_length"] = std::vector<int32_t>{256, 512};
       }},
      {"a window that the architecture does not have",
       [](TestModel& m) { m.keys["qwen2.attention.sliding_window"] = uint32_t{64}; }},
      {"another RoPE scaling", [](TestModel& m) { m.keys["qwen2.rope.scaling.type"] = "dynamic"; }},
      {"a tensor that the architecture does not have",
       [](TestModel& m) { m.AddVector("blk.0.attn_sinks.weight", 4); }},
  };
  std::string table = "| file | message |\n|---|---|\n";
  for (const RefusedFile& file : files) {
    TestModel model = TestModel::Valid();
    file.change(model);
    const std::string path = TempPath("refused");
    model.Write(path);
    NullLoadObserver observer;
    const absl::Status status = Model::Load(path, {.with_text = false}, observer).status();
    unlink(path.c_str());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << file.what << ": " << status;
    EXPECT_EQ(GetErrorDetails(status).reason, "MODEL_UNSUPPORTED") << file.what;
    const std::string message =
        absl::StrReplaceAll(std::string(status.message()), {{path + ": ", ""}});
    absl::StrAppend(&table, "| ", file.what, " | ", Cell(message), " |\n");
  }
  std::string types;
  for (uint32_t id = 0; id < 64; ++id) {
    const TensorTypeInfo* const sized = FindSizedTensorType(id);
    if (sized == nullptr || FindTensorType(id) != nullptr) continue;
    absl::StrAppend(&types, types.empty() ? "" : ", ", std::string(sized->name));
  }
  absl::StrAppend(&table,
                  "| matrices of a type that is not computed | tensor, type and a word "
                  "of advice; the types are ",
                  types, " |\n");
  CheckTable("refused", table);
}

}  // namespace
}  // namespace orcd::cuda
