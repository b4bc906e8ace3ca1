// Streams the answer of one generation.
#ifndef ORCD_TOOLS_ORCDCTL_ANSWER_H_
#define ORCD_TOOLS_ORCDCTL_ANSWER_H_

#include <string>

#include "orcd/v1/worker.pb.h"
#include "tools/orcdctl/session.h"

namespace orcd::ctl {

struct Answer {
  int exit_code = 0;
  // The text so far, also if the call was interrupted or failed.
  std::string text;
};

// Generates and prints each delta as it arrives; `stats` adds a summary on stderr. Ctrl-C cancels
// the call: kExitInterrupted.
Answer StreamAnswer(Session& session, const v1::GenerateRequest& request, bool stats);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_ANSWER_H_
