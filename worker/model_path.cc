#include "worker/model_path.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "runtime/error.h"
#include "runtime/gguf/split_path.h"

namespace orcd {
namespace {

namespace fs = std::filesystem;

constexpr char kModelSuffix[] = ".gguf";

absl::Status NotAllowed(const std::string& model, std::string_view why) {
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrCat("model: '", model, "' ", std::string(why),
                   "; name a file inside the worker's model directory, relative to it"),
      {.reason = "MODEL_PATH_NOT_ALLOWED", .field = "model", .subject = model});
}

// Whether a file of this name is a part of a split model that is not its first.
bool IsLaterPart(const std::string& name) {
  // As SplitPath writes it.
  constexpr std::string_view kForm = "-00001-of-00003.gguf";
  if (name.size() < kForm.size()) return false;
  const std::string ending = name.substr(name.size() - kForm.size());
  int no = 0;
  int count = 0;
  return absl::SimpleAtoi(ending.substr(1, 5), &no) &&
         absl::SimpleAtoi(ending.substr(10, 5), &count) && no > 1 &&
         SplitPrefix(name, no - 1, count);
}

// For a message: what could have been meant.
std::string ModelsIn(const std::string& model_dir) {
  constexpr size_t kMost = 8;
  std::error_code error;
  std::vector<std::string> names = ListModels(model_dir, error);
  if (error) return absl::StrCat("it cannot be read: ", error.message());
  if (names.empty()) return "there is no .gguf file in it; put one there or change --model-dir";
  const size_t left_out = names.size() - std::min(names.size(), kMost);
  names.resize(names.size() - left_out);
  return absl::StrCat("it has ", absl::StrJoin(names, ", "),
                      left_out > 0 ? absl::StrCat(" and ", left_out, " more") : "");
}

absl::Status NotFound(const std::string& model_dir, const std::string& model) {
  return MakeError(absl::StatusCode::kNotFound,
                   absl::StrCat("no file '", model, "' in the model directory ", model_dir, ": ",
                                ModelsIn(model_dir)),
                   {.reason = "MODEL_NOT_FOUND", .subject = model});
}

bool IsInside(const fs::path& dir, const fs::path& path) {
  auto [dir_end, unused] = std::mismatch(dir.begin(), dir.end(), path.begin(), path.end());
  return dir_end == dir.end();
}

}  // namespace

std::string DefaultModelId(const std::string& model) {
  const std::string name = fs::path(model).filename().string();
  return std::string(absl::StripSuffix(name, kModelSuffix));
}

std::vector<std::string> ListModels(const std::string& model_dir, std::error_code& error) {
  std::vector<std::string> names;
  for (fs::directory_iterator it(model_dir, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code unknown;
    if (it->path().extension() == kModelSuffix && it->is_regular_file(unknown) &&
        !IsLaterPart(name)) {
      names.push_back(name);
    }
  }
  if (error) names.clear();
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::string> ResolveModelPath(const std::string& model_dir,
                                             const std::string& model) {
  if (model.empty()) return InvalidField("model", "is empty; name the model's file");
  if (model.find('\0') != std::string::npos) return NotAllowed(model, "holds a NUL byte");
  const fs::path relative(model);
  if (relative.is_absolute()) return NotAllowed(model, "is an absolute path");
  for (const fs::path& part : relative) {
    if (part == "..") return NotAllowed(model, "contains '..'");
  }
  const fs::path path = fs::path(model_dir) / relative;
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) return NotFound(model_dir, model);
  ORCD_RETURN_IF_ERROR(CheckInsideModelDir(model_dir, path.string()));
  if (!fs::is_regular_file(real, error)) return NotAllowed(model, "is not a regular file");
  return path.string();
}

absl::Status CheckInsideModelDir(const std::string& model_dir, const std::string& path) {
  std::error_code error;
  const fs::path dir = fs::canonical(model_dir, error);
  if (error) return NotAllowed(path, "cannot be placed: the model directory cannot be read");
  const fs::path real = fs::canonical(path, error);
  if (error) {
    return MakeError(absl::StatusCode::kDataLoss,
                     absl::StrCat(path, ": went away while it was loaded (", error.message(),
                                  "); put it back and load it again"),
                     {.reason = "FILE_CHANGED", .subject = path});
  }
  if (!IsInside(dir, real)) return NotAllowed(path, "is a link out of the model directory");
  return absl::OkStatus();
}

}  // namespace orcd
