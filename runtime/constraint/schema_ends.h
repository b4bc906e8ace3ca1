// Recursion in JSON Schemas: those that no finite document can fulfil.
#ifndef ORCD_RUNTIME_CONSTRAINT_SCHEMA_ENDS_H_
#define ORCD_RUNTIME_CONSTRAINT_SCHEMA_ENDS_H_

#include "runtime/constraint/schema_changes.h"
#include "runtime/constraint/schema_places.h"
#include "runtime/constraint/schema_references.h"

namespace orcd {

// Writes `false` for schemas that no finite document fulfils, and leaves out arrays and objects
// if they alone are endless: an output that began one would go on for ever. Returns false if no
// document fulfils the outermost schema, the first of `places`. `references_stand_alone` says that
// the keywords beside `$ref` have no effect.
//
// Takes time that is nearly linear in the schemas' size. A schema counts as finite unless that is
// known to be false: patterns of names are not matched; what a schema demands together with one of
// `anyOf` or `oneOf` is compared by the kinds of documents alone, and so is what more than 64
// schemas that `allOf` and `$ref` join demand, or very long ones. Requires that the values of
// keywords are valid.
bool DropEndlessSchemas(const SchemaPlaces& places, const SchemaReferences& references,
                        bool references_stand_alone, SchemaChanges& changes);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_SCHEMA_ENDS_H_
