// Text that a command works on: its arguments or stdin.
#ifndef ORCD_TOOLS_ORCDCTL_INPUT_H_
#define ORCD_TOOLS_ORCDCTL_INPUT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/orcdctl/console.h"

namespace orcd::ctl {

// `words` joined by spaces; stdin to its end where there are none or only `-`. kInvalidArgument
// where the text is not UTF-8.
absl::StatusOr<std::string> ReadText(Console& console, const std::vector<std::string>& words);

// The whole file at `path`. kNotFound where it cannot be read.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_INPUT_H_
