// The text of a JSON object's members.
#ifndef ORCD_WORKER_BASE_JSON_MEMBERS_H_
#define ORCD_WORKER_BASE_JSON_MEMBERS_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"

namespace orcd {

// Each member's name with the text of its value, without white space around it. A document that
// the library builds has members sorted by name; where their order means something, as in a JSON
// Schema, the text must be kept.
class JsonMembers {
 public:
  // `object` must be valid JSON and outlive this; if it is no object, it has no members. Takes time
  // linear in the text.
  explicit JsonMembers(std::string_view object);

  // Empty if there is no such member.
  std::string_view TextOf(const std::string& name) const {
    const auto member = texts_.find(name);
    return member == texts_.end() ? std::string_view() : member->second;
  }
  size_t size() const { return texts_.size(); }

 private:
  absl::flat_hash_map<std::string, std::string_view> texts_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_BASE_JSON_MEMBERS_H_
