#include "runtime/constraint/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "runtime/base/error.h"
#include "runtime/constraint/ecma_pattern.h"
#include "runtime/constraint/lark_text.h"
#include "runtime/constraint/ordered_json.h"
#include "runtime/constraint/rule_error.h"
#include "runtime/constraint/schema_ends.h"
#include "runtime/constraint/schema_keywords.h"
#include "runtime/constraint/schema_numbers.h"
#include "runtime/constraint/schema_strings.h"

namespace orcd {
namespace {

using Json = OrderedJson;

constexpr std::string_view kTypes[] = {"array",  "boolean", "integer", "null",
                                       "number", "object",  "string"};
constexpr std::string_view kApplicators[] = {"$ref", "allOf", "anyOf", "const", "enum", "oneOf"};
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

// The library's time and memory grow with a multiple's digits: 99,991 takes 2.8 s and 855 MB
// (2026-11-25).
constexpr double kMaxMultiple = 1000;
constexpr uint64_t kMaxMultipleDigits = 10'000;
// Multiples are counted in thousandths.
constexpr uint64_t kMultipleUnit = 1000;
// The library intersects the patterns of a value, and those of an object's names two by two,
// without a bound: 40 patterns take 24 s and 2 GB, 400 names 7 s (2026-11-27). So many of a
// schema's patterns may meet, and so many names may be patterns.
constexpr size_t kMaxPatternsTogether = 24;
constexpr size_t kMaxPatternNames = 100;
// The library takes an exclusive bound that is a whole number as inclusive if the other bound is
// near. The next number that a document may have then is so far away.
constexpr double kBesideBound = 1e-6;
constexpr double kMostWithFraction = 1e9;
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
  SchemaWalk(const Json& document, const std::string& field) : root_(document), field_(field) {}

  // Requires no earlier call.
  absl::Status Run() {
    if (FindMember(root_, kLibraryOptions)) {
      return Unsupported({.schema = &root_}, kLibraryOptions, "is not a keyword of JSON Schema");
    }
    if (const Json* dialect = FindMember(root_, "$schema")) dialect_ = DialectOf(*dialect);
    Visit({.schema = &root_});
    for (size_t i = 0; i < places_.size(); ++i) ORCD_RETURN_IF_ERROR(CheckPlace(i));
    ORCD_RETURN_IF_ERROR(CheckPatterns());
    ORCD_RETURN_IF_ERROR(CheckSpellings());
    ORCD_RETURN_IF_ERROR(ChangeBounds());
    ORCD_RETURN_IF_ERROR(CheckMultiples());
    return DropEndlessSchemas();
  }

  // True if strings that documents may have must be spelled with `\u`.
  bool needs_unicode_escapes() const { return needs_unicode_escapes_; }

  // The schema with its changes. `members` come last in the outermost schema: the library takes its
  // options out and puts the last member in their place, and the order of members decides the order
  // of properties.
  std::string Write(std::string_view members) const {
    std::string out;
    Write(root_, members, out);
    return out;
  }

  std::vector<std::string> Find(std::string_view keyword, size_t limit) const {
    std::vector<std::string> pointers;
    for (const Place& place : places_) {
      if (pointers.size() == limit) break;
      if (FindMember(*place.schema, keyword)) pointers.push_back(PointerTo(place, keyword));
    }
    return pointers;
  }

 private:
  // A schema, by the step from the schema around it. Pointers are spelled only for errors: names
  // may be long.
  struct Place {
    const Json* schema = nullptr;
    // Index in places_; -1 for the outermost schema and for one that only a reference leads to.
    int parent = -1;
    // The keyword that holds the schema; without a parent, the pointer that a reference has.
    std::string_view keyword = {};
    std::optional<std::string_view> name = std::nullopt;
    std::optional<size_t> index = std::nullopt;
  };
  // A change to the member or the element that a value is.
  struct Change {
    bool drop = false;
    // JSON in place of the member's name and colon, or of the value.
    std::optional<std::string> name = std::nullopt;
    std::optional<std::string> value = std::nullopt;
    // JSON in place of the whole member.
    std::optional<std::string> member = std::nullopt;
  };

