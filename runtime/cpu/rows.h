// Views of a step's intermediate results, which are row-major with a row for each token.
#ifndef ORCD_RUNTIME_CPU_ROWS_H_
#define ORCD_RUNTIME_CPU_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/backend/backend.h"

namespace orcd::cpu {

inline std::span<float> Row(float* rows, int64_t row, int64_t cols) {
  return {rows + row * cols, static_cast<size_t>(cols)};
}
inline std::span<const float> Row(const float* rows, int64_t row, int64_t cols) {
  return {rows + row * cols, static_cast<size_t>(cols)};
}

// Shows values to a tap, which may be null.
inline void Tap(ActivationTap* tap, TapPoint point, int layer, const float* values, int64_t rows,
                int64_t cols) {
  if (tap == nullptr) return;
  tap->OnActivation(point, layer, {values, static_cast<size_t>(rows * cols)}, rows, cols);
}

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_ROWS_H_
