#include "cuda/weight_exponent.h"

#include <algorithm>
#include <cmath>

#include "cuda/kernels/common/tile_format.h"
#include "runtime/gguf/blocks.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cuda {
namespace {

template <typename B>
int ExponentOf(const uint8_t* blocks, int64_t bytes) {
  // The largest magnitudes of d and dmin; those of F16 are ordered as their bits are.
  int halves[2] = {};
  for (const uint8_t* block = blocks; block < blocks + bytes; block += B::kBytes) {
    for (int i = 0; i < B::kHalves; ++i) {
      halves[i] = std::max(halves[i], B::Half(block, i) & 0x7fff);
    }
  }
  const float scale = HalfToFloat(static_cast<uint16_t>(halves[0])) * (B::kLargestScale * B::kUnit);
  const float min = HalfToFloat(static_cast<uint16_t>(halves[1])) * 0x1p-10f;
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

int ExponentOfMxfp4(const uint8_t* blocks, int64_t bytes) {
  using B = Block<TensorType::kMXFP4>;
  int most = 0;
  for (const uint8_t* block = blocks; block < blocks + bytes; block += B::kBytes) {
    most = std::max<int>(most, block[0]);
  }
  return std::max(0, most - kMostE8m0);
}

}  // namespace

int WeightExponent(TensorType type, const uint8_t* blocks, int64_t bytes) {
  if (type == TensorType::kMXFP4) return ExponentOfMxfp4(blocks, bytes);
  if (!HasSuperBlocks(FormatFor(type))) return 0;
  int exponent = 0;
  VisitType(type, [&]<typename B>(B) {
    if constexpr (B::kWeights == 256) exponent = ExponentOf<B>(blocks, bytes);
  });
  return exponent;
}

}  // namespace orcd::cuda
