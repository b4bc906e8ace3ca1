// Changes to a JSON Schema, with which the constraint library compiles it exactly.
#ifndef ORCD_RUNTIME_CONSTRAINT_SCHEMA_CHANGES_H_
#define ORCD_RUNTIME_CONSTRAINT_SCHEMA_CHANGES_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "runtime/constraint/ordered_json.h"

namespace orcd {

// A change to the member or the element that a value is.
struct SchemaChange {
  // The member is left out.
  bool drop = false;
  // A member in JSON that comes before this one.
  std::optional<std::string> before = std::nullopt;
  // JSON in place of the member's name and colon, or of the value.
  std::optional<std::string> name = std::nullopt;
  std::optional<std::string> value = std::nullopt;
  // JSON in place of the whole member.
  std::optional<std::string> member = std::nullopt;
};

// Refers to values by their addresses: the document must outlive this.
class SchemaChanges {
 public:
  // The change to a value, at first none. Valid until the next call.
  SchemaChange& operator[](const OrderedJson& value) { return changes_[&value]; }

  // Puts the applicators of a schema last if keywords behind them depend on keywords before them:
  // the library compiles keywords before and after an applicator apart.
  void OrderKeywords(const OrderedJson& schema);

  // The document with its changes, on one line, in linear time. `members` come last in the
  // outermost schema: the library takes its options out and puts the last member in their place,
  // and the order of members decides the order of properties.
  std::string Write(const OrderedJson& document, std::string_view members) const;

 private:
  const SchemaChange* Find(const OrderedJson& value) const;
  void Write(const OrderedJson& value, std::string_view members, std::string& out) const;
  void WriteMember(const std::string& name, const OrderedJson& value, bool& is_first,
                   std::string& out) const;
  void WriteValue(const OrderedJson& value, std::string& out) const;

  absl::flat_hash_map<const OrderedJson*, SchemaChange> changes_;
  absl::flat_hash_set<const OrderedJson*> applicators_last_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_SCHEMA_CHANGES_H_
