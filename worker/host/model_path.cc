#include "worker/host/model_path.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/gguf/file_error.h"
#include "runtime/gguf/split_path.h"

namespace orcd {
namespace {

namespace fs = std::filesystem;

// Limits of the search for models that an error message may propose.
constexpr int kMaxDepth = 6;
constexpr int kMaxEntries = 20'000;

absl::Status NotAllowed(const char* field, const std::string& model, std::string_view why) {
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrCat(field, ": '", model, "' ", std::string(why),
                   "; name a file inside the worker's model directory, relative to it"),
      {.reason = "MODEL_PATH_NOT_ALLOWED", .field = field, .subject = model});
}

// Returns true if a file of this name is a part of a split model, but not its first.
bool IsLaterPart(const std::string& name) {
  // The form that SplitPath writes.
  constexpr std::string_view kForm = "-00001-of-00003.gguf";
  if (name.size() < kForm.size()) return false;
  const std::string ending = name.substr(name.size() - kForm.size());
  int no = 0;
  int count = 0;
  return absl::SimpleAtoi(ending.substr(1, 5), &no) &&
         absl::SimpleAtoi(ending.substr(10, 5), &count) && no > 1 &&
         SplitPrefix(name, no - 1, count);
}

bool IsModel(const fs::directory_entry& entry) {
  std::error_code unknown;
  const std::string name = entry.path().filename().string();
  return HasGgufSuffix(name) && entry.is_regular_file(unknown) && !IsLaterPart(name);
}

// Lists models in `model_dir` and the folders below that the caller may have meant, for a message.
// Does not follow links to folders.
std::string ModelsBelow(const std::string& model_dir) {
  constexpr size_t kMost = 8;
  std::error_code error;
  std::vector<std::string> names;
  int entries = 0;
  bool gave_up = false;
  fs::recursive_directory_iterator it(model_dir, fs::directory_options::skip_permission_denied,
                                      error);
  if (error) return absl::StrCat("it cannot be read: ", error.message());
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    if (++entries > kMaxEntries) {
      gave_up = true;
      break;
    }
    if (it.depth() >= kMaxDepth) it.disable_recursion_pending();
    if (IsModel(*it)) names.push_back(it->path().lexically_relative(model_dir).string());
  }
  if (names.empty()) {
    return absl::StrCat("there is no .gguf file in it",
                        gave_up ? absl::StrCat(" among the first ", kMaxEntries, " files") : "",
                        "; put one there or change --model-dir");
  }
  // List the models directly in the directory first.
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    const auto depth = [](const std::string& name) {
      return std::count(name.begin(), name.end(), '/');
    };
    return std::pair(depth(a), a) < std::pair(depth(b), b);
  });
  const size_t left_out = names.size() - std::min(names.size(), kMost);
  names.resize(names.size() - left_out);
  return absl::StrCat("it has ", absl::StrJoin(names, ", "),
                      left_out > 0 ? absl::StrCat(" and ", left_out, " more") : "",
                      gave_up ? " and maybe others" : "");
}

absl::Status NotFound(const std::string& model_dir, const std::string& model) {
  return MakeError(absl::StatusCode::kNotFound,
                   absl::StrCat("no file '", model, "' in the model directory ", model_dir, ": ",
                                ModelsBelow(model_dir)),
                   {.reason = "MODEL_NOT_FOUND", .subject = model});
}

bool IsInside(const fs::path& dir, const fs::path& path) {
  auto [dir_end, unused] = std::mismatch(dir.begin(), dir.end(), path.begin(), path.end());
  return dir_end == dir.end();
}

// If `dir` lies in the Hugging Face hub's cache, at or below `models--ORG--NAME/snapshots`, returns
// that model's folder in the cache, whose `blobs` the snapshot's files link to. Empty otherwise.
fs::path HubModelFolder(const fs::path& dir) {
  fs::path folder;
  for (auto part = dir.begin(); part != dir.end(); ++part) {
    const auto next = std::next(part);
    folder /= *part;
    if (part->string().starts_with("models--") && next != dir.end() && *next == "snapshots") {
      return folder;
    }
  }
  return {};
}

bool IsInsideHub(const fs::path& dir, const fs::path& path) {
  const fs::path folder = HubModelFolder(dir);
  return !folder.empty() &&
         (IsInside(folder / "blobs", path) || IsInside(folder / "snapshots", path));
}

}  // namespace

std::string DefaultModelId(const std::string& model) {
  std::string name = fs::path(model).filename().string();
  if (HasGgufSuffix(name)) name.resize(name.size() - kGgufSuffix.size());
  return ReplaceInvalidUtf8(name);
}

std::vector<std::string> ListModels(const std::string& model_dir, std::error_code& error) {
  std::vector<std::string> names;
  for (fs::directory_iterator it(model_dir, error), end; !error && it != end; it.increment(error)) {
    if (IsModel(*it)) names.push_back(it->path().filename().string());
  }
  if (error) names.clear();
  std::sort(names.begin(), names.end());
  return names;
}

std::string FindModelFile(const std::string& model_dir, const std::string& name) {
  std::error_code unreadable;
  const std::vector<std::string> files = ListModels(model_dir, unreadable);
  for (const std::string& file : files) {
    if (ReplaceInvalidUtf8(file) == name) return file;
  }
  for (const std::string& file : files) {
    if (DefaultModelId(file) == name) return file;
  }
  return HasGgufSuffix(name) ? name : absl::StrCat(name, std::string(kGgufSuffix));
}

absl::StatusOr<std::string> ResolveModelPath(const std::string& model_dir, const std::string& model,
                                             const char* field) {
  if (model.empty()) return InvalidField(field, "is empty; name the model's file");
  if (model.find('\0') != std::string::npos) return NotAllowed(field, model, "holds a NUL byte");
  const fs::path relative(model);
  if (relative.is_absolute()) return NotAllowed(field, model, "is an absolute path");
  for (const fs::path& part : relative) {
    if (part == "..") return NotAllowed(field, model, "contains '..'");
  }
  const fs::path path = fs::path(model_dir) / relative;
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) {
    return NotFound(model_dir, model);
  }
  if (error) return FileError(path.string(), error.value());
  ORCD_RETURN_IF_ERROR(CheckInsideModelDir(model_dir, path.string(), field));
  if (!fs::is_regular_file(real, error)) return NotAllowed(field, model, "is not a regular file");
  return path.string();
}

absl::Status CheckInsideModelDir(const std::string& model_dir, const std::string& path,
                                 const char* field) {
  std::error_code error;
  const fs::path dir = fs::canonical(model_dir, error);
  if (error) return NotAllowed(field, path, "cannot be placed: the model directory cannot be read");
  const fs::path real = fs::canonical(path, error);
  if (error) {
    return MakeError(absl::StatusCode::kDataLoss,
                     absl::StrCat(path, ": went away while it was loaded (", error.message(),
                                  "); put it back and load it again"),
                     {.reason = "FILE_CHANGED", .subject = path});
  }
  if (!IsInside(dir, real) && !IsInsideHub(dir, real)) {
    return NotAllowed(field, path,
                      "is a link out of the model directory (a link may lead within it, and from a "
                      "snapshot of the Hugging Face cache to that model's blobs)");
  }
  return absl::OkStatus();
}

}  // namespace orcd
