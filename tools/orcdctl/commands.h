// The commands. Each makes its calls, prints the answers, and returns the exit code.
#ifndef ORCD_TOOLS_ORCDCTL_COMMANDS_H_
#define ORCD_TOOLS_ORCDCTL_COMMANDS_H_

#include "tools/orcdctl/command_line.h"
#include "tools/orcdctl/session.h"

namespace orcd::ctl {

int RunHealth(Session& session, const HealthOptions& options);
int RunLoad(Session& session, const LoadOptions& options);
int RunUnload(Session& session, const UnloadOptions& options);
// Generates for one prompt, or chats with --interactive.
int RunGenerate(Session& session, const GenerateOptions& options);
int RunTokenize(Session& session, const TokenizeOptions& options);
int RunCancel(Session& session, const CancelOptions& options);
int RunDrain(Session& session, const DrainOptions& options);

int RunCommand(Session& session, const Command& command);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_COMMANDS_H_
