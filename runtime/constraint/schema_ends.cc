#include "runtime/constraint/schema_ends.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/constraint/conditions.h"
#include "runtime/constraint/ordered_json.h"
#include "runtime/constraint/schema_keywords.h"
#include "runtime/constraint/schema_numbers.h"

namespace orcd {
namespace {

using Json = OrderedJson;

// Schemas that demand something of one document are compared if they are not more than this, and
// until so many names of properties were compared. Each schema alone always is.
constexpr size_t kMostTogether = 64;
constexpr int64_t kMostNames = 1'000'000;

// Kinds of documents.
enum DocumentKind { kScalar, kArray, kObject };
constexpr int kKinds = 3;
constexpr std::string_view kScalarTypes[] = {"boolean", "integer", "null", "number", "string"};

struct SchemaEnds {
  // False if no finite document fulfils the schema.
  bool any = true;
  // False if the schema must be kept from arrays, or objects: none of them is finite, and nothing
  // that the schema refers to says so.
  bool arrays = true;
  bool objects = true;
};

bool AllowsKind(const Json& schema, DocumentKind kind) {
  if (kind != kScalar) return AllowsType(schema, kind == kArray ? "array" : "object");
  return std::ranges::any_of(kScalarTypes,
                             [&](std::string_view type) { return AllowsType(schema, type); });
}
DocumentKind KindOfValue(const Json& value) {
  if (value.is_array()) return kArray;
  return value.is_object() ? kObject : kScalar;
}

class Finder {
 public:
  Finder(const SchemaPlaces& places, const SchemaReferences& references,
         bool references_stand_alone)
      : places_(places), references_(references), references_stand_alone_(references_stand_alone) {}

  // For each of the places.
  std::vector<SchemaEnds> Find() {
    const size_t count = places_.all().size();
    never_ = conditions_.AddAny();
    for (size_t i = 0; i < count; ++i) {
      const int any = conditions_.AddAny();
      if (i == 0) first_ = any;
      for (int kind = 0; kind < kKinds; ++kind) {
        conditions_.OfferToAny(any, conditions_.AddAll());
      }
    }
    std::vector<Bounds> bounds(count);
    for (size_t i = 0; i < count; ++i) bounds[i] = AddSchema(static_cast<int>(i));
    conditions_.Solve();
    std::vector<SchemaEnds> ends(count);
    for (size_t i = 0; i < count; ++i) {
      ends[i] = {.any = conditions_.Holds(Any(static_cast<int>(i))),
                 .arrays = MayStay(static_cast<int>(i), kArray, bounds[i].arrays),
                 .objects = MayStay(static_cast<int>(i), kObject, bounds[i].objects)};
    }
    return ends;
  }

 private:
  // The conditions that required parts set for a schema's arrays and objects; -1 for none.
  struct Bounds {
    int arrays = -1;
    int objects = -1;
  };

  // Holds if the schema has a finite document; of that kind.
  int Any(int schema) const { return first_ + schema * (kKinds + 1); }
  int Of(int schema, int kind) const { return Any(schema) + 1 + kind; }

  // A schema whose documents must fulfil one that lets no such document pass does not, either.
  bool MayStay(int index, DocumentKind kind, int bound) const {
    if (bound < 0 || conditions_.Holds(bound)) return true;
    return std::ranges::any_of(Joined(*places_.all()[index].schema), [&](const Json* other) {
      const int target = places_.IndexOf(*other);
      return target >= 0 && !conditions_.Holds(Of(target, kind));
    });
  }

  Bounds AddSchema(int index) {
    const Json& schema = *places_.all()[index].schema;
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) Forbid(index, {});
      return {};
    }
    for (const Json* other : Joined(schema)) RequireAlso(index, *other);
    if (IsOnlyReference(schema)) return {};
    LimitKinds(index, schema);
    AddChoices(index, schema);
    Bounds bounds;
    // A reference alone says no more than its target.
    if (schema.size() == 1 && FindMember(schema, "$ref")) return bounds;
    const std::vector<const Json*> together = Together(schema);
    if (AnyHas(together, {"minItems"}) && AllowsKind(schema, kArray)) {
      bounds.arrays = ItemsEnd(together);
      conditions_.RequireForAll(Of(index, kArray), bounds.arrays);
    }
    if (AnyHas(together, {"required", "minProperties"}) && AllowsKind(schema, kObject)) {
      bounds.objects = PropertiesEnd(together);
      conditions_.RequireForAll(Of(index, kObject), bounds.objects);
    }
    return bounds;
  }

