// Structural tags as rules of the constraint library.
#ifndef ORCD_RUNTIME_CONSTRAINT_TAG_RULES_H_
#define ORCD_RUNTIME_CONSTRAINT_TAG_RULES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/constraint/constraint_spec.h"
#include "runtime/constraint/lark_text.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// Checks tags and triggers but not the schemas. Errors name `field`: CONSTRAINT_INVALID or
// CONSTRAINT_TOO_LARGE.
absl::Status CheckTags(const StructuralTagRule& rule, const std::string& field);

// The rules of tags that CheckTags accepts; the expression is a rule's name. Uses kAnyText without
// defining it. A trigger that begins with a control token is that token: it does not occur
// otherwise. Error CONSTRAINT_UNSUPPORTED if a trigger has a control token elsewhere, or ends
// within one.
absl::StatusOr<LarkPart> TagRules(const StructuralTagRule& rule, const std::string& field,
                                  const Tokenizer& tokenizer);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_TAG_RULES_H_
