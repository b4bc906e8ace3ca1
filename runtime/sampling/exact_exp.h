// Probabilities as integer weights, which are the same to the last bit on every processor and for
// every order of summation.
//
// A token whose logit lies `distance` below the greatest has the weight
//
//   round_down(2^40 * 2^-octaves),   octaves = distance * log2(e) / temperature,
//
// so the likeliest token weighs 2^40, and sums of up to 2^23 tokens fit exactly in 64 bits. Apart
// from the subtraction that gives `distance` and one multiplication, both IEEE F32 without anything
// that a compiler could contract, everything is integer arithmetic: no exp() is used, whose last
// bits would depend on a library. Plain constexpr functions, which device compilers accept too.
#ifndef ORCD_RUNTIME_SAMPLING_EXACT_EXP_H_
#define ORCD_RUNTIME_SAMPLING_EXACT_EXP_H_

#include <cstdint>

namespace orcd {

// The weight of the likeliest token.
inline constexpr uint64_t kWeightOne = uint64_t{1} << 40;

// Octaves are counted in units of 2^-25.
inline constexpr int kOctaveBits = 25;
// Octaves of every token that lies 64 octaves or more below the likeliest; its weight is 0.
inline constexpr uint32_t kOctavesFar = uint32_t{1} << 31;

// Octave units per unit of distance, at `temperature` > 0. Computed on the host, once a draw; a
// backend passes the result to its device.
constexpr float OctaveScale(float temperature) {
  constexpr double kLog2E = 1.44269504088896340736;
  constexpr double kMaxFloat = 3.40282346638528859812e38;
  const double scale = kLog2E * (uint32_t{1} << kOctaveBits) / temperature;
  return static_cast<float>(scale < kMaxFloat ? scale : kMaxFloat);
}

// Converts `distance` >= 0 (or infinite) to octave units, rounded down; kOctavesFar from 64 octaves
// on.
constexpr uint32_t Octaves(float distance, float scale) {
  const float units = distance * scale;
  return units < static_cast<float>(kOctavesFar) ? static_cast<uint32_t>(units) : kOctavesFar;
}

// kWeightOne * 2^-octaves, with a relative error below 2^-27 before it is rounded down to an
// integer. Monotonic: never increases with `octaves`.
constexpr uint64_t Weight(uint32_t octaves) {
  // 2^-f for the fraction f = x / 2^32: a minimax polynomial of degree 6, evaluated by Horner's
  // rule in units of 2^-31. The coefficients alternate in sign and decrease fast enough that no
  // difference is negative, so all values fit in 32 bits.
  constexpr uint32_t kCoefficients[] = {2147483648u, 1488521986u, 515877902u, 119165493u,
                                        20571132u,   2737501u,    234126u};
  const uint64_t x = static_cast<uint32_t>(octaves << (32 - kOctaveBits));
  uint32_t p = kCoefficients[6];
  for (int i = 5; i >= 0; --i) p = kCoefficients[i] - static_cast<uint32_t>(p * x >> 32);
  return octaves < kOctavesFar ? uint64_t{p} << 9 >> (octaves >> kOctaveBits) : 0;
}

// `total` * `fraction` / 2^64, rounded down: __umul64hi on a CUDA device.
constexpr uint64_t MultiplyHigh(uint64_t total, uint64_t fraction) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(total) * fraction >> 64);
}

// The least weight that is at least the share `probability`, in (0, 1), of `total`; at least 1.
constexpr uint64_t ShareOf(uint64_t total, float probability) {
  constexpr double kTwo64 = 18446744073709551616.0;
  const uint64_t fraction = static_cast<uint64_t>(static_cast<double>(probability) * kTwo64);
  const bool exact = total * fraction == 0 && fraction != 0;
  return MultiplyHigh(total, fraction) + (exact ? 0 : 1);
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_SAMPLING_EXACT_EXP_H_
