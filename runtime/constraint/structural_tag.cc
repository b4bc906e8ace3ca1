#include "runtime/constraint/structural_tag.h"

#include <cstddef>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/constraint/ordered_json.h"
#include "runtime/constraint/rule_error.h"

namespace orcd {
namespace {

using Json = OrderedJson;

// Far more than any limit on rules allows.
constexpr size_t kMaxBytes = 8 << 20;
// The deepest JSON that a schema's own check could accept, and the levels around it.
constexpr int kMaxDepth = 128;

class Reader {
 public:
  explicit Reader(const std::string& field) : field_(field) {}

  absl::StatusOr<StructuralTagRule> Read(const Json& json) {
    if (const Json* structures = FindMember(json, "structures")) {
      ORCD_RETURN_IF_ERROR(ReadList(*structures, "/structures", &Reader::ReadStructure));
      ORCD_RETURN_IF_ERROR(ReadTriggers(json, ""));
      return std::move(rule_);
    }
    const Json* format = FindMember(json, "format");
    if (!format || !format->is_object()) {
      return InvalidRule(field_, "has neither `structures` nor an object `format`");
    }
    ORCD_RETURN_IF_ERROR(ExpectType(*format, "/format", "triggered_tags"));
    if (const Json* excludes = FindMember(*format, "excludes");
        excludes && !excludes->is_null() && !excludes->empty()) {
      return UnsupportedRule(field_, "/format/excludes: is not supported");
    }
    const Json* tags = FindMember(*format, "tags");
    if (!tags) return InvalidRule(field_, "/format: has no `tags`");
    ORCD_RETURN_IF_ERROR(ReadList(*tags, "/format/tags", &Reader::ReadTag));
    ORCD_RETURN_IF_ERROR(ReadTriggers(*format, "/format"));
    ORCD_RETURN_IF_ERROR(ReadFlag(*format, "at_least_one", rule_.at_least_one));
    ORCD_RETURN_IF_ERROR(ReadFlag(*format, "stop_after_first", rule_.stop_after_first));
    return std::move(rule_);
  }

 private:
  absl::Status Invalid(const std::string& pointer, std::string_view what) const {
    return InvalidRule(field_, pointer + ": " + std::string(what));
  }

  absl::Status ExpectType(const Json& format, const std::string& pointer,
                          std::string_view expected) const {
    const Json* type = FindMember(format, "type");
    if (!type || !type->is_string()) return Invalid(pointer, "has no string `type`");
    const std::string& name = type->get_ref<const std::string&>();
    if (name == expected) return absl::OkStatus();
    return UnsupportedRule(field_, pointer + "/type: \"" + name + "\" is not supported, only \"" +
                                       std::string(expected) + "\"");
  }

  absl::Status ReadList(const Json& list, const std::string& pointer,
                        absl::Status (Reader::*read)(const Json&, const std::string&)) {
    if (!list.is_array()) return Invalid(pointer, "is not a list");
    for (size_t i = 0; i < list.size(); ++i) {
      ORCD_RETURN_IF_ERROR((this->*read)(list[i], pointer + "/" + std::to_string(i)));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTriggers(const Json& format, const std::string& pointer) {
    const Json* triggers = FindMember(format, "triggers");
    if (!triggers) return Invalid(pointer + "/triggers", "is missing");
    return ReadList(*triggers, pointer + "/triggers", &Reader::ReadTrigger);
  }
  absl::Status ReadTrigger(const Json& trigger, const std::string& pointer) {
    if (!trigger.is_string()) return Invalid(pointer, "is not a string");
    rule_.triggers.push_back(trigger.get<std::string>());
    return absl::OkStatus();
  }

  absl::Status ReadFlag(const Json& format, const std::string& name, bool& flag) const {
    const Json* value = FindMember(format, name);
    if (!value || value->is_null()) return absl::OkStatus();
    if (!value->is_boolean()) return Invalid("/format/" + name, "is not a boolean");
    flag = value->get<bool>();
    return absl::OkStatus();
  }

  absl::Status ReadString(const Json& tag, const std::string& pointer, const std::string& name,
                          std::string& text) const {
    const Json* value = FindMember(tag, name);
    // A list of texts, of which one is enough, has a counterpart if it has one.
    if (value && value->is_array() && value->size() == 1) value = &value->front();
    if (value && value->is_array()) {
      return UnsupportedRule(field_, pointer + "/" + name + ": only one text is supported");
    }
    if (!value || !value->is_string()) return Invalid(pointer + "/" + name, "is not a string");
    text = value->get<std::string>();
    return absl::OkStatus();
  }

  absl::Status ReadSchema(const Json* schema, const std::string& pointer, std::string& text) const {
    if (!schema) return Invalid(pointer, "is missing");
    // Some clients send the schema as text.
    text = schema->is_string() ? schema->get<std::string>() : schema->dump();
    return absl::OkStatus();
  }

  absl::Status ReadStructure(const Json& structure, const std::string& pointer) {
    StructuralTagRule::Tag tag;
    ORCD_RETURN_IF_ERROR(ReadString(structure, pointer, "begin", tag.begin));
    ORCD_RETURN_IF_ERROR(ReadString(structure, pointer, "end", tag.end));
    ORCD_RETURN_IF_ERROR(
        ReadSchema(FindMember(structure, "schema"), pointer + "/schema", tag.schema));
    rule_.tags.push_back(std::move(tag));
    return absl::OkStatus();
  }

  absl::Status ReadTag(const Json& format, const std::string& pointer) {
    if (FindMember(format, "type")) {
      ORCD_RETURN_IF_ERROR(ExpectType(format, pointer, "tag"));
    }
    const std::string content_pointer = pointer + "/content";
    const Json* content = FindMember(format, "content");
    if (!content) return Invalid(content_pointer, "is missing");
    ORCD_RETURN_IF_ERROR(ExpectType(*content, content_pointer, "json_schema"));
    if (const Json* style = FindMember(*content, "style"); style && *style != "json") {
      return UnsupportedRule(field_, content_pointer + "/style: only \"json\" is supported");
    }
    StructuralTagRule::Tag tag;
    ORCD_RETURN_IF_ERROR(ReadString(format, pointer, "begin", tag.begin));
    ORCD_RETURN_IF_ERROR(ReadString(format, pointer, "end", tag.end));
    ORCD_RETURN_IF_ERROR(ReadSchema(FindMember(*content, "json_schema"),
                                    content_pointer + "/json_schema", tag.schema));
    rule_.tags.push_back(std::move(tag));
    return absl::OkStatus();
  }

  const std::string& field_;
  StructuralTagRule rule_;
};

}  // namespace

absl::StatusOr<StructuralTagRule> ParseStructuralTag(const std::string& json,
                                                     const std::string& field) {
  if (json.size() > kMaxBytes) {
    return RuleTooLarge(field, "has more than " + std::to_string(kMaxBytes) + " bytes");
  }
  ORCD_ASSIGN_OR_RETURN(const Json document, ReadJson(json, field, kMaxDepth));
  return Reader(field).Read(document);
}

}  // namespace orcd
