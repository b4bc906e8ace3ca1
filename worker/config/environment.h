// Settings from environment variables: ORCD_MAX_SEQS stands for --max-seqs.
#ifndef ORCD_WORKER_CONFIG_ENVIRONMENT_H_
#define ORCD_WORKER_CONFIG_ENVIRONMENT_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace orcd {

// Variables by name.
using Environment = std::map<std::string, std::string, std::less<>>;

// The environment of the process, from main's `environ`.
Environment ReadEnvironment(char** variables);

// Returns the variable that stands for a flag's name (without its dashes).
std::string VariableOf(std::string_view name);

// Returns a line for each variable that begins with ORCD_ and names neither one of `names` (flags
// without their dashes) nor a setting of the tools that come with the worker. The line proposes the
// nearest variable, if one is near.
std::vector<std::string> UnknownVariables(const Environment& environment,
                                          const std::vector<std::string>& names);

// Returns the one of `names` that `name` was probably meant to be; empty if none is near.
std::string NearestName(std::string_view name, const std::vector<std::string>& names);

}  // namespace orcd

#endif  // ORCD_WORKER_CONFIG_ENVIRONMENT_H_
