#include "cuda/expert_buffers.h"

#include <algorithm>

#include "cuda/kernels/common/activations.h"

namespace orcd::cuda {
namespace {

// The narrowest tiles are the most.
constexpr int kLeastTileRows = 32;

// The experts of which there are most.
ExpertsSpec Most(const ExpertsSpec& spec) { return SharedMayJoin(spec) ? WithShared(spec) : spec; }

}  // namespace

int64_t ExpertBuffers::GatedBytes(const ModelSpec& spec, int tokens) {
  int64_t bytes = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.experts.count == 0) continue;
    const int rows = MaxExpertRows(Most(layer.experts), tokens);
    bytes = std::max(bytes, ActivationBytes(rows, layer.experts.ffn));
  }
  return bytes;
}

int64_t ExpertBuffers::RowBytes(const ModelSpec& spec, int tokens) {
  int64_t bytes = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.experts.count == 0) continue;
    const int rows = MaxExpertRows(Most(layer.experts), tokens);
    bytes = std::max({bytes, ActivationBytes(rows, spec.hidden),
                      int64_t{rows} * spec.hidden * int64_t{sizeof(float)}});
  }
  return bytes;
}

ExpertBuffers::ExpertBuffers(const ModelSpec& spec, int tokens, uint8_t* rows, Carver& carver) {
  int64_t outputs = 0;
  int64_t choices = 0;
  int most_rows = 0;
  int most_tiles = 0;
  bool gates_shared = false;
  for (const LayerSpec& layer : spec.layers) {
    const ExpertsSpec& experts = layer.experts;
    if (experts.count == 0) continue;
    outputs = std::max(outputs, int64_t{RouterOutputs(experts)});
    const ExpertsSpec most = Most(experts);
    choices = std::max(choices, int64_t{tokens} * most.used);
    most_rows = std::max(most_rows, MaxExpertRows(most, tokens));
    most_tiles = std::max(most_tiles, MaxExpertTiles(most, tokens, kLeastTileRows));
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
  tables.tokens = carver.Take<int32_t>(most_rows);
  tables.tiles = carver.Take<ExpertTile>(most_tiles);
  // The product of gate and up has read the inputs when y is written.
  inputs = reinterpret_cast<__half*>(rows);
  y = reinterpret_cast<float*>(rows);
  load = carver.Take<ExpertLoad>(1);
  passed = carver.Take<uint64_t>(1 + outputs);
}

}  // namespace orcd::cuda