  bool IsOnlyReference(const Json& schema) const {
    return references_stand_alone_ && FindMember(schema, "$ref") != nullptr;
  }

  // The schemas that `$ref` and `allOf` join to this one: its documents must fulfil them, too.
  std::vector<const Json*> Joined(const Json& schema) const {
    std::vector<const Json*> joined;
    if (const Json* reference = FindMember(schema, "$ref")) {
      const Json* target = references_.TargetOf(reference->get_ref<const std::string&>());
      if (target != nullptr) joined.push_back(target);
      if (references_stand_alone_) return joined;
    }
    if (const Json* all = FindMember(schema, "allOf")) {
      for (const Json& option : *all) joined.push_back(&option);
    }
    return joined;
  }

  // The schema and all that is joined to it, also indirectly; the schema alone if that is too much.
  std::vector<const Json*> Together(const Json& schema) {
    std::vector<const Json*> seen = {&schema};
    std::vector<const Json*> together;
    int64_t names = 0;
    for (size_t i = 0; i < seen.size(); ++i) {
      const Json& next = *seen[i];
      if (!next.is_object()) continue;
      for (const Json* other : Joined(next)) {
        if (std::ranges::find(seen, other) != seen.end()) continue;
        if (seen.size() == kMostTogether) return {&schema};
        seen.push_back(other);
      }
      if (IsOnlyReference(next)) continue;
      together.push_back(&next);
      for (const char* const keyword : {"required", "properties", "prefixItems", "items"}) {
        const Json* list = FindMember(next, keyword);
        if (list != nullptr) names += static_cast<int64_t>(list->size());
      }
    }
    if (together.size() == 1) return together;
    names_ += names * static_cast<int64_t>(together.size());
    if (names_ > kMostNames) return {&schema};
    return together;
  }

  static bool AnyHas(std::span<const Json* const> schemas,
                     std::initializer_list<const char*> keywords) {
    return std::ranges::any_of(schemas, [&](const Json* schema) {
      return std::ranges::any_of(
          keywords, [&](const char* keyword) { return FindMember(*schema, keyword) != nullptr; });
    });
  }

  // Allows no kinds but those of `allowed`.
  void Forbid(int index, const std::vector<bool>& allowed) {
    for (int kind = 0; kind < kKinds; ++kind) {
      if (allowed.empty() || !allowed[kind]) conditions_.RequireForAll(Of(index, kind), never_);
    }
  }

  void LimitKinds(int index, const Json& schema) {
    Forbid(index,
           {AllowsKind(schema, kScalar), AllowsKind(schema, kArray), AllowsKind(schema, kObject)});
    if (const Json* value = FindMember(schema, "const")) {
      std::vector<bool> allowed(kKinds, false);
      allowed[KindOfValue(*value)] = true;
      Forbid(index, allowed);
    }
    if (const Json* values = FindMember(schema, "enum")) {
      std::vector<bool> allowed(kKinds, false);
      for (const Json& value : *values) allowed[KindOfValue(value)] = true;
      Forbid(index, allowed);
    }
  }

  // A document must also fulfil `other`.
  void RequireAlso(int index, const Json& other) {
    const int target = places_.IndexOf(other);
    if (target < 0) return;
    for (int kind = 0; kind < kKinds; ++kind) {
      conditions_.RequireForAll(Of(index, kind), Of(target, kind));
    }
  }

  void AddChoices(int index, const Json& schema) {
    for (const char* const name : {"anyOf", "oneOf"}) {
      const Json* options = FindMember(schema, name);
      if (!options) continue;
      for (int kind = 0; kind < kKinds; ++kind) {
        const int one = conditions_.AddAny();
        for (const Json& option : *options) {
          const int target = places_.IndexOf(option);
          if (target >= 0) conditions_.OfferToAny(one, Of(target, kind));
        }
        conditions_.RequireForAll(Of(index, kind), one);
      }
    }
  }

  void RequirePart(int all, const Json& part) {
    const int index = places_.IndexOf(part);
    if (index >= 0) conditions_.RequireForAll(all, Any(index));
  }

