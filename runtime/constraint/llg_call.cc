#include "runtime/constraint/llg_call.h"

#include "runtime/constraint/llg_library.h"

namespace orcd {
namespace {

LibraryStop StopOf(int32_t stop) {
  switch (stop) {
    case 0:
      return LibraryStop::kNone;
    case 1:
      return LibraryStop::kMemory;
    case 2:
      return LibraryStop::kAllMemory;
    default:
      return LibraryStop::kTime;
  }
}

}  // namespace

LlgUse CallLlg(const LlgBounds& bounds, absl::FunctionRef<void()> call) {
  // An infinite time is the largest number.
  orcd_llg_begin(bounds.bytes, bounds.held, absl::ToInt64Nanoseconds(bounds.time));
  call();
  const OrcdUse use = orcd_llg_end();
  return {.bytes = use.bytes, .stop = StopOf(use.stop)};
}

int64_t LlgHeldBytes() { return orcd_llg_held(); }

}  // namespace orcd
