// The constraint library's errors in our words: one line of UTF-8 that names the keyword at fault.
#ifndef ORCD_RUNTIME_CONSTRAINT_LIBRARY_ERROR_H_
#define ORCD_RUNTIME_CONSTRAINT_LIBRARY_ERROR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/constraint/constraint_spec.h"

namespace orcd {

// The bound of a library's call that stopped it.
enum class LibraryStop {
  kNone,
  // On the memory of the rule or of the sequence.
  kMemory,
  // On the memory of all rules and sequences.
  kAllMemory,
  // On the processor time of a compilation.
  kTime,
};

struct LibraryError {
  LibraryStop stop = LibraryStop::kNone;
  // The bounds that the call had.
  int64_t most_bytes = 0;
  int64_t most_held = 0;
  absl::Duration most_time = absl::InfiniteDuration();
  // The library's text, which may have any bytes and lines. Without meaning if the call was
  // stopped.
  std::string text = {};
};

// The error of a rule's compilation: kInvalidArgument with the reason CONSTRAINT_INVALID,
// CONSTRAINT_UNSUPPORTED, CONSTRAINT_UNSATISFIABLE or CONSTRAINT_TOO_LARGE and with the JSON
// pointers of the keywords that the library means; kResourceExhausted CONSTRAINT_LIMIT if other
// constraints hold the memory.
absl::Status RefusalOf(const ConstraintSpec& spec, const LibraryError& error);

// The error of a rule in use that allows no token after `tokens` tokens, nor the end:
// kInvalidArgument CONSTRAINT_FAILED.
absl::Status DeadEnd(std::string_view field, size_t tokens);

// The error of a rule in use, of the request's field `field`, after `tokens` tokens.
// CONSTRAINT_FAILED: kResourceExhausted if the rule takes more than one step may, kInvalidArgument
// if a token breaks it, nothing can follow, or a client's grammar cannot be applied, else
// kInternal. CONSTRAINT_LIMIT if other constraints hold the memory.
absl::Status FailureOf(std::string_view field, size_t tokens, const LibraryError& error);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_LIBRARY_ERROR_H_
