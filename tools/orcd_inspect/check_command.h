// `orcd-inspect check`: would a worker load this file?
#ifndef ORCD_TOOLS_ORCD_INSPECT_CHECK_COMMAND_H_
#define ORCD_TOOLS_ORCD_INSPECT_CHECK_COMMAND_H_

#include "CLI/CLI.hpp"

namespace orcd {

// Adds the subcommand; when it was run, `exit_code` says how it went: 0 where Load accepts the file
// with its default options on this machine's CPU, 1 after Load's message on stderr. Both must
// outlive parsing.
void AddCheckCommand(CLI::App& app, int& exit_code);

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_CHECK_COMMAND_H_
