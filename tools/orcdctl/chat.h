// A conversation with the model on the terminal.
#ifndef ORCD_TOOLS_ORCDCTL_CHAT_H_
#define ORCD_TOOLS_ORCDCTL_CHAT_H_

#include <string>

#include "orcd/v1/worker.pb.h"
#include "tools/orcdctl/session.h"

namespace orcd::ctl {

// Reads a message a line and answers each with the whole conversation as its prompt, until stdin
// ends. `request` is everything but the prompt, `chat` what stands before the first message;
// `first`, unless empty, is the first message. Ctrl-C ends an answer and keeps what there is of it;
// an error takes back the message it answered. Returns the exit code: that of the last answer that
// failed, or kExitUnreachable at once where the worker is gone.
int RunChat(Session& session, const v1::GenerateRequest& request, v1::ChatPrompt chat,
            const std::string& first, bool stats);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_CHAT_H_
