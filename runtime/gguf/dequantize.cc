#include "runtime/gguf/dequantize.h"

#include <bit>
#include <cstring>

#include "runtime/gguf/blocks.h"

namespace orcd {
namespace {

// Blocks and plain weights are read in the byte order of the file.
static_assert(std::endian::native == std::endian::little);

// Branch-free, so that the compiler vectorises loops over it.
inline float HalfBitsToFloat(uint32_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = (half & 0x7fffu) << 13;
  // Rebiases the exponent from 15 to 127; normalises subnormals on the way, exactly.
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u;
  const uint32_t is_special = 0u - static_cast<uint32_t>(magnitude >= (0x7c00u << 13));
  return std::bit_cast<float>(sign | (finite & ~is_special) | (special & is_special));
}

template <typename B>
float FactorOf(const uint8_t* block) {
  if constexpr (B::kHalves > 0) {
    return HalfBitsToFloat(B::Half(block, 0));
  } else {
    return std::bit_cast<float>(B::SingleBits(block));
  }
}

template <TensorType kType>
void DequantizeBlock(const uint8_t* block, float* __restrict dst) {
  using B = Block<kType>;
  if constexpr (kType == TensorType::kF32) {
    std::memcpy(dst, block, sizeof(*dst));
  } else if constexpr (kType == TensorType::kF16) {
    *dst = HalfBitsToFloat(LoadHalfBits(block));
  } else if constexpr (kType == TensorType::kBF16) {
    *dst = BFloat16ToFloat(LoadHalfBits(block));
  } else {
    const float d = FactorOf<B>(block);
    float m = 0;
    if constexpr (B::kHasMin) m = HalfBitsToFloat(B::Half(block, 1));
    constexpr int kPartWeights = B::kWeights / B::kParts;
    for (int part = 0; part < B::kParts; ++part) {
      const int scale = B::Scale(block, part);
      const int min = B::Min(block, part);
      for (int i = part * kPartWeights; i < (part + 1) * kPartWeights; ++i) {
        dst[i] = WeightOf<B>(d, m, scale, min, B::Quant(block, i));
      }
    }
  }
}

}  // namespace

void Dequantize(TensorType type, const std::byte* src, int64_t count, float* dst) {
  VisitType(type, [=]<TensorType kType>(Block<kType> block) {
    const auto* from = reinterpret_cast<const uint8_t*>(src);
    for (int64_t i = 0; i < count; i += block.kWeights, from += block.kBytes) {
      DequantizeBlock<kType>(from, dst + i);
    }
  });
}

float HalfToFloat(uint16_t half) { return HalfBitsToFloat(half); }

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude >= 0x47800000u) {  // 2^16 and up, infinity, NaN
    const bool nan = magnitude > 0x7f800000u;
    half = nan ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: subnormal or zero
    // Adding 1/2 leaves the value in units of 2^-24, rounded by the FPU, in the low mantissa bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f);
  } else {
    // Rebias by 112; a carry out of the mantissa correctly increments the exponent, up to infinity.
    const uint32_t odd = (magnitude >> 13) & 1u;
    half = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

float BFloat16ToFloat(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

}  // namespace orcd
