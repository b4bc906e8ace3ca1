// Random numbers without state: a function of seed and position, so that a stream can be continued
// anywhere, in any batch, on any backend. Philox4x32-10 (Salmon et al., "Parallel random numbers:
// as easy as 1, 2, 3", SC 2011).
#ifndef ORCD_RUNTIME_SAMPLING_COUNTER_RNG_H_
#define ORCD_RUNTIME_SAMPLING_COUNTER_RNG_H_

#include <array>
#include <cstdint>

namespace orcd {

// The block of four words for `counter` under `key`.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Uniform in [0, 1), a multiple of 2^-24 and so exact in F32: the top 24 bits of the first word of
// the block with key = seed (low word first) and counter = {position low, position high, 0, 0}.
// `position` is the index in the whole sequence (prompt included) of the token being drawn.
float UniformAt(uint64_t seed, uint64_t position);

}  // namespace orcd

#endif  // ORCD_RUNTIME_SAMPLING_COUNTER_RNG_H_
