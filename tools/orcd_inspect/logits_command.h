// `orcd-inspect logits`: writes a model's logits after each of the given tokens as a NumPy array.
#ifndef ORCD_TOOLS_ORCD_INSPECT_LOGITS_COMMAND_H_
#define ORCD_TOOLS_ORCD_INSPECT_LOGITS_COMMAND_H_

#include "CLI/CLI.hpp"

namespace orcd {

// Adds the subcommand. When it runs, it sets `exit_code`. Both arguments must outlive parsing.
void AddLogitsCommand(CLI::App& app, int& exit_code);

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_LOGITS_COMMAND_H_
