#include "tools/orcdctl/commands.h"

#include <type_traits>

namespace orcd::ctl {

int RunCommand(Session& session, const Command& command) {
  return std::visit(
      [&](const auto& options) {
        using Options = std::decay_t<decltype(options)>;
        if constexpr (std::is_same_v<Options, HealthOptions>) {
          return RunHealth(session, options);
        } else if constexpr (std::is_same_v<Options, LoadOptions>) {
          return RunLoad(session, options);
        } else if constexpr (std::is_same_v<Options, UnloadOptions>) {
          return RunUnload(session, options);
        } else if constexpr (std::is_same_v<Options, GenerateOptions>) {
          return RunGenerate(session, options);
        } else if constexpr (std::is_same_v<Options, TokenizeOptions>) {
          return RunTokenize(session, options);
        } else if constexpr (std::is_same_v<Options, CancelOptions>) {
          return RunCancel(session, options);
        } else {
          return RunDrain(session, options);
        }
      },
      command);
}

}  // namespace orcd::ctl
