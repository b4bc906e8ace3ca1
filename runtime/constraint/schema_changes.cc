#include "runtime/constraint/schema_changes.h"

#include <algorithm>
#include <iterator>

namespace orcd {
namespace {

constexpr std::string_view kApplicators[] = {"$ref", "allOf", "anyOf", "const", "enum", "oneOf"};

}  // namespace

void SchemaChanges::OrderKeywords(const OrderedJson& schema) {
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

std::string SchemaChanges::Write(const OrderedJson& document, std::string_view members) const {
  std::string out;
  Write(document, members, out);
  return out;
}

const SchemaChange* SchemaChanges::Find(const OrderedJson& value) const {
  const auto found = changes_.find(&value);
  return found == changes_.end() ? nullptr : &found->second;
}

void SchemaChanges::Write(const OrderedJson& value, std::string_view members,
                          std::string& out) const {
  if (value.is_array()) {
    std::string_view separator = "[";
    for (const OrderedJson& element : value) {
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
      for (const auto& [name, member] : value.get_ref<const OrderedJson::object_t&>()) {
        const bool is_applicator =
            applicators_last && std::ranges::find(kApplicators, name) != std::end(kApplicators);
        if (is_applicator == applicators) WriteMember(name, member, is_first, out);
      }
    }
    if (!is_first && !members.empty()) out += ',';
    out.append(members).append("}");
  } else {
    out += value.dump();
  }
}

void SchemaChanges::WriteMember(const std::string& name, const OrderedJson& value, bool& is_first,
                                std::string& out) const {
  const SchemaChange* change = Find(value);
  const auto separate = [&] {
    if (!is_first) out += ',';
    is_first = false;
  };
  if (change && change->before) {
    separate();
    out += *change->before;
  }
  if (change && change->drop) return;
  separate();
  if (change && change->member) {
    out += *change->member;
    return;
  }
  out += change && change->name ? *change->name : OrderedJson(name).dump();
  out += ':';
  WriteValue(value, out);
}

void SchemaChanges::WriteValue(const OrderedJson& value, std::string& out) const {
  const SchemaChange* change = Find(value);
  if (change && change->value) {
    out += *change->value;
  } else {
    Write(value, {}, out);
  }
}

}  // namespace orcd
