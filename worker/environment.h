// The environment as settings: --max-seqs is ORCD_MAX_SEQS.
#ifndef ORCD_WORKER_ENVIRONMENT_H_
#define ORCD_WORKER_ENVIRONMENT_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace orcd {

// Variables by their names.
using Environment = std::map<std::string, std::string, std::less<>>;

// The process's, from main's `environ`.
Environment ReadEnvironment(char** variables);

// The variable that stands for a flag's name (without its dashes).
std::string VariableOf(std::string_view name);

// A line for each variable that begins with ORCD_ and names neither one of `names` (flags without
// their dashes) nor a setting of the tools that come with the worker; with the nearest variable
// where one is near.
std::vector<std::string> UnknownVariables(const Environment& environment,
                                          const std::vector<std::string>& names);

// The one of `names` that `name` was probably meant to be; empty where none is near.
std::string NearestName(std::string_view name, const std::vector<std::string>& names);

}  // namespace orcd

#endif  // ORCD_WORKER_ENVIRONMENT_H_
