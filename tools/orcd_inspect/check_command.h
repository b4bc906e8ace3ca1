// `orcd-inspect check`: checks that a worker would load a file.
#ifndef ORCD_TOOLS_ORCD_INSPECT_CHECK_COMMAND_H_
#define ORCD_TOOLS_ORCD_INSPECT_CHECK_COMMAND_H_

#include "CLI/CLI.hpp"

namespace orcd {

// Adds the subcommand. When it runs, it sets `exit_code`: 0 if Load accepts the file with its
// default options on this machine's CPU; 1 otherwise, with Load's message on stderr, and a line for
// each further cause that metadata and tensor list show. Both arguments must outlive parsing.
void AddCheckCommand(CLI::App& app, int& exit_code);

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_CHECK_COMMAND_H_
