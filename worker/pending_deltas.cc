#include "worker/pending_deltas.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "orcd/v1/worker.pb.h"

namespace orcd {
namespace {

size_t LogprobBytes(const std::vector<SampledToken>& tokens) {
  size_t bytes = 0;
  for (const SampledToken& token : tokens) {
    bytes += sizeof(v1::TokenLogprobs) + token.top.size() * sizeof(v1::TopLogprob);
  }
  return bytes;
}

size_t EventBytes(const DeltaEvent& event) {
  return event.text.size() + event.tokens.size() * sizeof(int32_t) + LogprobBytes(event.logprobs) +
         LogprobBytes(event.prompt_logprobs);
}

template <typename T>
void MoveTo(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

void PendingDeltas::Add(DeltaEvent event) {
  bytes_ += EventBytes(event);
  tokens_ += static_cast<int64_t>(event.tokens.size());
  const auto same = std::find_if(deltas_.begin(), deltas_.end(), [&](const DeltaEvent& delta) {
    return delta.sample == event.sample;
  });
  if (same == deltas_.end()) {
    deltas_.push_back(std::move(event));
    return;
  }
  same->text += event.text;
  MoveTo(same->tokens, event.tokens);
  MoveTo(same->logprobs, event.logprobs);
  MoveTo(same->prompt_logprobs, event.prompt_logprobs);
}

DeltaEvent PendingDeltas::Pop() {
  DeltaEvent delta = std::move(deltas_.front());
  deltas_.erase(deltas_.begin());
  bytes_ -= EventBytes(delta);
  tokens_ -= static_cast<int64_t>(delta.tokens.size());
  return delta;
}

void PendingDeltas::Clear() {
  deltas_.clear();
  bytes_ = 0;
  tokens_ = 0;
}

}  // namespace orcd
