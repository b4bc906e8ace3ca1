#include "worker/model_path.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/error.h"

namespace orcd {
namespace {

namespace fs = std::filesystem;

absl::Status NotAllowed(const std::string& model, std::string_view why) {
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrCat("model: '", model, "' ", std::string(why),
                   "; name a file inside the worker's model directory, relative to it"),
      {.reason = "MODEL_PATH_NOT_ALLOWED", .field = "model", .subject = model});
}

// For a message: what could have been meant.
std::string ModelsIn(const std::string& model_dir) {
  constexpr size_t kMost = 8;
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(model_dir, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".gguf") names.push_back(it->path().filename().string());
  }
  if (error) return absl::StrCat("it cannot be read: ", error.message());
  if (names.empty()) return "there is no .gguf file in it; put one there or change --model-dir";
  std::sort(names.begin(), names.end());
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
