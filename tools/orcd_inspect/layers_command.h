// `orcd-inspect layers`: compares two backends layer by layer and operation by operation.
#ifndef ORCD_TOOLS_ORCD_INSPECT_LAYERS_COMMAND_H_
#define ORCD_TOOLS_ORCD_INSPECT_LAYERS_COMMAND_H_

#include "CLI/CLI.hpp"

namespace orcd {

// Adds the subcommand. When it runs, it sets `exit_code`: 0 if every operation is within tolerance,
// 1 if the comparison could not be made, 2 if an operation is out of tolerance.
void AddLayersCommand(CLI::App& app, int& exit_code);

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_LAYERS_COMMAND_H_
