// Reads the text that a command works on from its arguments or from stdin.
#ifndef ORCD_TOOLS_ORCDCTL_INPUT_H_
#define ORCD_TOOLS_ORCDCTL_INPUT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/orcdctl/console.h"

namespace orcd::ctl {

// Joins `words` with spaces; if there are none, or only `-`, reads stdin to its end.
// kInvalidArgument if the text is not UTF-8.
absl::StatusOr<std::string> ReadText(Console& console, const std::vector<std::string>& words);

// Reads the whole file at `path`. kNotFound if it cannot be read.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_INPUT_H_
