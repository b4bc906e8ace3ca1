// A reference against which a backend is checked when it is loaded: the same layers, computed
// another way.
#ifndef ORCD_RUNTIME_BACKEND_LAYER_REFERENCE_H_
#define ORCD_RUNTIME_BACKEND_LAYER_REFERENCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "runtime/backend/backend.h"
#include "runtime/model/model.h"

namespace orcd {

// Computes single layers of a model, so that a check is short however many layers there are. One
// thread at a time.
class LayerReference {
 public:
  virtual ~LayerReference() = default;

  // Shows every activation of `layer` for one sequence's tokens at positions 0, 1, …. `input`,
  // [tokens, hidden], is the output of the layer before; if empty, the embeddings are the input and
  // are shown as well.
  virtual void RunLayer(std::span<const int32_t> tokens, int layer, std::span<const float> input,
                        ActivationTap& tap) = 0;

  // Shows kOutputNorm and kLogits for one row, [hidden], of the last layer's output.
  virtual void RunHead(std::span<const float> input, ActivationTap& tap) = 0;
};

// Makes a reference for at most `max_tokens` tokens a call, on `threads` threads; 0: one per core.
// `context` is the backend's, on which RopeScaling::kLong depends.
using LayerReferenceFactory = std::function<absl::StatusOr<std::unique_ptr<LayerReference>>(
    std::shared_ptr<const Model> model, int context, int max_tokens, int threads)>;

}  // namespace orcd

#endif  // ORCD_RUNTIME_BACKEND_LAYER_REFERENCE_H_
