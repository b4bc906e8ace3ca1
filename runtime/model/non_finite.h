// Finds NaNs and infinities in tensors' bytes.
#ifndef ORCD_RUNTIME_MODEL_NON_FINITE_H_
#define ORCD_RUNTIME_MODEL_NON_FINITE_H_

#include <cstddef>
#include <cstdint>

#include "runtime/gguf/block_formats.h"

namespace orcd {

// The index of the first of `count` blocks (weights, for the plain types) at `blocks` that holds a
// NaN or an infinity; -1 if there is none. In quantised blocks only the scales can be NaN or
// infinite; those of MXFP4 from 253 on count as infinite, since a weight can then be; those of NVFP4
// never are. Any alignment.
int64_t FindNonFinite(TensorType type, const std::byte* blocks, int64_t count);

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_NON_FINITE_H_
