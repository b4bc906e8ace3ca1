#include "cuda/expert_buffers.h"

#include <algorithm>

#include "cuda/kernels/common/activations.h"

namespace orcd::cuda {
namespace {

// The narrowest tiles are the most.
constexpr int kLeastTileRows = 32;

// Calls function(the layer's experts, and with a shared one that joins them) for layers that have
// some.
template <typename Function>
void ForEachExperts(const ModelSpec& spec, const DeviceWeights& weights, const Function& function) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const ExpertsSpec& experts = spec.layers[i].experts;
    // Plans of tests may have no weights.
    const bool joins = i < weights.layers().size() && weights.layers()[i].experts.shared_joins;
    if (experts.count > 0) function(experts, AllExperts(experts, joins));
  }
}

}  // namespace

int64_t ExpertBuffers::GatedBytes(const ModelSpec& spec, const DeviceWeights& weights, int tokens) {
  int64_t bytes = 0;
  ForEachExperts(spec, weights, [&](const ExpertsSpec&, const ExpertsSpec& all) {
    bytes = std::max(bytes, ActivationBytes(MaxExpertRows(all, tokens), all.ffn));
  });
  return bytes;
}

int64_t ExpertBuffers::RowBytes(const ModelSpec& spec, const DeviceWeights& weights, int tokens) {
  int64_t bytes = 0;
  ForEachExperts(spec, weights, [&](const ExpertsSpec&, const ExpertsSpec& all) {
    const int rows = MaxExpertRows(all, tokens);
    bytes = std::max({bytes, ActivationBytes(rows, spec.hidden),
                      int64_t{rows} * spec.hidden * int64_t{sizeof(float)}});
  });
  return bytes;
}

ExpertBuffers::ExpertBuffers(const ModelSpec& spec, const DeviceWeights& weights, int tokens,
                             uint8_t* rows, Carver& carver) {
  int64_t outputs = 0;
  int64_t choices = 0;
  int most_rows = 0;
  int most_tiles = 0;
  bool gates_shared = false;
  ForEachExperts(spec, weights, [&](const ExpertsSpec& routed, const ExpertsSpec& all) {
    outputs = std::max(outputs, int64_t{RouterOutputs(routed)});
    choices = std::max(choices, int64_t{tokens} * all.used);
    most_rows = std::max(most_rows, MaxExpertRows(all, tokens));
    most_tiles = std::max(most_tiles, MaxExpertTiles(all, tokens, kLeastTileRows));
    gates_shared |= RouterOutputs(all) > all.count;
  });
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
