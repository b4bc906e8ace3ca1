#include "runtime/backend/backend.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {

absl::Status CheckBackendOptions(const BackendOptions& options) {
  if (options.max_seqs < 1) {
    return InvalidField("max_seqs", absl::StrCat("is ", options.max_seqs, ", must be at least 1"));
  }
  if (options.max_step_tokens != 0 && options.max_step_tokens < options.max_seqs) {
    return InvalidField("max_step_tokens",
                        absl::StrCat("is ", options.max_step_tokens,
                                     ", must be 0 (chosen for you) or at least max_seqs, ",
                                     options.max_seqs, ", so that every sequence can advance"));
  }
  if (options.block_tokens < 1) {
    return InvalidField("block_tokens",
                        absl::StrCat("is ", options.block_tokens, ", must be at least 1"));
  }
  if (options.max_context < 0) {
    return InvalidField("max_context", absl::StrCat("is ", options.max_context,
                                                    ", must be 0 (the model's) or more"));
  }
  if (options.kv_cache_bytes < 0) {
    return InvalidField("kv_cache_bytes", absl::StrCat("is ", options.kv_cache_bytes,
                                                       ", must be 0 (chosen for you) or more"));
  }
  if (options.reserved_bytes < 0) {
    return InvalidField("reserved_bytes",
                        absl::StrCat("is ", options.reserved_bytes, ", must be 0 or more"));
  }
  if (!(options.kv_cache_fraction >= 0 && options.kv_cache_fraction <= 1)) {
    return InvalidField("kv_cache_fraction", absl::StrCat("is ", options.kv_cache_fraction,
                                                          ", must be 0 (chosen for you) to 1"));
  }
  return absl::OkStatus();
}

int ContextOf(const ModelSpec& spec, const BackendOptions& options) {
  if (options.max_context == 0) return spec.context_length;
  return std::min(spec.context_length, options.max_context);
}

}  // namespace orcd
