#include "runtime/constraint/schema_references.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "runtime/constraint/lark_text.h"
#include "runtime/constraint/schema_keywords.h"
#include "runtime/constraint/schema_strings.h"

namespace orcd {
namespace {

bool HoldsOneSchema(std::string_view keyword, const OrderedJson& value) {
  const SchemaKeyword* known = FindSchemaKeyword(keyword);
  if (known == nullptr || value.is_array()) return false;
  return known->role == SchemaRole::kSchema || known->role == SchemaRole::kItems ||
         known->role == SchemaRole::kAdditionalItems;
}

}  // namespace

bool IsAnchor(const OrderedJson& id) {
  const std::string& text = id.get_ref<const std::string&>();
  return text.starts_with('#') && !text.starts_with("#/");
}

absl::Status SchemaReferences::Follow(const OrderedJson& value, const SchemaPlace& place,
                                      SchemaPlaces& places) {
  if (!value.is_string()) return places.Invalid(place, "$ref", "is not a string");
  const std::string& reference = value.get_ref<const std::string&>();
  if (!reference.starts_with('#')) {
    return places.Unsupported(place, "$ref", "points out of the schema");
  }
  for (const SchemaPlace* around = &place;; around = &places.all()[around->parent]) {
    if (HasId(*around->schema)) {
      return places.Unsupported(place, "$ref", "stands in a schema with a name (`$id`) of its own");
    }
    if (around->parent < 0) break;
  }
  const auto [there, is_new] = targets_.emplace(reference, nullptr);
  if (!is_new) return absl::OkStatus();
  if (targets_.size() > kMaxDefinitions) {
    return places.TooLarge(
        place, "$ref", "is one of more than " + std::to_string(kMaxDefinitions) + " references");
  }
  // The library finds anchors.
  if (reference.size() > 1 && reference[1] != '/') return absl::OkStatus();
  const std::string_view pointer = std::string_view(reference).substr(1);
  std::string_view obstacle;
  const OrderedJson* target = Resolve(pointer, obstacle);
  if (!target) return places.Invalid(place, "$ref", "points to nothing: " + reference);
  if (!obstacle.empty()) return places.Unsupported(place, "$ref", obstacle);
  there->second = target;
  places.Add({.schema = target, .keyword = pointer});
  return absl::OkStatus();
}

void SchemaReferences::FindAnchors(const SchemaPlaces& places) {
  for (const SchemaPlace& place : places.all()) {
    const OrderedJson* anchor = FindMember(*place.schema, "$anchor");
    if (anchor == nullptr || !anchor->is_string()) continue;
    const auto found = targets_.find("#" + anchor->get_ref<const std::string&>());
    if (found != targets_.end() && found->second == nullptr) found->second = place.schema;
  }
}

const OrderedJson* SchemaReferences::TargetOf(const std::string& reference) const {
  const auto found = targets_.find(reference);
  return found == targets_.end() ? nullptr : found->second;
}

// FindMember for objects of many members that many references lead through.
const OrderedJson* SchemaReferences::FindIndexed(const OrderedJson& object, std::string_view name) {
  constexpr size_t kFew = 16;
  if (!object.is_object() || object.size() <= kFew) return FindMember(object, name);
  const auto [index, is_new] = indexes_.try_emplace(&object);
  if (is_new) {
    for (const auto& [key, member] : object.get_ref<const OrderedJson::object_t&>()) {
      index->second.emplace(key, &member);
    }
  }
  const auto found = index->second.find(name);
  return found == index->second.end() ? nullptr : found->second;
}

// The value that a local pointer, without its `#`, points to; null if there is none. `obstacle`
// says why the value cannot be taken for a schema, if there is a reason.
const OrderedJson* SchemaReferences::Resolve(std::string_view pointer, std::string_view& obstacle) {
  const OrderedJson* value = &root_;
  // False below a keyword that has several schemas, where a token is a name or an index.
  bool is_keyword = true;
  while (!pointer.empty()) {
    if (HasId(*value)) obstacle = "points into a schema with a name (`$id`) of its own";
    if (pointer.front() != '/') return nullptr;
    pointer.remove_prefix(1);
    const size_t end = std::min(pointer.find('/'), pointer.size());
    const std::optional<std::string> token = DecodePointerToken(pointer.substr(0, end));
    if (!token) return nullptr;
    pointer.remove_prefix(end);
    if (value->is_array()) {
      const std::optional<size_t> index = ListIndex(*token);
      if (!index || *index >= value->size()) return nullptr;
      value = &(*value)[*index];
    } else {
      value = FindIndexed(*value, *token);
      if (!value) return nullptr;
    }
    if (is_keyword && (*token == "const" || *token == "enum")) {
      obstacle = "points into a value of `const` or `enum`, which is no schema";
    }
    is_keyword = !is_keyword || HoldsOneSchema(*token, *value);
  }
  return value;
}

// The outermost schema's name changes nothing for the references within it.
bool SchemaReferences::HasId(const OrderedJson& schema) {
  if (&schema == &root_) return false;
  const OrderedJson* id = FindIndexed(schema, id_keyword_);
  return id != nullptr && id->is_string() && !IsAnchor(*id);
}

}  // namespace orcd
