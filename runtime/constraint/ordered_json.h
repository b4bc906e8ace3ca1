// JSON whose members keep their order, which decides the order in which properties are generated.
#ifndef ORCD_RUNTIME_CONSTRAINT_ORDERED_JSON_H_
#define ORCD_RUNTIME_CONSTRAINT_ORDERED_JSON_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace orcd {

// Members in the text's order. Parsing appends a member without looking for its name, which would
// take quadratic time: ReadJson refuses names that occur twice.
template <class Key, class T, class Less, class Allocator>
struct MemberList : nlohmann::ordered_map<Key, T, Less, Allocator> {
  using Base = nlohmann::ordered_map<Key, T, Less, Allocator>;
  using Base::Base;
  T& operator[](const Key& key) {
    Base::Container::emplace_back(key, T());
    return this->back().second;
  }
};

using OrderedJson = nlohmann::basic_json<MemberList>;

// Parses a text that may be hostile, in linear time. Errors: reason CONSTRAINT_INVALID if it is no
// JSON or has a name twice in one object, CONSTRAINT_TOO_LARGE if it nests deeper than `max_depth`.
absl::StatusOr<OrderedJson> ReadJson(const std::string& text, const std::string& field,
                                     int max_depth);

// The member of that name; null if `value` is no object or has no such member. Takes linear time.
const OrderedJson* FindMember(const OrderedJson& value, std::string_view name);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_ORDERED_JSON_H_
