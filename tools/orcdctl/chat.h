// A conversation with the model on the terminal.
#ifndef ORCD_TOOLS_ORCDCTL_CHAT_H_
#define ORCD_TOOLS_ORCDCTL_CHAT_H_

#include <string>

#include "orcd/v1/worker.pb.h"
#include "tools/orcdctl/session.h"

namespace orcd::ctl {

// Reads one message per line and answers each with the whole conversation as its prompt, until
// stdin ends. `request` holds everything but the prompt, `chat` the messages before the first one
// typed; `first`, unless empty, is the first message. Ctrl-C ends an answer and keeps its text so
// far. An error removes the message that it answered. Returns the exit code of the last answer that
// failed, or kExitUnreachable at once if the worker is gone.
int RunChat(Session& session, const v1::GenerateRequest& request, v1::ChatPrompt chat,
            const std::string& first, bool stats);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_CHAT_H_
