// The flags of `orcdctl generate` that give the answer a form.
#ifndef ORCD_TOOLS_ORCDCTL_CONSTRAINT_OPTIONS_H_
#define ORCD_TOOLS_ORCDCTL_CONSTRAINT_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "orcd/v1/worker.pb.h"

namespace orcd::ctl {

// Values as given; the worker checks the rule.
struct ConstraintOptions {
  // JSON if it begins as an object does or is a boolean, otherwise the path of a file.
  std::string json_schema = {};
  bool json_object = false;
  std::string regex = {};
  std::string lark_file = {};
  std::string ebnf_file = {};
  std::vector<std::string> choices = {};
  std::string structural_tags_file = {};
  std::string after = {};
  std::optional<uint32_t> after_token = {};
};

// Reads the files. Unset if the options name no rule. Fails with kInvalidArgument if they name two
// or only where one starts, and with kNotFound for a file that cannot be read.
absl::StatusOr<std::optional<v1::Constraint>> NewConstraint(const ConstraintOptions& options);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_CONSTRAINT_OPTIONS_H_
