#include "runtime/gguf/file_error.h"

#include <cerrno>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

// An unreachable file server is rarely back at once.
constexpr absl::Duration kRetryAfter = absl::Seconds(5);

}  // namespace

absl::Status MakeFileError(absl::StatusCode code, std::string_view reason, const std::string& path,
                           std::string_view what) {
  return MakeError(code, absl::StrCat(path, ": ", std::string(what)),
                   {.reason = std::string(reason), .subject = path});
}

absl::Status FileError(const std::string& path, int error) {
  const std::string text = std::generic_category().message(error);
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return MakeFileError(absl::StatusCode::kNotFound, "FILE_NOT_FOUND", path,
                           "there is no such file; check the path");
    case EACCES:
    case EPERM:
      return MakeFileError(absl::StatusCode::kPermissionDenied, "FILE_UNREADABLE", path,
                           "may not be read (" + text + "); give this user the right to read it");
    case EMFILE:
    case ENFILE:
      return MakeFileError(
          absl::StatusCode::kResourceExhausted, "FILE_LIMIT", path,
          "no file descriptor is left (" + text + "); raise the limit (ulimit -n)");
    case ENOMEM:
    case EAGAIN:
    case ENOSPC:
    case EDQUOT:
      return MakeFileError(absl::StatusCode::kResourceExhausted, "FILE_LIMIT", path,
                           "cannot be read: " + text + "; free memory or disk space");
    case EIO:
    case EUCLEAN:
    case EBADMSG:
      return MakeFileError(
          absl::StatusCode::kDataLoss, "FILE_READ_FAILED", path,
          "cannot be read: " + text +
              "; the disk or its connection failed, see the kernel's log and fetch the "
              "file again");
    case ESTALE:
    case ETIMEDOUT:
    case ENOTCONN:
    case EHOSTDOWN:
    case EREMOTEIO:
    case EBUSY:
      return MakeError(absl::StatusCode::kUnavailable,
                       absl::StrCat(path, ": cannot be reached: ", text,
                                    "; its file system is away, try again once it is back"),
                       {.reason = "FILE_UNREACHABLE", .subject = path, .retry_after = kRetryAfter});
    case ENODEV:
    case ENXIO:
    case EOPNOTSUPP:
      return MakeFileError(
          absl::StatusCode::kFailedPrecondition, "FILE_UNREADABLE", path,
          "cannot be mapped or opened: " + text +
              "; its file system lacks that or its device is gone, copy the file to a "
              "local disk");
    default:
      return MakeFileError(absl::StatusCode::kInvalidArgument, "FILE_UNREADABLE", path,
                           "cannot be opened: " + text);
  }
}

}  // namespace orcd
