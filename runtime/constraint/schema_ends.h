// Recursion in JSON Schemas: which of them no finite document can fulfil.
#ifndef ORCD_RUNTIME_CONSTRAINT_SCHEMA_ENDS_H_
#define ORCD_RUNTIME_CONSTRAINT_SCHEMA_ENDS_H_

#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "runtime/constraint/ordered_json.h"

namespace orcd {

// If a schema has finite documents, of those that its other keywords allow.
struct SchemaEnds {
  bool any = true;
  // False if arrays, or objects, are among what the schema allows by its types, but recursion makes
  // each of them endless.
  bool arrays = true;
  bool objects = true;
};

struct SchemaLinks {
  // The index of a schema among all of them; -1 for one that is not.
  absl::FunctionRef<int(const OrderedJson& schema)> index_of;
  // The schema that a value of `$ref` points to; null if it is not known.
  absl::FunctionRef<const OrderedJson*(const std::string& reference)> target_of;
  // True if the keywords beside `$ref` have no effect.
  bool references_stand_alone = false;
};

// For each of `schemas`, in time that is nearly linear in their size. A schema counts as finite
// unless that is known to be false: patterns of names are not matched, and what a schema demands
// together with one of `anyOf` or `oneOf` is compared by the kinds of documents alone. Requires
// that the values of keywords are valid.
std::vector<SchemaEnds> FindSchemaEnds(std::span<const OrderedJson* const> schemas,
                                       const SchemaLinks& links);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_SCHEMA_ENDS_H_
