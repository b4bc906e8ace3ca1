// The references of a JSON Schema, values of `$ref`, and the schemas that they point to.
#ifndef ORCD_RUNTIME_CONSTRAINT_SCHEMA_REFERENCES_H_
#define ORCD_RUNTIME_CONSTRAINT_SCHEMA_REFERENCES_H_

#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "runtime/constraint/ordered_json.h"
#include "runtime/constraint/schema_places.h"

namespace orcd {

// True if a schema's name, a string, is an anchor. Other names change what local references within
// the schema mean.
bool IsAnchor(const OrderedJson& id);

class SchemaReferences {
 public:
  // `id_keyword` is the keyword that names a schema in the document's dialect. Both arguments must
  // outlive this.
  SchemaReferences(const OrderedJson& document, std::string_view id_keyword)
      : root_(document), id_keyword_(id_keyword) {}

  // Checks a schema's value of `$ref`, and adds the place that it points to unless it is an anchor.
  // Takes linear time in the reference's length and the schema's depth, besides linear time in the
  // document for all calls together. Errors say by JSON pointer where the reference stands: reason
  // CONSTRAINT_INVALID, CONSTRAINT_UNSUPPORTED or CONSTRAINT_TOO_LARGE.
  absl::Status Follow(const OrderedJson& value, const SchemaPlace& place, SchemaPlaces& places);

  // Finds the schemas that anchors name. `places` must have all schemas.
  void FindAnchors(const SchemaPlaces& places);

  bool empty() const { return targets_.empty(); }
  // Null for a reference whose schema is not known.
  const OrderedJson* TargetOf(const std::string& reference) const;

 private:
  const OrderedJson* FindIndexed(const OrderedJson& object, std::string_view name);
  const OrderedJson* Resolve(std::string_view pointer, std::string_view& obstacle);
  bool HasId(const OrderedJson& schema);

  const OrderedJson& root_;
  const std::string_view id_keyword_;
  // By reference; null for anchors that are not found.
  absl::flat_hash_map<std::string, const OrderedJson*> targets_;
  // The members of objects that have many.
  absl::flat_hash_map<const OrderedJson*, absl::flat_hash_map<std::string_view, const OrderedJson*>>
      indexes_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_SCHEMA_REFERENCES_H_
