// The structural tags of vLLM's clients, which are JSON.
#ifndef ORCD_RUNTIME_CONSTRAINT_STRUCTURAL_TAG_H_
#define ORCD_RUNTIME_CONSTRAINT_STRUCTURAL_TAG_H_

#include <string>

#include "absl/status/statusor.h"
#include "runtime/constraint/constraint_spec.h"

namespace orcd {

// Reads the value of vLLM's `structural_tag` in either form:
//   {"structures": [{"begin": …, "schema": …, "end": …}, …], "triggers": […]}
//   {"format": {"type": "triggered_tags", "triggers": […], "tags": [{"begin": …, "content":
//    {"type": "json_schema", "json_schema": …}, "end": …}, …], "at_least_one": …,
//    "stop_after_first": …}}
// The text may be hostile; takes time linear in it. Errors name `field`: reason CONSTRAINT_INVALID,
// CONSTRAINT_TOO_LARGE, or CONSTRAINT_UNSUPPORTED with the JSON pointer of a format that has no
// counterpart. Schemas are not checked.
absl::StatusOr<StructuralTagRule> ParseStructuralTag(const std::string& json,
                                                     const std::string& field);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_STRUCTURAL_TAG_H_
