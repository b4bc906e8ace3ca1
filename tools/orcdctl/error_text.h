// Describes the error of a call to a person.
#ifndef ORCD_TOOLS_ORCDCTL_ERROR_TEXT_H_
#define ORCD_TOOLS_ORCDCTL_ERROR_TEXT_H_

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>

namespace orcd::ctl {

// kExitUnreachable if no worker answers: the status has no worker's details and is UNAVAILABLE or,
// unless `connected` says that the call's connection stands, DEADLINE_EXCEEDED. Else kExitFailed.
// `status` must not be OK.
int ExitCodeOf(const grpc::Status& status, bool connected);

// `CODE: message`, then the google.rpc details on indented lines of their own: the reason, wrong
// fields, limits, preconditions, resources, and when to try again; and `address` if `exit_code`
// says that nothing answers there. Ends with a newline. `status` must not be OK.
std::string DescribeError(const grpc::Status& status, int exit_code, std::string_view address);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_ERROR_TEXT_H_
