// `orcd-inspect layers`: where two backends part, layer by layer and operation by operation.
#ifndef ORCD_TOOLS_ORCD_INSPECT_LAYERS_COMMAND_H_
#define ORCD_TOOLS_ORCD_INSPECT_LAYERS_COMMAND_H_

#include "CLI/CLI.hpp"

namespace orcd {

// Adds the subcommand; when it was run, `exit_code` says how it went: 0 where every operation is
// within tolerance, 1 where the comparison could not be made, 2 where one is not.
void AddLayersCommand(CLI::App& app, int& exit_code);

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_LAYERS_COMMAND_H_
