// The identity of a rule.
#ifndef ORCD_RUNTIME_CONSTRAINT_SPEC_KEY_H_
#define ORCD_RUNTIME_CONSTRAINT_SPEC_KEY_H_

#include <cstddef>
#include <string>

#include "runtime/constraint/constraint_spec.h"

namespace orcd {

// Two specs that compile to the same have the same key, others another: it holds all of their
// texts, and the field, which errors name. The token of a StartAfterToken is left out, since the
// rule itself is the same.
std::string KeyOf(const ConstraintSpec& spec);

// Bytes of the texts in `spec`.
size_t TextBytes(const ConstraintSpec& spec);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_SPEC_KEY_H_
