// The bounds of numbers in JSON Schemas: `minimum`, `exclusiveMinimum` and their opposites.
#ifndef ORCD_RUNTIME_CONSTRAINT_SCHEMA_BOUNDS_H_
#define ORCD_RUNTIME_CONSTRAINT_SCHEMA_BOUNDS_H_

#include "absl/status/status.h"
#include "runtime/constraint/schema_changes.h"
#include "runtime/constraint/schema_places.h"

namespace orcd {

// Leaves one bound on each side, the narrower; where draft 4's exclusiveMinimum is true, minimum
// is exclusive. Moves exclusive bounds a little inwards where the library would take them as
// inclusive ones: fewer documents, never a wrong one. `is_combined` says that bounds of several
// schemas may apply to one value. An exclusive bound that is too near to the opposite one is an
// error of reason CONSTRAINT_UNSUPPORTED. Takes n log n of time for n members.
absl::Status ChangeBounds(const SchemaPlaces& places, bool is_combined, SchemaChanges& changes);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_SCHEMA_BOUNDS_H_
