// The option --rope-scaling of commands that load a model, which means what the worker's flag does.
#ifndef ORCD_TOOLS_ORCD_INSPECT_ROPE_SCALING_H_
#define ORCD_TOOLS_ORCD_INSPECT_ROPE_SCALING_H_

#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "runtime/model/rope_override.h"

namespace orcd {

// `scaling` must outlive parsing.
inline void AddRopeScalingOption(CLI::App& command, std::optional<RopeOverride>& scaling) {
  command
      .add_option_function<std::string>(
          "--rope-scaling",
          [&scaling](const std::string& text) { scaling = ParseRopeOverride(text).value(); },
          "YaRN for a file that scales no RoPE, as the worker's flag")
      ->check([](const std::string& text) {
        return std::string(ParseRopeOverride(text).status().message());
      })
      ->type_name("SCALING");
}

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_ROPE_SCALING_H_
