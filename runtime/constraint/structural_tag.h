// The structural tags of vLLM's clients, which are JSON.
#ifndef ORCD_RUNTIME_CONSTRAINT_STRUCTURAL_TAG_H_
#define ORCD_RUNTIME_CONSTRAINT_STRUCTURAL_TAG_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/constraint/constraint_spec.h"

namespace orcd {

// Reads the value of vLLM's `structural_tag` in either form: {"structures": [{"begin", "schema",
// "end"} …], "triggers": […]}, or {"type": "structural_tag", "format": …} where the format is
// `triggered_tags` or `tag` with JSON schemas as content. Takes time linear in the text, which may be
// hostile. Returns kInvalidArgument for the request's `field`: reason CONSTRAINT_INVALID, or
// CONSTRAINT_UNSUPPORTED naming the format that has no counterpart.
absl::StatusOr<StructuralTagRule> ParseStructuralTag(std::string_view json,
                                                     const std::string& field);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_STRUCTURAL_TAG_H_
