#include "cuda/expert_buffers.h"

#include <algorithm>

#include "cuda/kernels/common/activations.h"

namespace orcd::cuda {
namespace {

// The narrowest tiles are the most.
constexpr int kLeastTileRows = 32;

}  // namespace

int64_t ExpertBuffers::GatedBytes(const ModelSpec& spec, int tokens) {
  int64_t bytes = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.experts.count == 0) continue;
    bytes =
        std::max(bytes, ActivationBytes(MaxExpertRows(layer.experts, tokens), layer.experts.ffn));
  }
  return bytes;
}

ExpertBuffers::ExpertBuffers(const ModelSpec& spec, int tokens, Carver& carver) {
  int64_t outputs = 0;
  int64_t choices = 0;
  int rows = 0;
  int most_tiles = 0;
  bool gates_shared = false;
  for (const LayerSpec& layer : spec.layers) {
    const ExpertsSpec& experts = layer.experts;
    if (experts.count == 0) continue;
    outputs = std::max(outputs, int64_t{RouterOutputs(experts)});
    choices = std::max(choices, int64_t{tokens} * experts.used);
    rows = std::max(rows, MaxExpertRows(experts, tokens));
    most_tiles = std::max(most_tiles, MaxExpertTiles(experts, tokens, kLeastTileRows));
    gates_shared |= RouterOutputs(experts) > experts.count;
  }
  if (outputs == 0) return;
  x = carver.Take<float>(int64_t{tokens} * spec.hidden);
  // The router has read x when the outputs are summed.
  out = x;
  logits = carver.Take<float>(int64_t{tokens} * outputs);
  tables.chosen = carver.Take<int32_t>(choices);
  tables.weights = carver.Take<float>(choices);
  if (gates_shared) tables.shared_weights = carver.Take<float>(tokens);
  tables.rows = carver.Take<int32_t>(choices);
  tables.tokens = carver.Take<int32_t>(rows);
  tables.tiles = carver.Take<ExpertTile>(most_tiles);
  // The product of gate and up has read the inputs when y is written.
  y = carver.Take<float>(
      std::max(int64_t{rows} * spec.hidden,
               (ActivationBytes(rows, spec.hidden) + 3) / int64_t{sizeof(float)}));
  inputs = reinterpret_cast<__half*>(y);
  load = carver.Take<ExpertLoad>(1);
}

}  // namespace orcd::cuda
