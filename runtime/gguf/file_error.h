// Converts system errors about a model file into statuses.
#ifndef ORCD_RUNTIME_GGUF_FILE_ERROR_H_
#define ORCD_RUNTIME_GGUF_FILE_ERROR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace orcd {

// The status for errno `error` from finding, opening or reading the file `path`. The message
// includes the system's text for the error. Codes and reasons (docs/errors.md):
//   ENOENT, ENOTDIR              kNotFound            FILE_NOT_FOUND
//   EACCES, EPERM                kPermissionDenied    FILE_UNREADABLE
//   EMFILE, ENFILE, ENOMEM,
//   EAGAIN, ENOSPC, EDQUOT       kResourceExhausted   FILE_LIMIT
//   EIO, EUCLEAN, EBADMSG        kDataLoss            FILE_READ_FAILED
//   ESTALE, ETIMEDOUT, ENOTCONN,
//   EHOSTDOWN, EREMOTEIO, EBUSY  kUnavailable         FILE_UNREACHABLE, to be tried again
//   ENODEV, ENXIO, EOPNOTSUPP    kFailedPrecondition  FILE_UNREADABLE
//   any other                    kInvalidArgument     FILE_UNREADABLE
absl::Status FileError(const std::string& path, int error);

// A status whose message is the path and `what`, and whose subject is the path.
absl::Status MakeFileError(absl::StatusCode code, std::string_view reason, const std::string& path,
                           std::string_view what);

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_FILE_ERROR_H_
