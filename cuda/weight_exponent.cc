#include "cuda/weight_exponent.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/kernels/common/tile_format.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cuda {
namespace {

// Offset of d in a super-block, which dmin follows, and the range of its scales.
struct SuperBlock {
  int d;
  bool has_min;
  // The largest magnitude of a sub-block's scale.
  int largest_scale;
};

SuperBlock SuperBlockOf(TensorType type) {
  switch (type) {
    case TensorType::kQ2_K:
      return {.d = 80, .has_min = true, .largest_scale = 15};
    case TensorType::kQ3_K:
      return {.d = 108, .has_min = false, .largest_scale = 32};
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
      return {.d = 0, .has_min = true, .largest_scale = 63};
    case TensorType::kQ6_K:
      return {.d = 208, .has_min = false, .largest_scale = 128};
    default:
      return {};
  }
}

}  // namespace

int WeightExponent(TensorType type, const uint8_t* blocks, int64_t bytes) {
  const SuperBlock super = SuperBlockOf(type);
  if (super.largest_scale == 0) return 0;
  // F16 magnitudes are ordered as their bits are.
  int largest_d = 0;
  int largest_dmin = 0;
  const int block_bytes = static_cast<int>(GetTensorTypeInfo(type).block_bytes);
  for (const uint8_t* block = blocks; block < blocks + bytes; block += block_bytes) {
    uint16_t halves[2] = {};
    std::memcpy(halves, block + super.d, super.has_min ? 4 : 2);
    largest_d = std::max(largest_d, halves[0] & 0x7fff);
    largest_dmin = std::max(largest_dmin, halves[1] & 0x7fff);
  }
  const float scale = HalfToFloat(static_cast<uint16_t>(largest_d)) * super.largest_scale;
  const float min = HalfToFloat(static_cast<uint16_t>(largest_dmin)) * 0x1p-10f;
  const float largest = std::max(scale, min);
  if (largest == 0) return kLeastExponent;
  if (!std::isfinite(largest)) return kMostExponent;
  // largest = fraction * 2^power; the scaled value must be at most 65504 = kLargest * 2^16.
  constexpr float kLargest = 65504.0f / 65536;
  int power = 0;
  const float fraction = std::frexp(largest, &power);
  const int exponent = power + 24 - 16 + (fraction > kLargest ? 1 : 0);
  return std::clamp(exponent, kLeastExponent, kMostExponent);
}

}  // namespace orcd::cuda