  // If the items can end that an array of all the schemas must have.
  int ItemsEnd(std::span<const Json* const> together) {
    const int all = conditions_.AddAll();
    uint64_t least = 0;
    for (const Json* schema : together) {
      const Json* items = FindMember(*schema, "minItems");
      if (items != nullptr) least = std::max(least, WholeNumberOf(*items).value_or(0));
    }
    for (const Json* schema : together) {
      const Json* prefix = FindMember(*schema, "prefixItems");
      const Json* rest = FindMember(*schema, "items");
      if (!prefix && rest && rest->is_array()) {
        prefix = rest;
        rest = FindMember(*schema, "additionalItems");
      }
      const size_t listed = prefix ? prefix->size() : 0;
      for (size_t i = 0; i < std::min<uint64_t>(listed, least); ++i) RequirePart(all, (*prefix)[i]);
      if (rest != nullptr && least > listed) RequirePart(all, *rest);
    }
    return all;
  }

  // If the properties can end that an object of all the schemas must have.
  int PropertiesEnd(std::span<const Json* const> together) {
    const int all = conditions_.AddAll();
    const bool may_be_empty = std::ranges::none_of(together, [](const Json* schema) {
      const Json* least = FindMember(*schema, "minProperties");
      return least != nullptr && WholeNumberOf(*least).value_or(0) > 0;
    });
    for (const Json* schema : together) RequireProperties(all, *schema, together, may_be_empty);
    return all;
  }

  // Requires for `all` what `schema` says of the properties that `together` require.
  void RequireProperties(int all, const Json& schema, std::span<const Json* const> together,
                         bool may_be_empty) {
    const Json* additional = FindMember(schema, "additionalProperties");
    const Json* patterns = FindMember(schema, "patternProperties");
    absl::flat_hash_map<std::string_view, const Json*> declared;
    if (const Json* properties = FindMember(schema, "properties")) {
      for (const auto& [name, property] : properties->get_ref<const Json::object_t&>()) {
        declared.emplace(name, &property);
      }
    }
    for (const Json* other : together) {
      const Json* required = FindMember(*other, "required");
      if (required == nullptr || !required->is_array()) continue;
      for (const Json& name : *required) {
        if (!name.is_string()) continue;
        const auto found = declared.find(name.get_ref<const std::string&>());
        if (found != declared.end()) {
          RequirePart(all, *found->second);
        } else if (additional != nullptr && patterns == nullptr) {
          RequirePart(all, *additional);
        }
      }
    }
    if (may_be_empty || additional == nullptr) return;
    const int one = conditions_.AddAny();
    const auto offer = [&](const Json& part) {
      const int index = places_.IndexOf(part);
      conditions_.OfferToAny(one, index < 0 ? conditions_.AddAll() : Any(index));
    };
    offer(*additional);
    for (const auto& [name, property] : declared) offer(*property);
    if (patterns != nullptr) {
      for (const Json& property : *patterns) offer(property);
    }
    conditions_.RequireForAll(all, one);
  }

  const SchemaPlaces& places_;
  const SchemaReferences& references_;
  const bool references_stand_alone_;
  Conditions conditions_;
  int never_ = 0;
  // The first schema's Any().
  int first_ = 0;
  // Names that were compared for schemas together.
  int64_t names_ = 0;
};

void LeaveOutKinds(const Json& schema, const SchemaEnds& ends, SchemaChanges& changes) {
  Json types = {"array", "boolean", "null", "number", "object", "string"};
  const Json* const type = FindMember(schema, "type");
  if (type != nullptr) types = type->is_array() ? *type : Json::array({*type});
  Json left = Json::array();
  for (const Json& name : types) {
    if (!(name == "array" && !ends.arrays) && !(name == "object" && !ends.objects)) {
      left.push_back(name);
    }
  }
  if (type != nullptr) {
    changes[*type].value = left.dump();
    return;
  }
  const Json& first_member = schema.get_ref<const Json::object_t&>().front().second;
  changes[first_member].before = "\"type\":" + left.dump();
}

}  // namespace

bool DropEndlessSchemas(const SchemaPlaces& places, const SchemaReferences& references,
                        bool references_stand_alone, SchemaChanges& changes) {
  // Without references, nothing leads back to itself, and the library sees the rest.
  if (references.empty()) return true;
  const std::vector<SchemaEnds> ends = Finder(places, references, references_stand_alone).Find();
  if (!ends.front().any) return false;
  for (size_t i = 0; i < ends.size(); ++i) {
    const Json& schema = *places.all()[i].schema;
    if (!ends[i].any) {
      changes[schema].value = "false";
    } else if (!(ends[i].arrays && ends[i].objects)) {
      LeaveOutKinds(schema, ends[i], changes);
    }
  }
  return true;
}

}  // namespace orcd
