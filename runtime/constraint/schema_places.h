// The schemas of a document, and errors that say by JSON pointer where one of them stands.
#ifndef ORCD_RUNTIME_CONSTRAINT_SCHEMA_PLACES_H_
#define ORCD_RUNTIME_CONSTRAINT_SCHEMA_PLACES_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "runtime/constraint/ordered_json.h"

namespace orcd {

// A schema, by the step from the schema around it. Pointers are spelled only for errors: names may
// be long.
struct SchemaPlace {
  const OrderedJson* schema = nullptr;
  // Index among all places; -1 for the outermost schema and for one that only a reference leads to.
  int parent = -1;
  // The keyword that holds the schema; without a parent, the pointer that a reference has.
  std::string_view keyword = {};
  std::optional<std::string_view> name = std::nullopt;
  std::optional<size_t> index = std::nullopt;
};

class SchemaPlaces {
 public:
  // `field` must outlive this.
  explicit SchemaPlaces(const std::string& field) : field_(field) {}

  // Does nothing if the schema has a place. Its document must outlive this.
  void Add(const SchemaPlace& place);

  // In the order in which they were added. Add() moves them.
  const std::vector<SchemaPlace>& all() const { return places_; }
  // -1 for a schema without a place.
  int IndexOf(const OrderedJson& schema) const;

  // The JSON pointer to a schema's keyword, or to the schema if `keyword` is empty. Takes linear
  // time in its length.
  std::string PointerTo(const SchemaPlace& place, std::string_view keyword) const;

  // The errors of rule_error.h for the field; their messages are the pointer and `what`.
  absl::Status Invalid(const SchemaPlace& place, std::string_view keyword,
                       std::string_view what) const;
  absl::Status Unsupported(const SchemaPlace& place, std::string_view keyword,
                           std::string_view what) const;
  absl::Status TooLarge(const SchemaPlace& place, std::string_view keyword,
                        std::string_view what) const;

 private:
  std::string At(const SchemaPlace& place, std::string_view keyword, std::string_view what) const;

  const std::string& field_;
  std::vector<SchemaPlace> places_;
  absl::flat_hash_map<const OrderedJson*, int> indexes_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_SCHEMA_PLACES_H_
