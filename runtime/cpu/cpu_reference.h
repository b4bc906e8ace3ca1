// Computes layers of a model on the CPU, one at a time, as the reference for other backends.
#ifndef ORCD_RUNTIME_CPU_CPU_REFERENCE_H_
#define ORCD_RUNTIME_CPU_CPU_REFERENCE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/backend/layer_reference.h"
#include "runtime/model/model.h"

namespace orcd {

// A LayerReferenceFactory: activations in F32, keys and values in F16. Takes memory for
// `max_tokens` tokens and no copy of the weights.
absl::StatusOr<std::unique_ptr<LayerReference>> CreateCpuReference(
    std::shared_ptr<const Model> model, int context, int max_tokens, int threads);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CPU_CPU_REFERENCE_H_
