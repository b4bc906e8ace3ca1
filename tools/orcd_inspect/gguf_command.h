// `orcd-inspect gguf`: shows the contents of a GGUF file, also of models that cannot be run.
#ifndef ORCD_TOOLS_ORCD_INSPECT_GGUF_COMMAND_H_
#define ORCD_TOOLS_ORCD_INSPECT_GGUF_COMMAND_H_

#include <string>

#include "CLI/CLI.hpp"
#include "runtime/gguf/gguf_reader.h"

namespace orcd {

// Adds the subcommand. When it runs, it sets `exit_code`: 0, or 1 after a message on stderr about
// the fault in the file. Both arguments must outlive parsing.
void AddGgufCommand(CLI::App& app, int& exit_code);

// Metadata and tensors as tables for people, with a line of totals. Long arrays and texts are
// truncated and their size is given. Text from the file is escaped for the terminal.
std::string DescribeGguf(const GgufReader& gguf);

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_GGUF_COMMAND_H_
