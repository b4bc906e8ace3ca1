// `orcd-inspect tokenize`: token ids of texts, without a server.
#ifndef ORCD_TOOLS_ORCD_INSPECT_TOKENIZE_COMMAND_H_
#define ORCD_TOOLS_ORCD_INSPECT_TOKENIZE_COMMAND_H_

#include <iosfwd>
#include <string_view>

#include "CLI/CLI.hpp"
#include "runtime/text/tokenizer.h"

namespace orcd {

// Adds the command to `app`. It runs while the command line is parsed and sets `exit_code`: 0, or 1
// after a message on stderr. `exit_code` must live as long as `app`.
void AddTokenizeCommand(CLI::App& app, int& exit_code);

struct TokenLineOptions {
  // True if control tokens are recognised.
  bool parse_special = false;
  // True if BOS and EOS are left out.
  bool text_alone = false;
};

// Writes one line per text in `input`: its ids, each after a space. `separator`, not empty, stands
// between texts; nothing after the last separator is no text.
void WriteTokenLines(const Tokenizer& tokenizer, const TokenLineOptions& options,
                     std::string_view separator, std::string_view input, std::ostream& output);

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_TOKENIZE_COMMAND_H_
