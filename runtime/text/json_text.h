// Writes JSON as Python's json.dumps does, since that is the form templates put into prompts.
#ifndef ORCD_RUNTIME_TEXT_JSON_TEXT_H_
#define ORCD_RUNTIME_TEXT_JSON_TEXT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace orcd {

// Deeper objects and arrays are refused.
inline constexpr int kMaxJsonDepth = 128;

// Rewrites `json`, one object, as json.dumps(json.loads(json), ensure_ascii=False) does: keys in
// their order, ", " and ": " as separators, only the necessary escapes, floats in the shortest form
// that reads back. kInvalidArgument, with what is wrong and where, if `json` is not a JSON object,
// an object has a key twice, or a number exceeds the range of a double.
absl::StatusOr<std::string> NormalizeJsonObject(std::string_view json);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_JSON_TEXT_H_
