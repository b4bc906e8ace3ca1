#include "cuda/predict_buffers.h"

#include "cuda/kernels/common/activations.h"

namespace orcd::cuda {

PredictBuffers::PredictBuffers(int hidden_size, int tokens, int seqs, Carver& carver)
    : hidden(carver.Take<float>(int64_t{tokens} * hidden_size)),
      of_slots(carver.Take<float>(int64_t{seqs} * hidden_size)),
      pairs(carver.Take<__half>(ActivationBytes(tokens, 2 * hidden_size) / 2)),
      tokens(carver.Take<TokenEntry>(seqs)),
      sequences(carver.Take<SequenceEntry>(seqs)),
      predicted(carver.Take<int32_t>(seqs)),
      not_finite(carver.Take<int32_t>(seqs)),
      no_marks(carver.Take<int32_t>(seqs)) {}

}  // namespace orcd::cuda
