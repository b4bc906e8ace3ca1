// `orcd-inspect template`: renders a chat template, without a server.
#ifndef ORCD_TOOLS_ORCD_INSPECT_TEMPLATE_COMMAND_H_
#define ORCD_TOOLS_ORCD_INSPECT_TEMPLATE_COMMAND_H_

#include <ctime>
#include <iosfwd>
#include <string_view>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"

namespace orcd {

// Adds the command to `app`. It runs while the command line is parsed and sets `exit_code`: 0, or 1
// after a message on stderr. `exit_code` must live as long as `app`.
void AddTemplateCommand(CLI::App& app, int& exit_code);

// The time that strftime_now shows, in no time zone.
struct LocalTime {
  std::tm time = {};
  int microseconds = 0;
};

// `text` is such as 2025-07-26T13:05:09 or 2025-07-26T13:05:09.25. kInvalidArgument if not.
absl::StatusOr<LocalTime> ParseLocalTime(std::string_view text);

// Renders each line of `input`, {"template": text, "context": JSON object as text, "now": time},
// and writes a line for it to `output`: {"spans": […]} as of --spans, or {"code": …, "error": …}.
// `now` stands in for a time that a line lacks. Writes each line before it reads the next.
// kInvalidArgument, with the number of the line, if a line is not such an object.
absl::Status RenderLines(const LocalTime& now, std::istream& input, std::ostream& output);

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_TEMPLATE_COMMAND_H_
