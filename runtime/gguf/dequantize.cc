#include "runtime/gguf/dequantize.h"

#include <bit>
#include <cstring>

namespace orcd {
namespace {

// Blocks and plain weights are read in the byte order of the file.
static_assert(std::endian::native == std::endian::little);

// All products of a scale and a quant below are exact in F32 (an f16 has 11 significant bits, block
// scales at most 7, quants at most 8). Each weight is therefore rounded at most once, with the same
// result however the compiler contracts the sums.

inline uint8_t Byte(const std::byte* p) { return static_cast<uint8_t>(*p); }
inline int8_t SignedByte(const std::byte* p) { return static_cast<int8_t>(*p); }

inline uint16_t Load16(const std::byte* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

inline uint32_t Load32(const std::byte* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

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

inline float LoadHalf(const std::byte* p) { return HalfBitsToFloat(Load16(p)); }

void DequantizeF32(const std::byte* src, int64_t count, float* dst) {
  std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(float));
}

void DequantizeF16(const std::byte* src, int64_t count, float* __restrict dst) {
  for (int64_t i = 0; i < count; ++i) dst[i] = LoadHalf(src + 2 * i);
}

void DequantizeBF16(const std::byte* src, int64_t count, float* __restrict dst) {
  for (int64_t i = 0; i < count; ++i) {
    dst[i] = std::bit_cast<float>(static_cast<uint32_t>(Load16(src + 2 * i)) << 16);
  }
}

// Blocks of 32: byte j of qs holds weight j in its low nibble and weight j + 16 in its high one.

// f16 d; u8 qs[16]. w = d (q - 8).
void BlockQ4_0(const std::byte* block, float* __restrict dst) {
  const float d = LoadHalf(block);
  const std::byte* qs = block + 2;
  for (int j = 0; j < 16; ++j) dst[j] = d * static_cast<float>((Byte(qs + j) & 15) - 8);
  for (int j = 0; j < 16; ++j) dst[j + 16] = d * static_cast<float>((Byte(qs + j) >> 4) - 8);
}

// f16 d; f16 m; u8 qs[16]. w = d q + m.
void BlockQ4_1(const std::byte* block, float* __restrict dst) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  const std::byte* qs = block + 4;
  for (int j = 0; j < 16; ++j) dst[j] = d * static_cast<float>(Byte(qs + j) & 15) + m;
  for (int j = 0; j < 16; ++j) dst[j + 16] = d * static_cast<float>(Byte(qs + j) >> 4) + m;
}

// The 5-bit quants of Q5_0 and Q5_1: bit k of qh is bit 4 of weight k.
inline int Low5(const std::byte* qs, uint32_t qh, int j) {
  return (Byte(qs + j) & 15) | static_cast<int>(((qh >> j) & 1) << 4);
}
inline int High5(const std::byte* qs, uint32_t qh, int j) {
  return (Byte(qs + j) >> 4) | static_cast<int>(((qh >> (j + 16)) & 1) << 4);
}

// f16 d; u32 qh; u8 qs[16]. w = d (q - 16).
void BlockQ5_0(const std::byte* block, float* __restrict dst) {
  const float d = LoadHalf(block);
  const uint32_t qh = Load32(block + 2);
  const std::byte* qs = block + 6;
  for (int j = 0; j < 16; ++j) dst[j] = d * static_cast<float>(Low5(qs, qh, j) - 16);
  for (int j = 0; j < 16; ++j) dst[j + 16] = d * static_cast<float>(High5(qs, qh, j) - 16);
}

// f16 d; f16 m; u32 qh; u8 qs[16]. w = d q + m.
void BlockQ5_1(const std::byte* block, float* __restrict dst) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  const uint32_t qh = Load32(block + 4);
  const std::byte* qs = block + 8;
  for (int j = 0; j < 16; ++j) dst[j] = d * static_cast<float>(Low5(qs, qh, j)) + m;
  for (int j = 0; j < 16; ++j) dst[j + 16] = d * static_cast<float>(High5(qs, qh, j)) + m;
}

// f16 d; i8 qs[32]. w = d q.
void BlockQ8_0(const std::byte* block, float* __restrict dst) {
  const float d = LoadHalf(block);
  const std::byte* qs = block + 2;
  for (int j = 0; j < 32; ++j) dst[j] = d * static_cast<float>(SignedByte(qs + j));
}

// Blocks of 256.

// u8 sc[16]; u8 qs[64]; f16 d; f16 dmin. Weight 128h + 32j + l has bits 2j of qs[32h + l] and scale
// 8h + 2j + l/16. w = d (sc & 15) q - dmin (sc >> 4).
void BlockQ2_K(const std::byte* block, float* __restrict dst) {
  const std::byte* sc = block;
  const std::byte* qs = block + 16;
  const float d = LoadHalf(block + 80);
  const float dmin = LoadHalf(block + 82);
  for (int k = 0; k < 16; ++k) {
    const float scale = d * static_cast<float>(Byte(sc + k) & 15);
    const float min = dmin * static_cast<float>(Byte(sc + k) >> 4);
    const std::byte* q = qs + 32 * (k / 8) + 16 * (k % 2);
    const int shift = 2 * (k % 8 / 2);
    for (int l = 0; l < 16; ++l) {
      dst[16 * k + l] = scale * static_cast<float>((Byte(q + l) >> shift) & 3) - min;
    }
  }
}

// u8 hmask[32]; u8 qs[64]; u8 sc[12]; f16 d. w = d (scale - 32) q.
// Indexed as in Q2_K; bit 4h + j of hmask[l] is the high bit of q; if it is 0, 4 is subtracted.
// Scale k has 6 bits: a nibble of sc[k % 8] and two bits of sc[8 + k % 4].
void BlockQ3_K(const std::byte* block, float* __restrict dst) {
  const std::byte* hmask = block;
  const std::byte* qs = block + 32;
  const std::byte* sc = block + 96;
  const float d = LoadHalf(block + 108);
  for (int k = 0; k < 16; ++k) {
    const int low = k < 8 ? Byte(sc + k) & 15 : Byte(sc + k - 8) >> 4;
    const int high = (Byte(sc + 8 + k % 4) >> (2 * (k / 4))) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    const std::byte* q = qs + 32 * (k / 8) + 16 * (k % 2);
    const std::byte* h = hmask + 16 * (k % 2);
    const int shift = 2 * (k % 8 / 2);
    const int high_bit = k / 2;  // 4h + j
    for (int l = 0; l < 16; ++l) {
      const int quant = ((Byte(q + l) >> shift) & 3) + 4 * ((Byte(h + l) >> high_bit) & 1) - 4;
      dst[16 * k + l] = scale * static_cast<float>(quant);
    }
  }
}

struct ScaleMin {
  int scale;
  int min;
};

// The 6-bit scale and minimum of sub-block j (of 8) of Q4_K and Q5_K, packed in 12 bytes.
inline ScaleMin UnpackScaleMin(const std::byte* sc, int j) {
  if (j < 4) return {Byte(sc + j) & 63, Byte(sc + j + 4) & 63};
  return {(Byte(sc + j + 4) & 15) | (Byte(sc + j - 4) >> 6) << 4,
          (Byte(sc + j + 4) >> 4) | (Byte(sc + j) >> 6) << 4};
}

// f16 d; f16 dmin; u8 sc[12]; u8 qs[128]. 32 bytes of qs hold 64 weights: sub-block 2c in the low
// nibbles, 2c + 1 in the high ones. w = d scale q - dmin min.
void BlockQ4_K(const std::byte* block, float* __restrict dst) {
  const float d = LoadHalf(block);
  const float dmin = LoadHalf(block + 2);
  const std::byte* sc = block + 4;
  const std::byte* qs = block + 16;
  for (int j = 0; j < 8; ++j) {
    const ScaleMin packed = UnpackScaleMin(sc, j);
    const float scale = d * static_cast<float>(packed.scale);
    const float min = dmin * static_cast<float>(packed.min);
    const std::byte* q = qs + 32 * (j / 2);
    const int shift = 4 * (j % 2);
    for (int l = 0; l < 32; ++l) {
      dst[32 * j + l] = scale * static_cast<float>((Byte(q + l) >> shift) & 15) - min;
    }
  }
}

// f16 d; f16 dmin; u8 sc[12]; u8 qh[32]; u8 qs[128]. Like Q4_K; bit j of qh[l] is the fifth bit of
// weight l of sub-block j.
void BlockQ5_K(const std::byte* block, float* __restrict dst) {
  const float d = LoadHalf(block);
  const float dmin = LoadHalf(block + 2);
  const std::byte* sc = block + 4;
  const std::byte* qh = block + 16;
  const std::byte* qs = block + 48;
  for (int j = 0; j < 8; ++j) {
    const ScaleMin packed = UnpackScaleMin(sc, j);
    const float scale = d * static_cast<float>(packed.scale);
    const float min = dmin * static_cast<float>(packed.min);
    const std::byte* q = qs + 32 * (j / 2);
    const int shift = 4 * (j % 2);
    for (int l = 0; l < 32; ++l) {
      const int quant = ((Byte(q + l) >> shift) & 15) | ((Byte(qh + l) >> j) & 1) << 4;
      dst[32 * j + l] = scale * static_cast<float>(quant) - min;
    }
  }
}

// u8 ql[128]; u8 qh[64]; i8 sc[16]; f16 d. In each half of 128 weights (ql + 64, qh + 32, sc + 8),
// weight 32g + l has a nibble of ql[l + 32 (g % 2)], low for g < 2, and bits 2g of qh[l]; its scale
// is sc[l/16 + 2g]. w = d sc (q - 32).
void BlockQ6_K(const std::byte* block, float* __restrict dst) {
  const float d = LoadHalf(block + 208);
  for (int k = 0; k < 16; ++k) {
    const int half = k / 8;
    const int g = k % 8 / 2;
    const int first = 16 * (k % 2);
    const std::byte* ql = block + 64 * half + 32 * (g % 2) + first;
    const std::byte* qh = block + 128 + 32 * half + first;
    const float scale = d * static_cast<float>(SignedByte(block + 192 + k));
    const int low_shift = 4 * (g / 2);
    const int high_shift = 2 * g;
    for (int l = 0; l < 16; ++l) {
      const int quant = ((Byte(ql + l) >> low_shift) & 15) | ((Byte(qh + l) >> high_shift) & 3)
                                                                 << 4;
      dst[16 * k + l] = scale * static_cast<float>(quant - 32);
    }
  }
}

template <int kWeights, int kBytes, void (*kBlock)(const std::byte*, float* __restrict)>
void DequantizeBlocks(const std::byte* src, int64_t count, float* dst) {
  for (int64_t i = 0; i < count; i += kWeights, src += kBytes) kBlock(src, dst + i);
}

}  // namespace

