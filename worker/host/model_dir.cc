#include "worker/host/model_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace orcd {

absl::Status CheckModelDir(const std::string& dir, bool may_be_missing) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--model-dir: '", dir, "' ", why, "; give the directory that has the model files"));
  };
  if (dir.empty()) return wrong("is empty");
  struct stat info;
  if (stat(dir.c_str(), &info) != 0) {
    const int error = errno;
    if (error == ENOENT && may_be_missing) return absl::OkStatus();
    if (error == ENOENT) return wrong("is not there");
    return wrong(absl::StrCat("cannot be looked at: ", std::strerror(error)));
  }
  if (!S_ISDIR(info.st_mode)) return wrong("is no directory");
  if (access(dir.c_str(), R_OK | X_OK) != 0) {
    return wrong(absl::StrCat("cannot be read: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace orcd
