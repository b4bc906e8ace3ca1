// orcd-inspect: examines model files and their numerics without a server.
#include <iostream>

#include "CLI/CLI.hpp"
#include "tools/orcd_inspect/check_command.h"
#include "tools/orcd_inspect/gguf_command.h"
#include "tools/orcd_inspect/layers_command.h"
#include "tools/orcd_inspect/logits_command.h"
#include "tools/orcd_inspect/template_command.h"
#include "tools/orcd_inspect/tokenize_command.h"

int main(int argc, char** argv) {
  CLI::App app("Looks into model files and their numerics, without a server.", "orcd-inspect");
  app.require_subcommand(1);
  int exit_code = 0;
  orcd::AddGgufCommand(app, exit_code);
  orcd::AddCheckCommand(app, exit_code);
  orcd::AddTokenizeCommand(app, exit_code);
  orcd::AddTemplateCommand(app, exit_code);
  orcd::AddLogitsCommand(app, exit_code);
  orcd::AddLayersCommand(app, exit_code);
  CLI11_PARSE(app, argc, argv);
  if (!std::cout.flush()) {
    std::cerr << "orcd-inspect: not all of the output could be written\n";
    return exit_code == 0 ? 1 : exit_code;
  }
  return exit_code;
}
