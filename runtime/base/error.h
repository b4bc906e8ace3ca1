// Errors as values: absl::Status with what a caller needs to act on it.
//
// The status code says what kind of error it is, the message says what happened and what to change,
// and payloads carry what programs read: a reason (UPPER_SNAKE_CASE, listed in docs/errors.md), the
// request's field that is wrong, the subject (a file, a model, a limit), the time after which to
// try again. The worker turns them into google.rpc details.
#ifndef ORCD_RUNTIME_BASE_ERROR_H_
#define ORCD_RUNTIME_BASE_ERROR_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace orcd {

// Data that an error carries beside code and message. Empty fields are not attached. Made in place:
// {.reason = "QUEUE_FULL", .subject = "queue:requests"}.
struct ErrorDetails {
  std::string reason = {};
  // Path of the request's field, such as `sampling.top_p`. For kInvalidArgument.
  std::string field = {};
  // The subject of the error, such as `queue:requests` or a model's name.
  std::string subject = {};
  std::optional<absl::Duration> retry_after = {};
};

// Bytes of message and details that are not UTF-8 become U+FFFD: file names, a file's metadata and
// the system's error texts may hold any.
absl::Status MakeError(absl::StatusCode code, std::string_view message,
                       const ErrorDetails& details);

// Error for a request's field whose value cannot be used.
absl::Status InvalidField(std::string_view field, std::string_view message);

// The details of `status`; empty fields if it carries none.
ErrorDetails GetErrorDetails(const absl::Status& status);

// `status` with `prefix` and ": " before its message; code and details stay.
absl::Status Annotate(const absl::Status& status, std::string_view prefix);

}  // namespace orcd

// Returns from the enclosing function if `expr`, an absl::Status, is not OK.
#define ORCD_RETURN_IF_ERROR(expr)             \
  do {                                         \
    absl::Status orcd_status = (expr);         \
    if (!orcd_status.ok()) return orcd_status; \
  } while (false)

// Declares or assigns `lhs` from `expr`, an absl::StatusOr, or returns its status.
#define ORCD_ASSIGN_OR_RETURN(lhs, expr) \
  ORCD_ASSIGN_OR_RETURN_IMPL_(ORCD_CONCAT_(orcd_status_or_, __LINE__), lhs, expr)
#define ORCD_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return tmp.status();               \
  lhs = *std::move(tmp)
#define ORCD_CONCAT_(a, b) ORCD_CONCAT_IMPL_(a, b)
#define ORCD_CONCAT_IMPL_(a, b) a##b

#endif  // ORCD_RUNTIME_BASE_ERROR_H_
