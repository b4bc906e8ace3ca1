// A request on its way through the engine.
#ifndef ORCD_RUNTIME_ENGINE_SEQUENCE_H_
#define ORCD_RUNTIME_ENGINE_SEQUENCE_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/engine/block_pool.h"
#include "runtime/engine/output_text.h"
#include "runtime/engine/request.h"

namespace orcd {

// The scheduler's record of one request. Engine thread only.
//
// Positions [0, scheduled) of the sequence have been given to the backend. While a sequence
// decodes, the token at position `tokens.size()` may be drawn by a step that is still in flight.
struct Sequence {
  Sequence(GenerationRequest r, int64_t arrival_order)
      : request(std::move(r)),
        order(arrival_order),
        tokens(request.prompt),
        text(request.stop.strings) {}

  int prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  int generated() const { return static_cast<int>(tokens.size()) - prompt_tokens(); }

  GenerationRequest request;
  // Grows with each request; the smallest is the oldest.
  const int64_t order;
  // The prompt, then what was drawn and kept.
  std::vector<int32_t> tokens;
  OutputText text;
  // Tokens drawn, the one that ended the generation included.
  int drawn = 0;
  // Sorted ids that end the generation, and so are forbidden before min_tokens.
  std::vector<int32_t> end_ids;
  // New tokens at most, from max_tokens and the context.
  int max_new_tokens = 0;
  // What reaching max_new_tokens means.
  FinishReason limit_reason = FinishReason::kMaxTokens;

  // Only while it runs.
  std::optional<int32_t> slot;
  BlockList blocks;
  int scheduled = 0;
  // Steps in flight that this sequence is part of, and those of them that draw a token.
  int steps_in_flight = 0;
  int samples_in_flight = 0;
  // Ended while steps were in flight: their results are dropped, then the sequence goes.
  bool finished = false;

  // Left the queue once; it may be back there.
  bool admitted = false;
  absl::Time first_step = absl::InfinitePast();
  absl::Time first_token = absl::InfinitePast();
  absl::Time last_token = absl::InfinitePast();
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_SEQUENCE_H_