  static std::string EscapedToken(std::string_view token) {
    std::string escaped;
    for (const char c : token) {
      if (c == '~') {
        escaped += "~0";
      } else if (c == '/') {
        escaped += "~1";
      } else {
        escaped += c;
      }
    }
    return escaped;
  }

  std::string PointerTo(const Place& place, std::string_view keyword) const {
    std::vector<const Place*> path = {&place};
    while (path.back()->parent >= 0) path.push_back(&places_[path.back()->parent]);
    std::string pointer(path.back()->keyword);
    for (auto step = path.rbegin() + 1; step != path.rend(); ++step) {
      pointer.append("/").append((*step)->keyword);
      if ((*step)->name) pointer.append("/").append(EscapedToken(*(*step)->name));
      if ((*step)->index) pointer.append("/").append(std::to_string(*(*step)->index));
    }
    if (!keyword.empty()) pointer.append("/").append(keyword);
    return pointer;
  }

  std::string At(const Place& place, std::string_view keyword, std::string_view what) const {
    std::string pointer = PointerTo(place, keyword);
    if (pointer.empty()) pointer = "the schema";
    return pointer.append(": ").append(what);
  }
  absl::Status Invalid(const Place& place, std::string_view keyword, std::string_view what) const {
    return InvalidRule(field_, At(place, keyword, what));
  }
  absl::Status Unsupported(const Place& place, std::string_view keyword,
                           std::string_view what) const {
    return UnsupportedRule(field_, At(place, keyword, what));
  }
  absl::Status TooLarge(const Place& place, std::string_view keyword, std::string_view what) const {
    return RuleTooLarge(field_, At(place, keyword, what));
  }

  void Visit(const Place& place) {
    if (visited_.emplace(place.schema, places_.size()).second) places_.push_back(place);
  }

  static std::string_view DialectOf(const Json& value) {
    if (!value.is_string()) return {};
    std::string_view name = value.get_ref<const std::string&>();
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
    // Visiting may move places_.
    const Place place = places_[i];
    const Json& schema = *place.schema;
    if (schema.is_boolean()) return absl::OkStatus();
    if (!schema.is_object()) return Invalid(place, "", "is not a schema (an object or a boolean)");
    const bool only_reference = ReferencesStandAlone() && FindMember(schema, "$ref") != nullptr;
    for (const auto& [name, value] : schema.get_ref<const Json::object_t&>()) {
      const SchemaKeyword* keyword = FindSchemaKeyword(name);
      if (!keyword) continue;
      if (only_reference && name != "$ref" && name != "$schema" && !Contains(kDefinitions, name)) {
        changes_[&value].drop = true;
        continue;
      }
      ORCD_RETURN_IF_ERROR(CheckMember(place, static_cast<int>(i), *keyword, value));
    }
    CheckOrder(schema);
    return absl::OkStatus();
  }

  // The library compiles keywords before and after an applicator apart, so that those after it do
  // not know those before it, on which they may depend.
  void CheckOrder(const Json& schema) {
    if (std::ranges::none_of(kApplicators, [&](std::string_view name) {
          return FindMember(schema, name) != nullptr;
        })) {
      return;
    }
    if (FindMember(schema, "additionalItems") ||
        (FindMember(schema, "patternProperties") && FindMember(schema, "additionalProperties"))) {
      applicators_last_.insert(&schema);
    }
  }

