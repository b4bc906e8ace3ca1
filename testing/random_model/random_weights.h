// Random weights in any tensor type: well-formed blocks with a given standard deviation.
#ifndef ORCD_TESTING_RANDOM_MODEL_RANDOM_WEIGHTS_H_
#define ORCD_TESTING_RANDOM_MODEL_RANDOM_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/gguf/block_formats.h"

namespace orcd {

// xoshiro256++ by D. Blackman and S. Vigna, seeded through SplitMix64.
class Random {
 public:
  // Streams with different (seed, name, index) are independent of each other.
  Random(uint64_t seed, std::string_view name, uint64_t index);

  uint64_t Next();
  void Fill(std::span<std::byte> bytes);
  // Uniform in [low, high).
  float Uniform(float low, float high);
  // Approximately normal: mean 0, standard deviation 1, within ±3.5.
  float Normal();

 private:
  uint64_t state_[4];
};

// Fills `row`, whole blocks of `type`, with weights of mean about 0 and standard deviation about
// `sigma` (positive, at most 1). No weight and no scale is NaN or infinite.
void FillRandomWeights(TensorType type, float sigma, Random& random, std::span<std::byte> row);

}  // namespace orcd

#endif  // ORCD_TESTING_RANDOM_MODEL_RANDOM_WEIGHTS_H_
