#include "runtime/constraint/schema_keywords.h"

#include <algorithm>
#include <iterator>

namespace orcd {
namespace {

constexpr SchemaKeyword kKeywords[] = {
    {"$defs", SchemaRole::kSchemaMap},
    {"$dynamicAnchor", SchemaRole::kUnsupported},
    {"$dynamicRef", SchemaRole::kUnsupported},
    {"$id", SchemaRole::kId},
    {"$recursiveAnchor", SchemaRole::kUnsupported},
    {"$recursiveRef", SchemaRole::kUnsupported},
    {"$ref", SchemaRole::kReference},
    {"$schema", SchemaRole::kDialect},
    {"additionalItems", SchemaRole::kAdditionalItems},
    {"additionalProperties", SchemaRole::kSchema},
    {"allOf", SchemaRole::kSchemaList},
    {"anyOf", SchemaRole::kSchemaList},
    {"const", SchemaRole::kConst},
    {"contains", SchemaRole::kUnsupported},
    {"definitions", SchemaRole::kSchemaMap},
    {"dependencies", SchemaRole::kUnsupported},
    {"dependentRequired", SchemaRole::kUnsupported},
    {"dependentSchemas", SchemaRole::kUnsupported},
    {"else", SchemaRole::kUnsupported},
    {"enum", SchemaRole::kEnum},
    {"exclusiveMaximum", SchemaRole::kNumber},
    {"exclusiveMinimum", SchemaRole::kNumber},
    {"format", SchemaRole::kFormat},
    {"id", SchemaRole::kLegacyId},
    {"if", SchemaRole::kUnsupported},
    {"items", SchemaRole::kItems},
    {"maxContains", SchemaRole::kUnsupported},
    {"maxItems", SchemaRole::kCount},
    {"maxLength", SchemaRole::kCount},
    {"maxProperties", SchemaRole::kCount},
    {"maximum", SchemaRole::kNumber},
    {"minContains", SchemaRole::kUnsupported},
    {"minItems", SchemaRole::kCount},
    {"minLength", SchemaRole::kCount},
    {"minProperties", SchemaRole::kCount},
    {"minimum", SchemaRole::kNumber},
    {"multipleOf", SchemaRole::kMultipleOf},
    {"not", SchemaRole::kUnsupported},
    {"oneOf", SchemaRole::kSchemaList},
    {"pattern", SchemaRole::kPattern},
    {"patternProperties", SchemaRole::kPatternMap},
    {"prefixItems", SchemaRole::kSchemaList},
    {"properties", SchemaRole::kSchemaMap},
    {"propertyNames", SchemaRole::kUnsupported},
    {"required", SchemaRole::kRequired},
    {"then", SchemaRole::kUnsupported},
    {"type", SchemaRole::kType},
    {"unevaluatedItems", SchemaRole::kUnsupported},
    {"unevaluatedProperties", SchemaRole::kUnsupported},
    {"uniqueItems", SchemaRole::kUnsupported},
};

}  // namespace

const SchemaKeyword* FindSchemaKeyword(std::string_view name) {
  const auto* found = std::ranges::find(kKeywords, name, &SchemaKeyword::name);
  return found == std::end(kKeywords) ? nullptr : found;
}

bool AllowsType(const OrderedJson& schema, std::string_view name) {
  const OrderedJson* type = FindMember(schema, "type");
  if (!type) return true;
  if (!type->is_array()) return *type == name;
  return std::find(type->begin(), type->end(), name) != type->end();
}

}  // namespace orcd
