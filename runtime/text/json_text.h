// JSON as Python's json.dumps writes it, which is what templates put into prompts.
#ifndef ORCD_RUNTIME_TEXT_JSON_TEXT_H_
#define ORCD_RUNTIME_TEXT_JSON_TEXT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace orcd {

// Deeper objects and arrays are refused.
inline constexpr int kMaxJsonDepth = 128;

// `json`, one object, written as json.dumps(json.loads(json), ensure_ascii=False) writes it: keys
// in their order, ", " and ": " between, no escapes but the necessary ones, floats in the shortest
// form that reads back. kInvalidArgument, with what is wrong where, for what is no JSON object; for
// a key that an object has twice; for numbers past the range of a double.
absl::StatusOr<std::string> NormalizeJsonObject(std::string_view json);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_JSON_TEXT_H_
