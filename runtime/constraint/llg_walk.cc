#include "runtime/constraint/llg_walk.h"

#include <cstdint>
#include <vector>

#include "runtime/sampling/token_mask.h"

namespace orcd {
namespace {

constexpr int kMasks = 12;
// Every sequence has a copy of the states.
constexpr int64_t kMostMemory = 512 << 10;
// Forced tokens cost no masks.
constexpr size_t kMostForced = 256;

// The token to go on with; -1 if the output may only end.
int32_t Choose(const LlgVocabulary& vocabulary, const std::vector<uint32_t>& words) {
  const TokenMask mask = {words};
  for (const int32_t token : vocabulary.short_ways()) {
    if (mask.Allows(token)) return token;
  }
  const Tokenizer& tokenizer = vocabulary.tokenizer();
  for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
    if (mask.Allows(token) && !tokenizer.IsEog(token)) return token;
  }
  return -1;
}

}  // namespace

LlgWalk WalkAhead(const LlgVocabulary& vocabulary, LlgState& state) {
  LlgWalk walk;
  std::vector<uint32_t> words;
  std::vector<int32_t> forced;
  const int64_t bytes_before = state.bytes();
  while (walk.masks < kMasks && state.bytes() - bytes_before < kMostMemory) {
    if (walk.masks > 0 && state.IsStopped()) return walk;
    if (!state.ComputeForced(forced)) return walk;
    if (walk.masks > 0 && forced.size() > kMostForced) return walk;
    for (const int32_t token : forced) {
      if (!state.Accept(token)) return walk;
      ++walk.tokens;
    }
    if (!state.ComputeMask(words)) return walk;
    ++walk.masks;
    if (state.IsStopped()) return walk;
    const int32_t token = Choose(vocabulary, words);
    if (token < 0 || !state.Accept(token)) return walk;
    ++walk.tokens;
  }
  return walk;
}

}  // namespace orcd
