#include "runtime/constraint/schema_ends.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "runtime/constraint/conditions.h"
#include "runtime/constraint/schema_numbers.h"

namespace orcd {
namespace {

using Json = OrderedJson;

// Schemas of one document that are looked at together.
constexpr size_t kMostTogether = 64;

// Kinds of documents.
enum DocumentKind { kScalar, kArray, kObject };
constexpr int kKinds = 3;

DocumentKind KindOfType(const Json& type) {
  if (type == "array") return kArray;
  return type == "object" ? kObject : kScalar;
}
DocumentKind KindOfValue(const Json& value) {
  if (value.is_array()) return kArray;
  return value.is_object() ? kObject : kScalar;
}

class Finder {
 public:
  Finder(std::span<const Json* const> schemas, const SchemaLinks& links)
      : schemas_(schemas), links_(links) {}

  std::vector<SchemaEnds> Find() {
    never_ = conditions_.AddAny();
    for (size_t i = 0; i < schemas_.size(); ++i) {
      const int any = conditions_.AddAny();
      if (i == 0) first_ = any;
      for (int kind = 0; kind < kKinds; ++kind) {
        conditions_.OfferToAny(any, conditions_.AddAll());
      }
    }
    std::vector<Bounds> bounds(schemas_.size());
    for (size_t i = 0; i < schemas_.size(); ++i) bounds[i] = AddSchema(static_cast<int>(i));
    conditions_.Solve();
    std::vector<SchemaEnds> ends(schemas_.size());
    for (size_t i = 0; i < schemas_.size(); ++i) {
      ends[i] = {.any = conditions_.Holds(Any(static_cast<int>(i))),
                 .arrays = bounds[i].arrays < 0 || conditions_.Holds(bounds[i].arrays),
                 .objects = bounds[i].objects < 0 || conditions_.Holds(bounds[i].objects)};
    }
    return ends;
  }

 private:
  // The conditions that a schema's own parts set for arrays and for objects; -1 for none.
  struct Bounds {
    int arrays = -1;
    int objects = -1;
  };

  // Holds if the schema has a finite document; of that kind.
  int Any(int schema) const { return first_ + schema * (kKinds + 1); }
  int Of(int schema, int kind) const { return Any(schema) + 1 + kind; }

  Bounds AddSchema(int index) {
    const Json& schema = *schemas_[index];
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) Forbid(index, {});
      return {};
    }
    const Json* reference = FindMember(schema, "$ref");
    if (reference != nullptr) {
      const Json* target = links_.target_of(reference->get_ref<const std::string&>());
      if (target != nullptr) RequireAlso(index, *target);
      if (links_.references_stand_alone) return {};
    }
    LimitKinds(index, schema);
    AddCombinations(index, schema);
    Bounds bounds;
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

  // The schema and those that its documents must fulfil, too.
  std::vector<const Json*> Together(const Json& schema) const {
    std::vector<const Json*> seen = {&schema};
    const auto add = [&](const Json* other) {
      if (other == nullptr || !other->is_object() || seen.size() == kMostTogether) return;
      if (std::ranges::find(seen, other) == seen.end()) seen.push_back(other);
    };
    std::vector<const Json*> together;
    for (size_t i = 0; i < seen.size(); ++i) {
      const Json& next = *seen[i];
      if (const Json* reference = FindMember(next, "$ref")) {
        add(links_.target_of(reference->get_ref<const std::string&>()));
        if (links_.references_stand_alone) continue;
      }
      together.push_back(&next);
      if (const Json* all = FindMember(next, "allOf")) {
        for (const Json& option : *all) add(&option);
      }
    }
    return together;
  }

  static bool AnyHas(std::span<const Json* const> schemas,
                     std::initializer_list<const char*> keywords) {
    return std::ranges::any_of(schemas, [&](const Json* schema) {
      return std::ranges::any_of(
          keywords, [&](const char* keyword) { return FindMember(*schema, keyword) != nullptr; });
    });
  }

  static bool AllowsKind(const Json& schema, DocumentKind kind) {
    const Json* type = FindMember(schema, "type");
    if (!type) return true;
    if (!type->is_array()) return KindOfType(*type) == kind;
    return std::any_of(type->begin(), type->end(),
                       [&](const Json& name) { return KindOfType(name) == kind; });
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
    const int target = links_.index_of(other);
    if (target < 0) return;
    for (int kind = 0; kind < kKinds; ++kind) {
      conditions_.RequireForAll(Of(index, kind), Of(target, kind));
    }
  }

  void AddCombinations(int index, const Json& schema) {
    if (const Json* all = FindMember(schema, "allOf")) {
      for (const Json& option : *all) RequireAlso(index, option);
    }
    for (const char* const name : {"anyOf", "oneOf"}) {
      const Json* options = FindMember(schema, name);
      if (!options) continue;
      for (int kind = 0; kind < kKinds; ++kind) {
        const int one = conditions_.AddAny();
        for (const Json& option : *options) {
          const int target = links_.index_of(option);
          if (target >= 0) conditions_.OfferToAny(one, Of(target, kind));
        }
        conditions_.RequireForAll(Of(index, kind), one);
      }
    }
  }

  void RequirePart(int all, const Json& part) {
    const int index = links_.index_of(part);
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
    for (const Json* schema : together) RequireProperties(all, *schema, together);
    return all;
  }

  // Requires for `all` what `schema` says of the properties that `together` require.
  void RequireProperties(int all, const Json& schema, std::span<const Json* const> together) {
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
    const Json* least = FindMember(schema, "minProperties");
    if (least == nullptr || additional == nullptr || WholeNumberOf(*least).value_or(0) == 0) return;
    const int one = conditions_.AddAny();
    const auto offer = [&](const Json& part) {
      const int index = links_.index_of(part);
      conditions_.OfferToAny(one, index < 0 ? conditions_.AddAll() : Any(index));
    };
    offer(*additional);
    for (const auto& [name, property] : declared) offer(*property);
    if (patterns != nullptr) {
      for (const Json& property : *patterns) offer(property);
    }
    conditions_.RequireForAll(all, one);
  }

  const std::span<const Json* const> schemas_;
  const SchemaLinks& links_;
  Conditions conditions_;
  int never_ = 0;
  // The first schema's Any().
  int first_ = 0;
};

}  // namespace

std::vector<SchemaEnds> FindSchemaEnds(std::span<const OrderedJson* const> schemas,
                                       const SchemaLinks& links) {
  return Finder(schemas, links).Find();
}

}  // namespace orcd
