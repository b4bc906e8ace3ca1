// The number of cells for recurrent states that fit into the memory for them.
#ifndef ORCD_RUNTIME_BACKEND_STATE_CELLS_H_
#define ORCD_RUNTIME_BACKEND_STATE_CELLS_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "runtime/backend/backend.h"

namespace orcd {

// BackendInfo::state_cells for states of `cell_bytes` (0: the model has no recurrent layers), where
// the backend chooses `default_bytes` if the options do not say how many bytes the cells take.
inline int StateCells(const BackendOptions& options, int64_t cell_bytes, int64_t default_bytes) {
  if (cell_bytes == 0 || options.state_cache_bytes < 0) return 0;
  const int64_t bytes = options.state_cache_bytes > 0 ? options.state_cache_bytes
                                                      : std::max<int64_t>(default_bytes, 0);
  return static_cast<int>(
      std::min<int64_t>(bytes / cell_bytes, std::numeric_limits<int32_t>::max()));
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_BACKEND_STATE_CELLS_H_
