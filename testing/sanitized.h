// Tells whether a sanitizer slows this build and swells its memory.
#ifndef ORCD_TESTING_SANITIZED_H_
#define ORCD_TESTING_SANITIZED_H_

#include "absl/base/config.h"

namespace orcd::testing {

#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace orcd::testing

#endif  // ORCD_TESTING_SANITIZED_H_
