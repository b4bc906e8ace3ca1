#include "runtime/gguf/file_error.h"

#include <cerrno>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

TEST(FileErrorTest, EachKindHasItsCodeAndItsText) {
  struct Case {
    int error;
    absl::StatusCode code;
    const char* reason;
  };
  for (const Case& c : {
           Case{ENOENT, absl::StatusCode::kNotFound, "FILE_NOT_FOUND"},
           Case{ENOTDIR, absl::StatusCode::kNotFound, "FILE_NOT_FOUND"},
           Case{EACCES, absl::StatusCode::kPermissionDenied, "FILE_UNREADABLE"},
           Case{EPERM, absl::StatusCode::kPermissionDenied, "FILE_UNREADABLE"},
           Case{EMFILE, absl::StatusCode::kResourceExhausted, "FILE_LIMIT"},
           Case{ENOMEM, absl::StatusCode::kResourceExhausted, "FILE_LIMIT"},
           Case{ENOSPC, absl::StatusCode::kResourceExhausted, "FILE_LIMIT"},
           Case{EIO, absl::StatusCode::kDataLoss, "FILE_READ_FAILED"},
           Case{EUCLEAN, absl::StatusCode::kDataLoss, "FILE_READ_FAILED"},
           Case{ESTALE, absl::StatusCode::kUnavailable, "FILE_UNREACHABLE"},
           Case{ETIMEDOUT, absl::StatusCode::kUnavailable, "FILE_UNREACHABLE"},
           Case{ENODEV, absl::StatusCode::kFailedPrecondition, "FILE_UNREADABLE"},
           Case{ELOOP, absl::StatusCode::kInvalidArgument, "FILE_UNREADABLE"},
           Case{ENAMETOOLONG, absl::StatusCode::kInvalidArgument, "FILE_UNREADABLE"},
       }) {
    const absl::Status status = FileError("/models/m.gguf", c.error);
    const ErrorDetails details = GetErrorDetails(status);
    EXPECT_EQ(status.code(), c.code) << std::strerror(c.error);
    EXPECT_EQ(details.reason, c.reason) << std::strerror(c.error);
    EXPECT_EQ(details.subject, "/models/m.gguf");
    EXPECT_THAT(std::string(status.message()), HasSubstr("/models/m.gguf: "));
    if (c.code != absl::StatusCode::kNotFound) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(std::strerror(c.error)));
    }
    // Only errors that may pass by themselves have a retry delay.
    EXPECT_EQ(details.retry_after.has_value(), c.code == absl::StatusCode::kUnavailable);
  }
}

}  // namespace
}  // namespace orcd
