// The error of a call, as a person reads it.
#ifndef ORCD_TOOLS_ORCDCTL_ERROR_TEXT_H_
#define ORCD_TOOLS_ORCDCTL_ERROR_TEXT_H_

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>

namespace orcd::ctl {

// `CODE: message`, then on lines of their own, indented, what the google.rpc details add: the
// reason, wrong fields, limits, preconditions, resources, and when to try again. Ends with a
// newline. `status` is not OK; `address` is named where nothing answered.
std::string DescribeError(const grpc::Status& status, std::string_view address);

// kExitUnreachable where the worker did not answer at all (UNAVAILABLE or DEADLINE_EXCEEDED without
// a worker's details), else kExitFailed.
int ExitCodeOf(const grpc::Status& status);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_ERROR_TEXT_H_
