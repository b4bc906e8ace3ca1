// Exit codes of orcdctl, for scripts.
#ifndef ORCD_TOOLS_ORCDCTL_EXIT_CODES_H_
#define ORCD_TOOLS_ORCDCTL_EXIT_CODES_H_

namespace orcd::ctl {

inline constexpr int kExitOk = 0;
// The call failed, or the answer to a yes/no question is no.
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
// No worker answers at the address.
inline constexpr int kExitUnreachable = 3;
// Ended by Ctrl-C; 128 + SIGINT, as in shells.
inline constexpr int kExitInterrupted = 130;

inline constexpr char kExitStatusHelp[] =
    "Exit status: 0 ok; 1 the call failed; 2 usage; 3 no worker answers; 130 ended by Ctrl-C.";

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_EXIT_CODES_H_
