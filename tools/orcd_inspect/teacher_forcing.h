// Runs given tokens through a backend, regardless of the model's own predictions.
#ifndef ORCD_TOOLS_ORCD_INSPECT_TEACHER_FORCING_H_
#define ORCD_TOOLS_ORCD_INSPECT_TEACHER_FORCING_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/backend/backend.h"
#include "runtime/model/spec.h"

namespace orcd {

// Reads whitespace-separated ids from a file. kInvalidArgument for anything else in the file, for
// an id outside the vocabulary, for no ids, and for more ids than the model has positions.
absl::StatusOr<std::vector<int32_t>> ReadTokens(const std::string& path, const ModelSpec& spec);

// Backend options for one sequence of `tokens` tokens, with `step_tokens` tokens per step. The
// context is no longer than the tokens.
BackendOptions TeacherForcingOptions(int64_t tokens, int step_tokens, KvType kv_type,
                                     const ModelSpec& spec);

// Runs tokens[first, first + count) of a sequence whose earlier tokens have been run. The tap sees
// one row per token.
absl::Status RunTokens(Backend& backend, std::span<const int32_t> tokens, int64_t first,
                       int64_t count, ActivationTap& tap);

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_TEACHER_FORCING_H_
