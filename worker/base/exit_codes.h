// Exit statuses of worker-orcd.
#ifndef ORCD_WORKER_BASE_EXIT_CODES_H_
#define ORCD_WORKER_BASE_EXIT_CODES_H_

#include <string_view>

namespace orcd {

enum class ExitCode : int {
  // Drained after SIGTERM, SIGINT or SIGHUP; or --help, --version.
  kOk = 0,
  // A flag, variable or config file is wrong; the message says which. Starting again will not help.
  kBadConfig = 2,
  // The worker cannot listen on the address.
  kCannotListen = 3,
  // The model that --model names could not be loaded.
  kModelNotLoaded = 4,
  // --backend cuda is set, and the GPU that --gpu names cannot be used.
  kNoGpu = 5,
  // The model or its device cannot be trusted any more (a sticky device error, non-finite numbers).
  // A new process may succeed.
  kFault = 70,
  // A second signal came before the drain was over: running requests were lost.
  kForced = 71,
  // The engine made no progress for longer than --watchdog allows: its device hangs. A new process
  // may succeed.
  kStalled = 72,
  // The system gave the process no memory or no thread: RLIMIT_AS, RLIMIT_NPROC, pids.max or
  // memory.max are too small. A new process may succeed if other processes held the missing
  // resources.
  kNoResources = 73,
};

inline constexpr std::string_view kExitCodesHelp =
    "Exit status: 0 drained after SIGTERM, SIGINT or SIGHUP; 2 bad configuration;\n"
    "3 cannot listen; 4 the model of --model could not be loaded;\n"
    "5 no GPU for --backend cuda, or one that cannot be used;\n"
    "70 fault of the model or its device; 71 ended at once by a second signal;\n"
    "72 the engine hung for longer than --watchdog;\n"
    "73 the system gave it no memory or no thread.";

}  // namespace orcd

#endif  // ORCD_WORKER_BASE_EXIT_CODES_H_
