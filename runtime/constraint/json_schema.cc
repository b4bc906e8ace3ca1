#include "runtime/constraint/json_schema.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "runtime/base/error.h"
#include "runtime/constraint/ecma_pattern.h"
#include "runtime/constraint/ordered_json.h"
#include "runtime/constraint/rule_error.h"
#include "runtime/constraint/schema_bounds.h"
#include "runtime/constraint/schema_changes.h"
#include "runtime/constraint/schema_ends.h"
#include "runtime/constraint/schema_keywords.h"
#include "runtime/constraint/schema_numbers.h"
#include "runtime/constraint/schema_places.h"
#include "runtime/constraint/schema_references.h"
#include "runtime/constraint/schema_strings.h"

namespace orcd {
namespace {

using Json = OrderedJson;

constexpr std::string_view kTypes[] = {"array",  "boolean", "integer", "null",
                                       "number", "object",  "string"};
constexpr std::string_view kDefinitions[] = {"$defs", "definitions"};
constexpr std::string_view kDialects[] = {
    "http://json-schema.org/draft-04/schema",       "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-07/schema",       "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
};

// The library's own options, a member of the outermost schema.
constexpr std::string_view kLibraryOptions = "x-guidance";
// Without \u, each name of a property has one spelling: the library lets additional properties be
// named by escapes, and compares spellings with the names of declared ones.
constexpr std::string_view kOneSpelling = R"("x-guidance":{"json_allowed_escapes":"nrbtf\\\""})";

// The library intersects the patterns of a value, and those of an object's names two by two,
// without a bound: 40 patterns take 24 s and 2 GB, 400 names 7 s (2026-11-27). So many of a
// schema's patterns may meet, and so many names may be patterns.
constexpr size_t kMaxPatternsTogether = 24;
constexpr size_t kMaxPatternNames = 100;
// The library computes with signed 32-bit counts in places. No output has so many parts.
constexpr uint64_t kMaxCount = std::numeric_limits<int32_t>::max();

