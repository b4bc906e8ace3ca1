// `orcd-inspect gguf`: what a GGUF file holds, also of models that cannot be run.
#ifndef ORCD_TOOLS_ORCD_INSPECT_GGUF_COMMAND_H_
#define ORCD_TOOLS_ORCD_INSPECT_GGUF_COMMAND_H_

#include <string>

#include "CLI/CLI.hpp"
#include "runtime/gguf/gguf_reader.h"

namespace orcd {

// Adds the subcommand; when it was run, `exit_code` says how it went: 0, or 1 after it said on
// stderr what is wrong with the file. Both must outlive parsing.
void AddGgufCommand(CLI::App& app, int& exit_code);

// Metadata and tensors as tables for people, with a line of totals. Long arrays and texts are cut
// short, with their size; nothing of the file reaches the terminal unescaped.
std::string DescribeGguf(const GgufReader& gguf);

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_GGUF_COMMAND_H_
