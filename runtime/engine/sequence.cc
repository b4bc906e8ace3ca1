#include "runtime/engine/sequence.h"

namespace orcd {
namespace {

SamplingParams ParamsOf(const GenerationRequest& request, int sample) {
  SamplingParams params = request.sampling;
  params.seed += static_cast<uint64_t>(sample);
  return params;
}

}  // namespace

Sequence::Sequence(std::shared_ptr<LiveRequest> request, int sample_index, int64_t arrival_order)
    : live(std::move(request)),
      sample(sample_index),
      order(arrival_order),
      sampling(ParamsOf(live->request, sample_index)),
      tokens(live->request.prompt),
      text(live->request.stop.strings, live->request.stop.min_tokens),
      drawn(static_cast<int>(live->request.resume.size())) {
  tokens.insert(tokens.end(), live->request.resume.begin(), live->request.resume.end());
}

}  // namespace orcd
