#include "cuda/delta_buffers.h"

#include <algorithm>

#include "cuda/kernels/common/delta_net.h"

namespace orcd::cuda {

int64_t DraftFloats(const ModelSpec& spec) {
  int64_t floats = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.recurrent()) floats += DeltaDraftFloats(layer.delta);
  }
  return floats;
}

DeltaBuffers::DeltaBuffers(const ModelSpec& spec, int tokens, int max_drafts, uint8_t* rows,
                           Carver& carver) {
  if (!spec.recurrent()) return;
  Carver of_rows(rows);
  TakeRows(spec, tokens, of_rows);
  for (float*& of_step : drafts) of_step = carver.Take<float>(max_drafts * DraftFloats(spec));
}

int64_t DeltaBuffers::RowBytes(const ModelSpec& spec, int tokens) {
  Carver counter(nullptr);
  DeltaBuffers().TakeRows(spec, tokens, counter);
  return static_cast<int64_t>(counter.taken());
}

void DeltaBuffers::TakeRows(const ModelSpec& spec, int tokens, Carver& carver) {
  int64_t channels = 0;
  int64_t heads = 0;
  int64_t values = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.recurrent()) continue;
    channels = std::max(channels, int64_t{layer.delta.channels()});
    heads = std::max(heads, int64_t{layer.delta.value_heads});
    values = std::max(values, int64_t{layer.delta.value_size()});
  }
  convolved = carver.Take<float>(tokens * channels);
  factors = carver.Take<float>(tokens * 2 * heads);
  o = carver.Take<float>(tokens * values);
}

}  // namespace orcd::cuda
