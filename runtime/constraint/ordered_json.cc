#include "runtime/constraint/ordered_json.h"

#include "runtime/base/json_shape.h"
#include "runtime/constraint/rule_error.h"

namespace orcd {

absl::StatusOr<OrderedJson> ReadJson(const std::string& text, const std::string& field,
                                     int max_depth) {
  const JsonShape shape = ScanJson(text, max_depth);
  if (shape.too_deep) {
    return RuleTooLarge(field, "nests deeper than " + std::to_string(max_depth) + " levels");
  }
  if (shape.twice) return InvalidRule(field, "has the name \"" + *shape.twice + "\" twice");
  OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!shape.is_json || json.is_discarded()) {
    return InvalidRule(field, "is not JSON, or has a number that is too large for a double");
  }
  return json;
}

const OrderedJson* FindMember(const OrderedJson& value, std::string_view name) {
  if (!value.is_object()) return nullptr;
  for (const auto& [key, member] : value.get_ref<const OrderedJson::object_t&>()) {
    if (key == name) return &member;
  }
  return nullptr;
}

}  // namespace orcd