template <size_t kSize>
bool Contains(const std::string_view (&names)[kSize], std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

bool IsFalse(const Json& value) { return value.is_boolean() && !value.get<bool>(); }
bool AllowsAll(const Json& value) {
  return (value.is_boolean() && value.get<bool>()) || (value.is_object() && value.empty());
}

// Walks the schemas of a document: those that keywords hold, and those that references point to.
// Collects what must be changed for the library on the way.
class SchemaWalk {
 public:
  // `document` and `field` must outlive this.
  SchemaWalk(const Json& document, const std::string& field)
      : root_(document),
        field_(field),
        dialect_(DialectOf(document)),
        places_(field),
        references_(document, dialect_ == kDialects[0] ? "id" : "$id") {}

  // Requires no earlier call.
  absl::Status Run() {
    if (FindMember(root_, kLibraryOptions)) {
      return places_.Unsupported({.schema = &root_}, kLibraryOptions,
                                 "is not a keyword of JSON Schema");
    }
    places_.Add({.schema = &root_});
    for (size_t i = 0; i < places_.all().size(); ++i) ORCD_RETURN_IF_ERROR(CheckPlace(i));
    ORCD_RETURN_IF_ERROR(CheckPatterns());
    ORCD_RETURN_IF_ERROR(CheckSpellings());
    ORCD_RETURN_IF_ERROR(ChangeBounds(places_, has_combination_ || meets_, changes_));
    // The library computes the common multiple of schemas that apply to one value.
    if (has_combination_ && !HaveSmallCommonMultiple(multiples_)) {
      return RuleTooLarge(field_,
                          "the common multiple of all values of multipleOf may be at most 10,000 "
                          "without its decimal point where schemas are combined");
    }
    references_.FindAnchors(places_);
    if (!DropEndlessSchemas(places_, references_, ReferencesStandAlone(), changes_)) {
      return UnsatisfiableRule(field_,
                               "no document fulfils the schema: what it requires leads back to "
                               "itself without an end, or contradicts itself");
    }
    return absl::OkStatus();
  }

  // True if strings that documents may have must be spelled with `\u`.
  bool needs_unicode_escapes() const { return needs_unicode_escapes_; }

  // The schema with its changes, and `members` last.
  std::string Write(std::string_view members) const { return changes_.Write(root_, members); }

  std::vector<std::string> Find(std::string_view keyword, size_t limit) const {
    std::vector<std::string> pointers;
    for (const SchemaPlace& place : places_.all()) {
      if (pointers.size() == limit) break;
      if (FindMember(*place.schema, keyword)) pointers.push_back(places_.PointerTo(place, keyword));
    }
    return pointers;
  }

 private:
  static std::string_view DialectOf(const Json& document) {
    const Json* value = FindMember(document, "$schema");
    if (value == nullptr || !value->is_string()) return {};
    std::string_view name = value->get_ref<const std::string&>();
    while (name.ends_with('#')) name.remove_suffix(1);
    const auto* known = std::ranges::find(kDialects, name);
    return known == std::end(kDialects) ? std::string_view() : *known;
  }
  // Before 2019-09, a reference's other keywords have no effect.
  bool ReferencesStandAlone() const {
    return dialect_ == kDialects[0] || dialect_ == kDialects[1] || dialect_ == kDialects[2];
  }
  // An unknown dialect counts as the newest.
  bool IsNewestDialect() const { return dialect_.empty() || dialect_ == kDialects[4]; }

  absl::Status CheckPlace(size_t i) {
    // Places that are added move the others.
    const SchemaPlace place = places_.all()[i];
    const Json& schema = *place.schema;
    if (schema.is_boolean()) return absl::OkStatus();
    if (!schema.is_object()) {
      return places_.Invalid(place, "", "is not a schema (an object or a boolean)");
    }
    const bool only_reference = ReferencesStandAlone() && FindMember(schema, "$ref") != nullptr;
    for (const auto& [name, value] : schema.get_ref<const Json::object_t&>()) {
      const SchemaKeyword* keyword = FindSchemaKeyword(name);
      if (!keyword) continue;
      if (only_reference && name != "$ref" && name != "$schema" && !Contains(kDefinitions, name)) {
        changes_[value].drop = true;
        continue;
      }
      ORCD_RETURN_IF_ERROR(CheckMember(place, static_cast<int>(i), *keyword, value));
    }
    changes_.OrderKeywords(schema);
    return absl::OkStatus();
  }

  absl::Status CheckMember(const SchemaPlace& place, int index, const SchemaKeyword& keyword,
                           const Json& value) {
    const std::string_view name = keyword.name;
    const Json& schema = *place.schema;
    if (name == "allOf" || name == "anyOf" || name == "oneOf") has_combination_ = true;
    if (name == "allOf" || (name == "$ref" && schema.size() > 1)) meets_ = true;
    switch (keyword.role) {
      case SchemaRole::kSchema:
        places_.Add({.schema = &value, .parent = index, .keyword = name});
        return absl::OkStatus();
      case SchemaRole::kSchemaList:
        return CheckList(place, index, name, value);
      case SchemaRole::kSchemaMap:
      case SchemaRole::kPatternMap:
        return CheckMap(place, index, keyword, value);
      case SchemaRole::kItems:
        if (value.is_array()) return CheckList(place, index, name, value);
        places_.Add({.schema = &value, .parent = index, .keyword = name});
        return absl::OkStatus();
      case SchemaRole::kAdditionalItems:
        return CheckAdditionalItems(place, index, value);
      case SchemaRole::kReference:
        has_combination_ = true;
        return references_.Follow(value, place, places_);
      case SchemaRole::kLegacyId:
        if (dialect_ != kDialects[0]) return absl::OkStatus();
        return CheckId(place, name, value);
      case SchemaRole::kId:
        return CheckId(place, name, value);
      case SchemaRole::kDialect:
        if (place.schema != &root_ || dialect_.empty()) changes_[value].drop = true;
        return absl::OkStatus();
      case SchemaRole::kType:
        return CheckType(place, value);
      case SchemaRole::kEnum:
        if (!value.is_array()) return places_.Invalid(place, name, "is not a list");
        return CheckValue(place, name, value);
      case SchemaRole::kConst:
        return CheckValue(place, name, value);
      case SchemaRole::kCount:
        return CheckCount(place, name, value);
      case SchemaRole::kNumber:
        return CheckNumber(place, name, value);
      case SchemaRole::kMultipleOf:
        return CheckMultipleOf(place, value);
      case SchemaRole::kPattern:
        if (!value.is_string()) return places_.Invalid(place, name, "is not a string");
        return ChangePattern(place, name, value.get_ref<const std::string&>(),
                             EcmaReading::kSmallest, changes_[value].value);
      case SchemaRole::kFormat:
        return CheckFormat(place, value);
      case SchemaRole::kRequired:
        return absl::OkStatus();
      case SchemaRole::kUnsupported:
        if (!HasNoEffect(schema, name, value)) {
          return places_.Unsupported(place, name, "the keyword is not supported");
        }
        changes_[value].drop = true;
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  static bool HasNoEffect(const Json& schema, std::string_view name, const Json& value) {
    const auto has = [&](std::string_view other) { return FindMember(schema, other) != nullptr; };
    if (name == "uniqueItems" || name == "not" || name == "$recursiveAnchor") {
      return IsFalse(value);
    }
    if (name == "unevaluatedItems" || name == "unevaluatedProperties" || name == "propertyNames") {
      return AllowsAll(value);
    }
    if (name.starts_with("depend")) return value.is_object() && value.empty();
    if (name == "then" || name == "else") return !has("if");
    if (name == "if") return !has("then") && !has("else");
    if (name == "minContains" || name == "maxContains") return !has("contains");
    return false;
  }

  absl::Status CheckList(const SchemaPlace& place, int index, std::string_view name,
                         const Json& value) {
    if (!value.is_array()) return places_.Invalid(place, name, "is not a list");
    for (size_t i = 0; i < value.size(); ++i) {
      places_.Add({.schema = &value[i], .parent = index, .keyword = name, .index = i});
    }
    return absl::OkStatus();
  }

  absl::Status CheckMap(const SchemaPlace& place, int index, const SchemaKeyword& keyword,
                        const Json& value) {
    if (!value.is_object()) return places_.Invalid(place, keyword.name, "is not an object");
    absl::flat_hash_set<std::string> patterns;
    for (const auto& [key, member] : value.get_ref<const Json::object_t&>()) {
      const SchemaPlace of_member = {
          .schema = &member, .parent = index, .keyword = keyword.name, .name = key};
      if (keyword.role == SchemaRole::kPatternMap) {
        has_combination_ = true;
        const EcmaReading reading = ReadingOfNames(*place.schema);
        std::optional<std::string>& change = changes_[member].name;
        ORCD_RETURN_IF_ERROR(ChangePattern(of_member, "", key, reading, change));
        if (reading == EcmaReading::kSmallest && !AllowsAll(member) &&
            ReadEcmaPattern(key).text != ReadEcmaPattern(key, EcmaReading::kLargest).text &&
            !MeetsNoOtherNames(*place.schema)) {
          return places_.Unsupported(
              of_member, "",
              "`.`, `\\d`, `\\w` and `\\s` are read in different ways, on which "
              "depends what applies to a name; write the characters out");
        }
        // The library forgets one of two patterns that are equal.
        if (!patterns.insert(change ? *change : Json(key).dump()).second) {
          return places_.Unsupported(place, keyword.name,
                                     "two of the patterns may match the same name");
        }
      }
      places_.Add(of_member);
    }
    if (keyword.name == "properties") NoteNames(value);
    const Json* declared = FindMember(*place.schema, "properties");
    if (keyword.role == SchemaRole::kPatternMap && declared != nullptr && declared->is_object() &&
        std::ranges::any_of(declared->get_ref<const Json::object_t&>(), [](const auto& member) {
          return member.first.find('\0') != std::string::npos;
        })) {
      return places_.Unsupported(place, keyword.name,
                                 "a property's name has U+0000, which none matches");
    }
    return absl::OkStatus();
  }

  // Names that only some readings match are held to the pattern's schema if nothing else would hold
  // for them, and are refused by `additionalProperties` otherwise.
  static EcmaReading ReadingOfNames(const Json& schema) {
    const Json* additional = FindMember(schema, "additionalProperties");
    return additional == nullptr || AllowsAll(*additional) ? EcmaReading::kLargest
                                                           : EcmaReading::kSmallest;
  }
  // True if a name that the smallest reading of a pattern leaves out is refused. In texts of
  // printable ASCII, all readings match the same.
  static bool MeetsNoOtherNames(const Json& schema) {
    if (!IsFalse(*FindMember(schema, "additionalProperties"))) return false;
    if (FindMember(schema, "patternProperties")->size() > 1) return false;
    const Json* declared = FindMember(schema, "properties");
    if (declared == nullptr || !declared->is_object()) return true;
    return std::ranges::all_of(declared->get_ref<const Json::object_t&>(), [](const auto& member) {
      return std::ranges::all_of(member.first, [](char c) { return c >= ' ' && c <= '~'; });
    });
  }

  absl::Status ChangePattern(const SchemaPlace& place, std::string_view keyword,
                             const std::string& pattern, EcmaReading reading,
                             std::optional<std::string>& change) const {
    EcmaPattern read = ReadEcmaPattern(pattern, reading);
    if (!read.fault.empty()) {
      return read.is_invalid ? places_.Invalid(place, keyword, read.fault)
                             : places_.Unsupported(place, keyword, read.fault);
    }
    if (read.text != pattern) change = Json(std::move(read.text)).dump();
    return absl::OkStatus();
  }

  // Beside prefixItems, the keyword has no effect, but the library forgets prefixItems.
  absl::Status CheckAdditionalItems(const SchemaPlace& place, int index, const Json& value) {
    const Json* items = FindMember(*place.schema, "items");
    if (IsNewestDialect() && FindMember(*place.schema, "prefixItems") &&
        !(items != nullptr && items->is_array())) {
      changes_[value].drop = true;
    } else {
      places_.Add({.schema = &value, .parent = index, .keyword = "additionalItems"});
    }
    return absl::OkStatus();
  }

  // References are local and those that a name would change are refused, so names have no effect.
  absl::Status CheckId(const SchemaPlace& place, std::string_view name, const Json& value) {
    if (!value.is_string()) return places_.Invalid(place, name, "is not a string");
    if (!IsAnchor(value)) changes_[value].drop = true;
    return absl::OkStatus();
  }

  absl::Status CheckType(const SchemaPlace& place, const Json& value) const {
    const auto is_type = [](const Json& type) {
      return type.is_string() && Contains(kTypes, type.get_ref<const std::string&>());
    };
    const bool valid =
        value.is_array() ? std::all_of(value.begin(), value.end(), is_type) : is_type(value);
    if (valid) return absl::OkStatus();
    return places_.Invalid(place, "type", "is not a type of JSON Schema, or a list of them");
  }

  absl::Status CheckValue(const SchemaPlace& place, std::string_view name, const Json& value) {
    std::vector<const Json*> open = {&value};
    while (!open.empty()) {
      const Json* next = open.back();
      open.pop_back();
      if (!HoldsInDouble(*next)) {
        return places_.Unsupported(place, name, "has an integer beyond 2^53 that no double holds");
      }
      if (next->is_string()) NoteSpelling(next->get_ref<const std::string&>());
      if (next->is_object()) NoteNames(*next);
      if (!next->is_structured()) continue;
      for (const Json& part : *next) open.push_back(&part);
    }
    return absl::OkStatus();
  }

  absl::Status CheckCount(const SchemaPlace& place, std::string_view name, const Json& value) {
    const bool is_maximum = name.starts_with("max");
    std::optional<uint64_t> count = WholeNumberOf(value);
    if (!count && value.is_number_float() && value.get<double>() > kMaxCount) count = kMaxCount + 1;
    if (!count) return places_.Invalid(place, name, "is not a whole number of 0 or more");
    if (*count > kMaxCount) {
      if (!is_maximum) return places_.TooLarge(place, name, "is more than any output has");
      changes_[value].drop = true;
    } else if (!value.is_number_unsigned()) {
      changes_[value].value = std::to_string(*count);
    }
    if (name == "minProperties") return CheckMinProperties(place, *count);
    return absl::OkStatus();
  }

  absl::Status CheckPatterns() const {
    size_t patterns = 0;
    size_t names = 0;
    for (const SchemaPlace& place : places_.all()) {
      if (FindMember(*place.schema, "pattern") || FindMember(*place.schema, "format")) ++patterns;
      if (const Json* of_names = FindMember(*place.schema, "patternProperties")) {
        names += of_names->size();
        if (names > kMaxPatternNames) {
          return places_.TooLarge(place, "patternProperties",
                                  "makes more than " + std::to_string(kMaxPatternNames) +
                                      " patterns of names in the schema");
        }
      }
      if (patterns > kMaxPatternsTogether && meets_) {
        return places_.TooLarge(
            place, "pattern",
            "is one of more than " + std::to_string(kMaxPatternsTogether) +
                " patterns and formats, which is too many for a schema with `allOf` or "
                "with keywords beside `$ref`");
      }
    }
    return absl::OkStatus();
  }

  void NoteSpelling(std::string_view text) {
    needs_unicode_escapes_ = needs_unicode_escapes_ || NeedsUnicodeEscape(text);
  }
  void NoteNames(const Json& object) {
    for (const auto& [name, value] : object.get_ref<const Json::object_t&>()) NoteSpelling(name);
  }

  // If \u is allowed, a name that an object leaves open may be a declared one in other letters.
  absl::Status CheckSpellings() {
    for (const SchemaPlace& place : places_.all()) {
      const Json* required = FindMember(*place.schema, "required");
      if (!required || !required->is_array()) continue;
      for (const Json& name : *required) {
        if (name.is_string()) NoteSpelling(name.get_ref<const std::string&>());
      }
    }
    if (!needs_unicode_escapes_) return absl::OkStatus();
    for (const SchemaPlace& place : places_.all()) {
      const Json* additional = FindMember(*place.schema, "additionalProperties");
      if ((additional != nullptr && IsFalse(*additional)) || !AllowsType(*place.schema, "object")) {
        continue;
      }
      for (const char* const keyword : {"properties", "patternProperties", "required"}) {
        const Json* names = FindMember(*place.schema, keyword);
        if (!names || !names->is_structured() || names->empty()) continue;
        return places_.Unsupported(
            place, keyword,
            "a string of the schema has a control character, which is written with "
            "\\u; so written, other names could repeat these: set "
            "`additionalProperties` to false");
      }
    }
    return absl::OkStatus();
  }

  // Names of properties that are not declared may be generated twice, which counts as one property.
  absl::Status CheckMinProperties(const SchemaPlace& place, uint64_t count) const {
    const Json& schema = *place.schema;
    const Json* required = FindMember(schema, "required");
    const size_t declared = required != nullptr && required->is_array() ? required->size() : 0;
    const Json* additional = FindMember(schema, "additionalProperties");
    const bool is_open = additional == nullptr || !IsFalse(*additional) ||
                         FindMember(schema, "patternProperties") != nullptr;
    if (!is_open || count < declared + 2) return absl::OkStatus();
    return places_.Unsupported(
        place, "minProperties",
        "only one property more than those of `required` can be demanded where "
        "properties without a declared name are allowed");
  }

  absl::Status CheckNumber(const SchemaPlace& place, std::string_view name,
                           const Json& value) const {
    const bool is_exclusive = name.starts_with("exclusive");
    if (is_exclusive && value.is_boolean()) {
      if (dialect_.empty() || dialect_ == kDialects[0]) return absl::OkStatus();
      return places_.Invalid(place, name, "is not a number, as it must be since draft 6");
    }
    if (is_exclusive && dialect_ == kDialects[0]) {
      return places_.Invalid(place, name, "is not a boolean, as it must be in draft 4");
    }
    if (!value.is_number()) return places_.Invalid(place, name, "is not a number");
    if (!IsExactBound(value, name.ends_with("aximum"))) {
      return places_.Unsupported(place, name, "is an integer beyond 2^53 that no double holds");
    }
    return absl::OkStatus();
  }

  absl::Status CheckMultipleOf(const SchemaPlace& place, const Json& value) {
    if (!value.is_number() || value.get<double>() <= 0) {
      return places_.Invalid(place, "multipleOf", "is not a number above 0");
    }
    const std::optional<uint64_t> thousandths = MultipleInThousandths(value.get<double>());
    if (!thousandths) {
      return places_.TooLarge(place, "multipleOf",
                              "may be at most 1,000 with 3 decimals and 10,000 without the point");
    }
    multiples_.push_back(*thousandths);
    return absl::OkStatus();
  }

  absl::Status CheckFormat(const SchemaPlace& place, const Json& value) {
    if (!value.is_string()) return places_.Invalid(place, "format", "is not a string");
    const Json& schema = *place.schema;
    if (!AllowsType(schema, "string")) return absl::OkStatus();
    const std::string& format = value.get_ref<const std::string&>();
    switch (FormatSupportOf(format)) {
      case FormatSupport::kByLibrary:
        return absl::OkStatus();
      case FormatSupport::kAnnotation:
        changes_[value].drop = true;
        return absl::OkStatus();
      case FormatSupport::kUnsupported:
        return places_.Unsupported(place, "format", "\"" + format + "\" is not supported");
      case FormatSupport::kByPattern:
        break;
    }
    std::string members = "\"pattern\":" + Json(PatternOfFormat(format)).dump();
    const size_t max_length = MaxLengthOfFormat(format);
    if (max_length > 0) members += ",\"maxLength\":" + std::to_string(max_length);
    if (!FindMember(schema, "pattern") && !(max_length > 0 && FindMember(schema, "maxLength"))) {
      changes_[value].member = members;
    } else if (!FindMember(schema, "allOf")) {
      changes_[value].member = "\"allOf\":[{" + members + "}]";
    } else {
      return places_.Unsupported(place, "format",
                                 "cannot stand beside `allOf` and a `pattern` or `maxLength`");
    }
    return absl::OkStatus();
  }

  const Json& root_;
  const std::string& field_;
  // One of kDialects; empty if the schema names none of them.
  const std::string_view dialect_;
  SchemaPlaces places_;
  SchemaReferences references_;
  SchemaChanges changes_;
  // In thousandths.
  std::vector<uint64_t> multiples_;
  bool needs_unicode_escapes_ = false;
  // True if two schemas may apply to one value.
  bool has_combination_ = false;
  // True if several schemas may constrain one value at once.
  bool meets_ = false;
};

}  // namespace

absl::Status CheckSchema(const std::string& schema, const std::string& field, int max_depth) {
  ORCD_ASSIGN_OR_RETURN(const Json document, ReadJson(schema, field, max_depth));
  return SchemaWalk(document, field).Run();
}

std::string SchemaForLibrary(const std::string& schema) {
  const Json document = Json::parse(schema, nullptr, /*allow_exceptions=*/false);
  const std::string no_field;
  SchemaWalk walk(document, no_field);
  static_cast<void>(walk.Run());
  return walk.Write(walk.needs_unicode_escapes() ? std::string_view() : kOneSpelling);
}

std::vector<std::string> FindKeyword(const std::string& schema, std::string_view keyword,
                                     size_t limit) {
  const Json document = Json::parse(schema, nullptr, /*allow_exceptions=*/false);
  const std::string no_field;
  SchemaWalk walk(document, no_field);
  static_cast<void>(walk.Run());
  return walk.Find(keyword, limit);
}

}  // namespace orcd
