#include "worker/stream/pending_deltas.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

#include "orcd/v1/worker.pb.h"

namespace orcd {
namespace {

size_t LogprobBytes(const SampledToken& token) {
  return sizeof(v1::TokenLogprobs) + token.top.size() * sizeof(v1::TopLogprob);
}

size_t LogprobBytes(const std::vector<SampledToken>& tokens) {
  size_t bytes = 0;
  for (const SampledToken& token : tokens) bytes += LogprobBytes(token);
  return bytes;
}

size_t EventBytes(const DeltaEvent& event) {
  return sizeof(DeltaEvent) + event.text.size() + event.tokens.size() * sizeof(int32_t) +
         LogprobBytes(event.logprobs) + LogprobBytes(event.prompt_logprobs);
}

template <typename T>
void MoveTo(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

template <typename T>
void MoveFront(std::vector<T>& from, std::vector<T>& to, size_t count) {
  const auto end = from.begin() + static_cast<std::ptrdiff_t>(count);
  to.assign(std::make_move_iterator(from.begin()), std::make_move_iterator(end));
  from.erase(from.begin(), end);
}

// Moves as many of the first elements as fit into `room`.
void TakeLogprobs(std::vector<SampledToken>& from, std::vector<SampledToken>& to, size_t& room) {
  size_t count = 0;
  while (count < from.size() && LogprobBytes(from[count]) <= room) {
    room -= LogprobBytes(from[count++]);
  }
  MoveFront(from, to, count);
}

// Returns the length of the longest prefix of `text`, which is UTF-8, that fits into `room` and
// ends between characters.
size_t WholeCharacters(const std::string& text, size_t room) {
  if (text.size() <= room) return text.size();
  while (room > 0 && (static_cast<unsigned char>(text[room]) & 0xC0) == 0x80) --room;
  return room;
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
  bytes_ -= sizeof(DeltaEvent);
  same->text += event.text;
  MoveTo(same->tokens, event.tokens);
  MoveTo(same->logprobs, event.logprobs);
  MoveTo(same->prompt_logprobs, event.prompt_logprobs);
}

DeltaEvent PendingDeltas::Pop(size_t max_bytes) {
  DeltaEvent& first = deltas_.front();
  if (EventBytes(first) - sizeof(DeltaEvent) <= max_bytes) return Pop();
  DeltaEvent piece;
  piece.sample = first.sample;
  size_t room = max_bytes;
  TakeLogprobs(first.prompt_logprobs, piece.prompt_logprobs, room);
  if (first.prompt_logprobs.empty()) {
    const size_t length = WholeCharacters(first.text, room);
    piece.text = first.text.substr(0, length);
    first.text.erase(0, length);
    room -= std::min(room, length);
  }
  if (first.text.empty() && first.prompt_logprobs.empty()) {
    const size_t tokens = first.tokens.size();
    if (first.logprobs.empty()) {
      MoveFront(first.tokens, piece.tokens, std::min(tokens, room / sizeof(int32_t)));
    } else {
      TakeLogprobs(first.logprobs, piece.logprobs, room);
      MoveFront(first.tokens, piece.tokens, std::min(tokens, piece.logprobs.size()));
    }
  }
  const size_t taken = EventBytes(piece);
  // Return at least something, however small the room is.
  if (taken == sizeof(DeltaEvent)) return Pop();
  bytes_ -= taken - sizeof(DeltaEvent);
  tokens_ -= static_cast<int64_t>(piece.tokens.size());
  return piece;
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
