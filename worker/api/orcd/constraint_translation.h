// Reads orcd.v1's Constraint.
#ifndef ORCD_WORKER_API_ORCD_CONSTRAINT_TRANSLATION_H_
#define ORCD_WORKER_API_ORCD_CONSTRAINT_TRANSLATION_H_

#include "absl/status/statusor.h"
#include "orcd/v1/worker.pb.h"
#include "runtime/constraint/constraint_spec.h"

namespace orcd {

// The texts are moved. Fails with kInvalidArgument naming the field if the message names no rule;
// ConstraintCompiler checks the rule itself.
absl::StatusOr<ConstraintSpec> TranslateConstraint(v1::Constraint& constraint);

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_CONSTRAINT_TRANSLATION_H_
