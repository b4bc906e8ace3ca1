// `orcd-inspect logits`: what a model says after each of given tokens, as a NumPy array.
#ifndef ORCD_TOOLS_ORCD_INSPECT_LOGITS_COMMAND_H_
#define ORCD_TOOLS_ORCD_INSPECT_LOGITS_COMMAND_H_

#include "CLI/CLI.hpp"

namespace orcd {

// Adds the subcommand; when it was run, `exit_code` says how it went. Both must outlive parsing.
void AddLogitsCommand(CLI::App& app, int& exit_code);

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_LOGITS_COMMAND_H_
