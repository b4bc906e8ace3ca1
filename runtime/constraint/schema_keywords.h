// The keywords of JSON Schema and the roles of their values.
#ifndef ORCD_RUNTIME_CONSTRAINT_SCHEMA_KEYWORDS_H_
#define ORCD_RUNTIME_CONSTRAINT_SCHEMA_KEYWORDS_H_

#include <string_view>

#include "runtime/constraint/ordered_json.h"

namespace orcd {

enum class SchemaRole {
  kSchema,
  kSchemaList,
  // Schemas by name.
  kSchemaMap,
  // Schemas by pattern.
  kPatternMap,
  // A schema, or in old drafts a list.
  kItems,
  kAdditionalItems,
  kReference,
  kId,
  // Draft 4's `id`.
  kLegacyId,
  kDialect,
  kType,
  kConst,
  kEnum,
  // Whole numbers.
  kCount,
  kNumber,
  kMultipleOf,
  kPattern,
  kFormat,
  // Its value needs no check.
  kRequired,
  kUnsupported,
};

struct SchemaKeyword {
  std::string_view name;
  SchemaRole role;
};

// Null for keywords that annotate, and those that no draft knows.
const SchemaKeyword* FindSchemaKeyword(std::string_view name);

// True if the keyword `type` of a schema allows a type by its name, or is not there.
bool AllowsType(const OrderedJson& schema, std::string_view name);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_SCHEMA_KEYWORDS_H_
