#include "runtime/engine/request.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {

absl::Status StopConditions::Validate(int vocab, const RequestFields& fields) const {
  if (strings.size() > kMaxStopStrings) {
    return InvalidField(fields.stop_strings,
                        absl::StrCat(strings.size(), " stop strings; at most ", kMaxStopStrings));
  }
  for (size_t i = 0; i < strings.size(); ++i) {
    if (strings[i].empty() || strings[i].size() > kMaxStopStringBytes) {
      return InvalidField(absl::StrCat(fields.stop_strings, "[", i, "]"),
                          absl::StrCat("has ", strings[i].size(), " bytes; 1 to ",
                                       kMaxStopStringBytes, " are allowed"));
    }
  }
  if (ids.size() > kMaxStopIds) {
    return InvalidField(fields.stop_ids,
                        absl::StrCat(ids.size(), " stop ids; at most ", kMaxStopIds));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      return InvalidField(absl::StrCat(fields.stop_ids, "[", i, "]"),
                          absl::StrCat(static_cast<uint32_t>(ids[i]),
                                       " is outside the vocabulary of ", vocab, " tokens"));
    }
  }
  if (min_tokens < 0) {
    return InvalidField(fields.min_tokens, absl::StrCat(min_tokens, "; must not be negative"));
  }
  if (max_tokens < 0) {
    return InvalidField(fields.max_tokens, absl::StrCat(max_tokens, "; must be 1 or more"));
  }
  if (max_tokens > 0 && min_tokens > max_tokens) {
    return InvalidField(fields.min_tokens,
                        absl::StrCat(min_tokens, " is more than max_tokens, ", max_tokens));
  }
  return absl::OkStatus();
}

}  // namespace orcd