  absl::Status CheckMember(const Place& place, int index, const SchemaKeyword& keyword,
                           const Json& value) {
    const std::string_view name = keyword.name;
    const Json& schema = *place.schema;
    if (name == "allOf" || name == "anyOf" || name == "oneOf") has_combination_ = true;
    if (name == "allOf" || (name == "$ref" && schema.size() > 1)) meets_ = true;
    switch (keyword.role) {
      case SchemaRole::kSchema:
        Visit({.schema = &value, .parent = index, .keyword = name});
        return absl::OkStatus();
      case SchemaRole::kSchemaList:
        return CheckList(place, index, name, value);
      case SchemaRole::kSchemaMap:
      case SchemaRole::kPatternMap:
        return CheckMap(place, index, keyword, value);
      case SchemaRole::kItems:
        if (value.is_array()) return CheckList(place, index, name, value);
        Visit({.schema = &value, .parent = index, .keyword = name});
        return absl::OkStatus();
      case SchemaRole::kAdditionalItems:
        return CheckAdditionalItems(place, index, value);
      case SchemaRole::kReference:
        return CheckReference(place, value);
      case SchemaRole::kLegacyId:
        if (dialect_ != kDialects[0]) return absl::OkStatus();
        return CheckId(place, name, value);
      case SchemaRole::kId:
        return CheckId(place, name, value);
      case SchemaRole::kDialect:
        if (place.schema != &root_ || DialectOf(value).empty()) changes_[&value].drop = true;
        return absl::OkStatus();
      case SchemaRole::kType:
        return CheckType(place, value);
      case SchemaRole::kEnum:
        if (!value.is_array()) return Invalid(place, name, "is not a list");
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
        if (!value.is_string()) return Invalid(place, name, "is not a string");
        return ChangePattern(place, name, value.get_ref<const std::string&>(),
                             EcmaReading::kSmallest, changes_[&value].value);
      case SchemaRole::kFormat:
        return CheckFormat(place, value);
      case SchemaRole::kUnsupported:
        if (!HasNoEffect(schema, name, value)) {
          return Unsupported(place, name, "the keyword is not supported");
        }
        changes_[&value].drop = true;
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

  absl::Status CheckList(const Place& place, int index, std::string_view name, const Json& value) {
    if (!value.is_array()) return Invalid(place, name, "is not a list");
    for (size_t i = 0; i < value.size(); ++i) {
      Visit({.schema = &value[i], .parent = index, .keyword = name, .index = i});
    }
    return absl::OkStatus();
  }

  absl::Status CheckMap(const Place& place, int index, const SchemaKeyword& keyword,
                        const Json& value) {
    if (!value.is_object()) return Invalid(place, keyword.name, "is not an object");
    absl::flat_hash_set<std::string> patterns;
    for (const auto& [key, member] : value.get_ref<const Json::object_t&>()) {
      const Place of_member = {
          .schema = &member, .parent = index, .keyword = keyword.name, .name = key};
      if (keyword.role == SchemaRole::kPatternMap) {
        has_combination_ = true;
        const EcmaReading reading = ReadingOfNames(*place.schema);
        std::optional<std::string>& change = changes_[&member].name;
        ORCD_RETURN_IF_ERROR(ChangePattern(of_member, "", key, reading, change));
        if (reading == EcmaReading::kSmallest && !AllowsAll(member) &&
            ReadEcmaPattern(key).text != ReadEcmaPattern(key, EcmaReading::kLargest).text &&
            !MeetsNoOtherNames(*place.schema)) {
          return Unsupported(of_member, "",
                             "`.`, `\\d`, `\\w` and `\\s` are read in different ways, on which "
                             "depends what applies to a name; write the characters out");
        }
        // The library forgets one of two patterns that are equal.
        if (!patterns.insert(change ? *change : Json(key).dump()).second) {
          return Unsupported(place, keyword.name, "two of the patterns may match the same name");
        }
      }
      Visit(of_member);
    }
    if (keyword.name == "properties") NoteNames(value);
    const Json* declared = FindMember(*place.schema, "properties");
    if (keyword.role == SchemaRole::kPatternMap && declared != nullptr && declared->is_object() &&
        std::ranges::any_of(declared->get_ref<const Json::object_t&>(), [](const auto& member) {
          return member.first.find('\0') != std::string::npos;
        })) {
      return Unsupported(place, keyword.name, "a property's name has U+0000, which none matches");
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

  absl::Status ChangePattern(const Place& place, std::string_view keyword,
                             const std::string& pattern, EcmaReading reading,
                             std::optional<std::string>& change) const {
    EcmaPattern read = ReadEcmaPattern(pattern, reading);
    if (!read.fault.empty()) {
      return read.is_invalid ? Invalid(place, keyword, read.fault)
                             : Unsupported(place, keyword, read.fault);
    }
    if (read.text != pattern) change = Json(std::move(read.text)).dump();
    return absl::OkStatus();
  }

  // Beside prefixItems, the keyword has no effect, but the library forgets prefixItems.
  absl::Status CheckAdditionalItems(const Place& place, int index, const Json& value) {
    const Json* items = FindMember(*place.schema, "items");
    if (IsNewestDialect() && FindMember(*place.schema, "prefixItems") &&
        !(items != nullptr && items->is_array())) {
      changes_[&value].drop = true;
    } else {
      Visit({.schema = &value, .parent = index, .keyword = "additionalItems"});
    }
    return absl::OkStatus();
  }

  // FindMember for objects of many members that many references lead through.
  const Json* FindIndexed(const Json& object, std::string_view name) {
    constexpr size_t kFew = 16;
    if (!object.is_object() || object.size() <= kFew) return FindMember(object, name);
    const auto [index, is_new] = indexes_.try_emplace(&object);
    if (is_new) {
      for (const auto& [key, member] : object.get_ref<const Json::object_t&>()) {
        index->second.emplace(key, &member);
      }
    }
    const auto found = index->second.find(name);
    return found == index->second.end() ? nullptr : found->second;
  }

  // The value that a local pointer, without its `#`, points to; null if there is none.
  // Sets `through_id` if the path leads through a schema that has a name.
  const Json* Resolve(std::string_view pointer, bool& through_id) {
    const Json* value = &root_;
    while (!pointer.empty()) {
      through_id = through_id || HasId(*value);
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
    }
    return value;
  }

  absl::Status CheckReference(const Place& place, const Json& value) {
    has_combination_ = true;
    if (!value.is_string()) return Invalid(place, "$ref", "is not a string");
    const std::string& reference = value.get_ref<const std::string&>();
    if (!reference.starts_with('#')) {
      return Unsupported(place, "$ref", "points out of the schema");
    }
    for (const Place* around = &place;; around = &places_[around->parent]) {
      if (HasId(*around->schema)) {
        return Unsupported(place, "$ref", "stands in a schema with a name (`$id`) of its own");
      }
      if (around->parent < 0) break;
    }
    const auto [there, is_new] = references_.emplace(reference, nullptr);
    if (!is_new) return absl::OkStatus();
    if (references_.size() > kMaxDefinitions) {
      return TooLarge(place, "$ref",
                      "is one of more than " + std::to_string(kMaxDefinitions) + " references");
    }
    // The library finds anchors.
    if (reference.size() > 1 && reference[1] != '/') return absl::OkStatus();
    const std::string_view pointer = std::string_view(reference).substr(1);
    bool through_id = false;
    const Json* target = Resolve(pointer, through_id);
    if (!target) return Invalid(place, "$ref", "points to nothing: " + reference);
    if (through_id) {
      return Unsupported(place, "$ref", "points into a schema with a name (`$id`) of its own");
    }
    there->second = target;
    Visit({.schema = target, .keyword = pointer});
    return absl::OkStatus();
  }

  // The name of a schema changes what local references within it mean, unless it is an anchor.
  bool HasId(const Json& schema) {
    if (&schema == &root_) return false;
    const Json* id = FindIndexed(schema, dialect_ == kDialects[0] ? "id" : "$id");
    return id != nullptr && id->is_string() && !IsAnchor(*id);
  }
  static bool IsAnchor(const Json& id) {
    const std::string& text = id.get_ref<const std::string&>();
    return text.starts_with('#') && !text.starts_with("#/");
  }

  // References are local and those that a name would change are refused, so names have no effect.
  absl::Status CheckId(const Place& place, std::string_view name, const Json& value) {
    if (!value.is_string()) return Invalid(place, name, "is not a string");
    if (!IsAnchor(value)) changes_[&value].drop = true;
    return absl::OkStatus();
  }

  absl::Status CheckType(const Place& place, const Json& value) const {
    const auto is_type = [](const Json& type) {
      return type.is_string() && Contains(kTypes, type.get_ref<const std::string&>());
    };
    const bool valid =
        value.is_array() ? std::all_of(value.begin(), value.end(), is_type) : is_type(value);
    if (!valid) return Invalid(place, "type", "is not a type of JSON Schema, or a list of them");
    return absl::OkStatus();
  }
  static bool AllowsType(const Json& schema, std::string_view name) {
    const Json* type = FindMember(schema, "type");
    if (!type) return true;
    if (!type->is_array()) return *type == name;
    return std::find(type->begin(), type->end(), name) != type->end();
  }

  absl::Status CheckValue(const Place& place, std::string_view name, const Json& value) {
    std::vector<const Json*> open = {&value};
    while (!open.empty()) {
      const Json* next = open.back();
      open.pop_back();
      if (!HoldsInDouble(*next)) {
        return Unsupported(place, name, "has an integer beyond 2^53 that no double holds");
      }
      if (next->is_string()) NoteSpelling(next->get_ref<const std::string&>());
      if (next->is_object()) NoteNames(*next);
      if (!next->is_structured()) continue;
      for (const Json& part : *next) open.push_back(&part);
    }
    return absl::OkStatus();
  }

  absl::Status CheckCount(const Place& place, std::string_view name, const Json& value) {
    const bool is_maximum = name.starts_with("max");
    std::optional<uint64_t> count = WholeNumberOf(value);
    if (!count && value.is_number_float() && value.get<double>() > kMaxCount) count = kMaxCount + 1;
    if (!count) return Invalid(place, name, "is not a whole number of 0 or more");
    if (*count > kMaxCount) {
      if (!is_maximum) return TooLarge(place, name, "is more than any output has");
      changes_[&value].drop = true;
    } else if (!value.is_number_unsigned()) {
      changes_[&value].value = std::to_string(*count);
    }
    if (name == "minProperties") return CheckMinProperties(place, *count);
    return absl::OkStatus();
  }

  absl::Status CheckPatterns() const {
    size_t patterns = 0;
    size_t names = 0;
    for (const Place& place : places_) {
      if (FindMember(*place.schema, "pattern") || FindMember(*place.schema, "format")) ++patterns;
      if (const Json* of_names = FindMember(*place.schema, "patternProperties")) {
        names += of_names->size();
        if (names > kMaxPatternNames) {
          return TooLarge(place, "patternProperties",
                          "makes more than " + std::to_string(kMaxPatternNames) +
                              " patterns of names in the schema");
        }
      }
      if (patterns > kMaxPatternsTogether && meets_) {
        return TooLarge(place, "pattern",
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
    for (const Place& place : places_) {
      const Json* required = FindMember(*place.schema, "required");
      if (!required || !required->is_array()) continue;
      for (const Json& name : *required) {
        if (name.is_string()) NoteSpelling(name.get_ref<const std::string&>());
      }
    }
    if (!needs_unicode_escapes_) return absl::OkStatus();
    for (const Place& place : places_) {
      const Json* additional = FindMember(*place.schema, "additionalProperties");
      if ((additional != nullptr && IsFalse(*additional)) || !AllowsType(*place.schema, "object")) {
        continue;
      }
      for (const char* const keyword : {"properties", "patternProperties", "required"}) {
        const Json* names = FindMember(*place.schema, keyword);
        if (!names || !names->is_structured() || names->empty()) continue;
        return Unsupported(place, keyword,
                           "a string of the schema has a control character, which is written with "
                           "\\u; so written, other names could repeat these: set "
                           "`additionalProperties` to false");
      }
    }
    return absl::OkStatus();
  }

  // Leaves one bound on each side, the narrower; where draft 4's exclusiveMinimum is true, minimum
  // is exclusive. Moves exclusive bounds a little inwards where the library would take them as
  // inclusive ones: fewer documents, never a wrong one.
  absl::Status ChangeBounds() {
    for (const Place& place : places_) {
      for (const bool is_minimum : {true, false}) {
        std::vector<double>& bounds = is_minimum ? minima_ : maxima_;
        for (const char* const name : BoundNames(is_minimum)) AddBound(*place.schema, name, bounds);
      }
    }
    std::ranges::sort(minima_);
    std::ranges::sort(maxima_);
    for (const Place& place : places_) {
      for (const bool is_minimum : {true, false}) {
        ORCD_RETURN_IF_ERROR(ChangeBound(place, is_minimum));
      }
    }
    return absl::OkStatus();
  }

  static std::array<const char*, 2> BoundNames(bool is_minimum) {
    if (is_minimum) return {"exclusiveMinimum", "minimum"};
    return {"exclusiveMaximum", "maximum"};
  }
  static void AddBound(const Json& schema, const char* name, std::vector<double>& bounds) {
    const Json* bound = FindMember(schema, name);
    if (bound != nullptr && bound->is_number()) bounds.push_back(bound->get<double>());
  }

  absl::Status ChangeBound(const Place& place, bool is_minimum) {
    const Json& schema = *place.schema;
    const auto [exclusive_name, inclusive_name] = BoundNames(is_minimum);
    const Json* const exclusive = FindMember(schema, exclusive_name);
    const Json* inclusive = FindMember(schema, inclusive_name);
    // Keywords that have no effect beside a reference were not checked.
    if (inclusive != nullptr && !inclusive->is_number()) inclusive = nullptr;
    if (exclusive == nullptr || !(exclusive->is_boolean() || exclusive->is_number())) {
      return absl::OkStatus();
    }
    const bool is_flag = exclusive->is_boolean();
    bool is_exclusive = true;
    if (is_flag) {
      is_exclusive = !IsFalse(*exclusive);
    } else if (inclusive != nullptr) {
      const double other = inclusive->get<double>();
      const double own = exclusive->get<double>();
      is_exclusive = is_minimum ? own >= other : own <= other;
    }
    const Json* const bound = is_exclusive && !is_flag ? exclusive : inclusive;
    for (const Json* const member : {exclusive, inclusive}) {
      if (member != nullptr && member != bound) changes_[member].drop = true;
    }
    if (bound == nullptr || !is_exclusive) return absl::OkStatus();
    const double value = bound->get<double>();
    const bool is_whole = value == std::floor(value);
    const bool moves = std::abs(value) <= kMostWithFraction;
    // Whole numbers have no bound that near.
    if (is_whole && !IsInteger(schema) &&
        HasBoundWithin(schema, is_minimum, value, moves ? 2 * kBesideBound : 1)) {
      return Unsupported(place, is_flag ? inclusive_name : exclusive_name,
                         "an exclusive bound and the opposite one are too near to each other; "
                         "at most 1,000,000,000 they may be 0.000002 apart, above that 1");
    }
    if (!is_whole || !moves || !(IsCombined() || HasBoundWithin(schema, is_minimum, value, 1))) {
      if (is_flag) changes_[bound].name = Json(exclusive_name).dump();
      return absl::OkStatus();
    }
    const Json moved = value + (is_minimum ? kBesideBound : -kBesideBound);
    changes_[bound].member = Json(inclusive_name).dump() + ":" + moved.dump();
    return absl::OkStatus();
  }

  static bool IsInteger(const Json& schema) {
    return FindMember(schema, "type") != nullptr && !AllowsType(schema, "number");
  }
  // True if bounds of several schemas may apply to one value.
  bool IsCombined() const { return has_combination_ || meets_; }
  // True if an opposite bound that may apply to the same value lies inwards of `value`, less than
  // `distance` away.
  bool HasBoundWithin(const Json& schema, bool is_minimum, double value, double distance) const {
    std::vector<double> own;
    for (const char* const name : BoundNames(!is_minimum)) AddBound(schema, name, own);
    std::ranges::sort(own);
    const std::vector<double>& bounds = IsCombined() ? (is_minimum ? maxima_ : minima_) : own;
    const double low = is_minimum ? value : value - distance;
    const auto next = std::ranges::upper_bound(bounds, low);
    return next != bounds.end() && *next < low + distance;
  }

  // Names of properties that are not declared may be generated twice, which counts as one property.
  absl::Status CheckMinProperties(const Place& place, uint64_t count) const {
    const Json& schema = *place.schema;
    const Json* required = FindMember(schema, "required");
    const size_t declared = required != nullptr && required->is_array() ? required->size() : 0;
    const Json* additional = FindMember(schema, "additionalProperties");
    const bool is_open = additional == nullptr || !IsFalse(*additional) ||
                         FindMember(schema, "patternProperties") != nullptr;
    if (!is_open || count < declared + 2) return absl::OkStatus();
    return Unsupported(place, "minProperties",
                       "only one property more than those of `required` can be demanded where "
                       "properties without a declared name are allowed");
  }

  absl::Status CheckNumber(const Place& place, std::string_view name, const Json& value) const {
    const bool is_exclusive = name.starts_with("exclusive");
    if (is_exclusive && value.is_boolean()) {
      if (dialect_.empty() || dialect_ == kDialects[0]) return absl::OkStatus();
      return Invalid(place, name, "is not a number, as it must be since draft 6");
    }
    if (is_exclusive && dialect_ == kDialects[0]) {
      return Invalid(place, name, "is not a boolean, as it must be in draft 4");
    }
    if (!value.is_number()) return Invalid(place, name, "is not a number");
    // The library rounds a bound beyond 63 bits towards 0, to the largest integer that it
    // generates.
    constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (name.ends_with("aximum") && value.is_number_unsigned() &&
        value.get<uint64_t>() >= kLargest) {
      return absl::OkStatus();
    }
    if (!HoldsInDouble(value)) {
      return Unsupported(place, name, "is an integer beyond 2^53 that no double holds");
    }
    return absl::OkStatus();
  }

  absl::Status CheckMultipleOf(const Place& place, const Json& value) {
    if (!value.is_number() || value.get<double>() <= 0) {
      return Invalid(place, "multipleOf", "is not a number above 0");
    }
    const double multiple = value.get<double>();
    const double thousandths = std::round(multiple * kMultipleUnit);
    if (multiple > kMaxMultiple || thousandths < 1 ||
        std::abs(multiple * kMultipleUnit - thousandths) > 1e-6 ||
        MultipleDigits(static_cast<uint64_t>(thousandths)) > kMaxMultipleDigits) {
      return TooLarge(place, "multipleOf",
                      "may be at most 1,000 with 3 decimals and 10,000 without the point");
    }
    multiples_.push_back(static_cast<uint64_t>(thousandths));
    return absl::OkStatus();
  }

  // The library computes the common multiple of schemas that apply to one value.
  absl::Status CheckMultiples() const {
    if (!has_combination_) return absl::OkStatus();
    uint64_t common = 1;
    for (const uint64_t multiple : multiples_) {
      common = std::lcm(common, multiple);
      if (MultipleDigits(common) > kMaxMultipleDigits) {
        return RuleTooLarge(field_,
                            "the common multiple of all values of multipleOf may be at most 10,000 "
                            "without its decimal point where schemas are combined");
      }
    }
    return absl::OkStatus();
  }

  // Writes `false` for schemas that no finite document fulfils, and leaves out arrays and objects
  // if they alone are endless: an output that began one would go on for ever.
  absl::Status DropEndlessSchemas() {
    // Without references, nothing leads back to itself, and the library sees the rest.
    if (references_.empty()) return absl::OkStatus();
    std::vector<const Json*> schemas;
    absl::flat_hash_map<std::string, const Json*> anchors;
    for (const Place& place : places_) {
      schemas.push_back(place.schema);
      const Json* anchor = FindMember(*place.schema, "$anchor");
      if (anchor != nullptr && anchor->is_string()) {
        anchors.emplace("#" + anchor->get_ref<const std::string&>(), place.schema);
      }
    }
    const auto index_of = [&](const Json& schema) {
      const auto found = visited_.find(&schema);
      return found == visited_.end() ? -1 : found->second;
    };
    const auto target_of = [&](const std::string& reference) -> const Json* {
      const auto found = references_.find(reference);
      if (found != references_.end() && found->second != nullptr) return found->second;
      const auto anchor = anchors.find(reference);
      return anchor == anchors.end() ? nullptr : anchor->second;
    };
    const std::vector<SchemaEnds> ends =
        FindSchemaEnds(schemas, {index_of, target_of, ReferencesStandAlone()});
    if (!ends.front().any) {
      return UnsatisfiableRule(field_,
                               "no document fulfils the schema: what it requires leads back to "
                               "itself without an end, or contradicts itself");
    }
    for (size_t i = 1; i < ends.size(); ++i) {
      if (!ends[i].any) changes_[schemas[i]].value = "false";
    }
    for (size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].any && !(ends[i].arrays && ends[i].objects)) LeaveOutKinds(*schemas[i], ends[i]);
    }
    return absl::OkStatus();
  }

  void LeaveOutKinds(const Json& schema, const SchemaEnds& ends) {
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
      changes_[type].value = left.dump();
      return;
    }
    // A keyword that makes them endless has no effect without them.
    for (const char* const keyword : {"minItems", "required", "minProperties"}) {
      if (ends.arrays && std::string_view(keyword) == "minItems") continue;
      const Json* const member = FindMember(schema, keyword);
      if (member == nullptr) continue;
      changes_[member].member = "\"type\":" + left.dump();
      return;
    }
  }

  absl::Status CheckFormat(const Place& place, const Json& value) {
    if (!value.is_string()) return Invalid(place, "format", "is not a string");
    const Json& schema = *place.schema;
    if (!AllowsType(schema, "string")) return absl::OkStatus();
    const std::string& format = value.get_ref<const std::string&>();
    switch (FormatSupportOf(format)) {
      case FormatSupport::kByLibrary:
        return absl::OkStatus();
      case FormatSupport::kAnnotation:
        changes_[&value].drop = true;
        return absl::OkStatus();
      case FormatSupport::kUnsupported:
        return Unsupported(place, "format", "\"" + format + "\" is not supported");
      case FormatSupport::kByPattern:
        break;
    }
    std::string members = "\"pattern\":" + Json(PatternOfFormat(format)).dump();
    const size_t max_length = MaxLengthOfFormat(format);
    if (max_length > 0) members += ",\"maxLength\":" + std::to_string(max_length);
    if (!FindMember(schema, "pattern") && !(max_length > 0 && FindMember(schema, "maxLength"))) {
      changes_[&value].member = members;
    } else if (!FindMember(schema, "allOf")) {
      changes_[&value].member = "\"allOf\":[{" + members + "}]";
    } else {
      return Unsupported(place, "format",
                         "cannot stand beside `allOf` and a `pattern` or `maxLength`");
    }
    return absl::OkStatus();
  }

  void Write(const Json& value, std::string_view members, std::string& out) const {
    if (value.is_array()) {
      std::string_view separator = "[";
      for (const Json& element : value) {
        out += separator;
        WriteValue(element, out);
        separator = ",";
      }
      out += value.empty() ? "[]" : "]";
    } else if (value.is_object()) {
      out += '{';
      const bool applicators_last = applicators_last_.contains(&value);
      bool is_first = true;
      for (const bool applicators : {false, true}) {
        for (const auto& [name, member] : value.get_ref<const Json::object_t&>()) {
          const bool comes_now =
              applicators_last ? Contains(kApplicators, name) == applicators : !applicators;
          if (comes_now) WriteMember(name, member, is_first, out);
        }
      }
      if (!is_first && !members.empty()) out += ',';
      out.append(members).append("}");
    } else {
      out += value.dump();
    }
  }

  void WriteMember(const std::string& name, const Json& value, bool& is_first,
                   std::string& out) const {
    const auto found = changes_.find(&value);
    const Change* change = found == changes_.end() ? nullptr : &found->second;
    if (change && change->drop) return;
    if (!is_first) out += ',';
    is_first = false;
    if (change && change->member) {
      out += *change->member;
      return;
    }
    out += change && change->name ? *change->name : Json(name).dump();
    out += ':';
    WriteValue(value, out);
  }

  void WriteValue(const Json& value, std::string& out) const {
    const auto change = changes_.find(&value);
    if (change != changes_.end() && change->second.value) {
      out += *change->second.value;
    } else {
      Write(value, {}, out);
    }
  }

  const Json& root_;
  const std::string& field_;
  // One of kDialects; empty if the schema names none of them.
  std::string_view dialect_;
  std::vector<Place> places_;
  // The schemas, by their index in places_.
  absl::flat_hash_map<const Json*, int> visited_;
  // The values of `$ref` and what they point to: null for anchors.
  absl::flat_hash_map<std::string, const Json*> references_;
  absl::flat_hash_map<const Json*, absl::flat_hash_map<std::string_view, const Json*>> indexes_;
  absl::flat_hash_map<const Json*, Change> changes_;
  absl::flat_hash_set<const Json*> applicators_last_;
  // In thousandths.
  std::vector<uint64_t> multiples_;
  // All bounds of numbers, in order.
  std::vector<double> minima_;
  std::vector<double> maxima_;
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
