// The error of a call, as a person reads it.
#ifndef ORCD_TOOLS_ORCDCTL_ERROR_TEXT_H_
#define ORCD_TOOLS_ORCDCTL_ERROR_TEXT_H_

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>

namespace orcd::ctl {

// kExitUnreachable where no worker answers: UNAVAILABLE or, unless `connected` says that the call's
// connection stands, DEADLINE_EXCEEDED, without a worker's details. Else kExitFailed. `status` is
// not OK.
int ExitCodeOf(const grpc::Status& status, bool connected);

// `CODE: message`, then on lines of their own, indented, what the google.rpc details add: the
// reason, wrong fields, limits, preconditions, resources, and when to try again; and `address`
// where `exit_code` says that nothing answers there. Ends with a newline. `status` is not OK.
std::string DescribeError(const grpc::Status& status, int exit_code, std::string_view address);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_ERROR_TEXT_H_