void Dequantize(TensorType type, const std::byte* src, int64_t count, float* dst) {
  switch (type) {
    case TensorType::kF32:
      return DequantizeF32(src, count, dst);
    case TensorType::kF16:
      return DequantizeF16(src, count, dst);
    case TensorType::kBF16:
      return DequantizeBF16(src, count, dst);
    case TensorType::kQ4_0:
      return DequantizeBlocks<32, 18, BlockQ4_0>(src, count, dst);
    case TensorType::kQ4_1:
      return DequantizeBlocks<32, 20, BlockQ4_1>(src, count, dst);
    case TensorType::kQ5_0:
      return DequantizeBlocks<32, 22, BlockQ5_0>(src, count, dst);
    case TensorType::kQ5_1:
      return DequantizeBlocks<32, 24, BlockQ5_1>(src, count, dst);
    case TensorType::kQ8_0:
      return DequantizeBlocks<32, 34, BlockQ8_0>(src, count, dst);
    case TensorType::kQ2_K:
      return DequantizeBlocks<256, 84, BlockQ2_K>(src, count, dst);
    case TensorType::kQ3_K:
      return DequantizeBlocks<256, 110, BlockQ3_K>(src, count, dst);
    case TensorType::kQ4_K:
      return DequantizeBlocks<256, 144, BlockQ4_K>(src, count, dst);
    case TensorType::kQ5_K:
      return DequantizeBlocks<256, 176, BlockQ5_K>(src, count, dst);
    case TensorType::kQ6_K:
      return DequantizeBlocks<256, 210, BlockQ6_K>(src, count, dst);
  }
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
