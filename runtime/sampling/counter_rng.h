// Stateless random numbers: a function of seed and position, so that a stream can be continued at
// any position, in any batch, on any backend. Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). Plain constexpr functions, which device compilers accept
// too.
#ifndef ORCD_RUNTIME_SAMPLING_COUNTER_RNG_H_
#define ORCD_RUNTIME_SAMPLING_COUNTER_RNG_H_

#include <cstdint>

namespace orcd {

// Four words: a counter, or the random block generated from one.
struct PhiloxBlock {
  uint32_t words[4];
};

// The block for `counter` under the key {key0, key1}.
constexpr PhiloxBlock Philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter.words[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter.words[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.words[1] ^ key0,
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.words[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// 64 uniform random bits for the token at `position`, its index in the whole sequence (prompt
// included): the first two words (the first one high) of the block with counter {position low,
// position high, 0, 0} and key {seed low, seed high}.
constexpr uint64_t RandomBitsAt(uint64_t seed, uint64_t position) {
  const PhiloxBlock block =
      Philox4x32({{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0}},
                 static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return uint64_t{block.words[0]} << 32 | block.words[1];
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_SAMPLING_COUNTER_RNG_H_
