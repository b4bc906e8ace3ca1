#include "cuda/state_layout.h"

#include <algorithm>

#include "cuda/kernels/common/delta_net.h"

namespace orcd::cuda {

std::vector<float> FromDeviceState(const ModelSpec& spec, std::span<const float> state,
                                   int64_t tokens) {
  std::vector<float> floats;
  if (tokens == 0) {
    floats.resize(spec.state_floats());
    return floats;
  }
  floats.reserve(spec.state_floats());
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.recurrent()) continue;
    const DeltaNetSpec& delta = layer.delta;
    const int64_t channels = delta.channels();
    for (int64_t position = tokens - delta.conv + 1; position < tokens; ++position) {
      if (position < 0) {
        floats.resize(floats.size() + channels);
        continue;
      }
      const auto row = state.subspan(position % delta.conv * channels, channels);
      floats.insert(floats.end(), row.begin(), row.end());
    }
    const int64_t size = delta.head_dim;
    for (int64_t head = 0; head < delta.value_heads; ++head) {
      const auto matrix = state.subspan(delta.conv * channels + head * size * size, size * size);
      for (int64_t key = 0; key < size; ++key) {
        for (int64_t value = 0; value < size; ++value) {
          floats.push_back(matrix[value * size + key]);
        }
      }
    }
    state = state.subspan(DeltaStateFloats(delta));
  }
  return floats;
}

}  // namespace orcd::cuda
