#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "tools/orcdctl/command_line.h"
#include "tools/orcdctl/commands.h"
#include "tools/orcdctl/exit_codes.h"
#include "tools/orcdctl/session.h"

namespace orcd::ctl {
namespace {

int Run(const std::vector<std::string>& args) {
  const CommandLineResult result = ParseCommandLine(args);
  if (!result.command_line) {
    (result.exit_code == kExitOk ? std::cout : std::cerr) << result.output;
    return result.exit_code;
  }

  // Between calls there is nothing to clean up.
  Interrupt interrupt([] { std::_Exit(kExitInterrupted); });
  const InterruptSignals signals(interrupt);
  Console console{
      .in = std::cin,
      .out = std::cout,
      .err = std::cerr,
      .in_is_terminal = isatty(STDIN_FILENO) == 1,
      .out_is_terminal = isatty(STDOUT_FILENO) == 1,
      .err_is_terminal = isatty(STDERR_FILENO) == 1,
  };
  const CommandLine& line = *result.command_line;
  const absl::StatusOr<Credentials> credentials = ReadCredentials(line.credentials);
  if (!credentials.ok()) {
    std::cerr << "orcdctl: " << credentials.status().message() << "\n";
    return kExitUsage;
  }
  Session session = NewSession(line.address, *credentials, console, interrupt);
  session.json = line.json;
  session.timeout = line.timeout;
  const int exit_code = RunCommand(session, line.command);
  if (!std::cout.flush()) {
    std::cerr << "orcdctl: not all of the output could be written\n";
    return exit_code == kExitOk ? kExitFailed : exit_code;
  }
  return exit_code;
}

}  // namespace
}  // namespace orcd::ctl

int main(int argc, char** argv) {
  return orcd::ctl::Run(std::vector<std::string>(argv + 1, argv + argc));
}
