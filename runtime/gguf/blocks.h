// The definition of every block type that this project reads: its size, and the meaning of its
// bytes; block.h says what a definition has. Everything that does not need to be fast reads blocks
// through it; fast paths (runtime/cpu/dequantize.inc, cuda/kernels/common/dequantise.cuh) are tested
// against it. All functions are constexpr and so may be called in device code, too. Source: ggml's
// block definitions.
#ifndef ORCD_RUNTIME_GGUF_BLOCKS_H_
#define ORCD_RUNTIME_GGUF_BLOCKS_H_

#include <cstdint>
#include <string_view>

#include "runtime/gguf/block.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/gguf/blocks_fp4.h"
#include "runtime/gguf/blocks_iq.h"
#include "runtime/gguf/blocks_ternary.h"

namespace orcd {

template <typename Word, Word kExponentBits>
struct PlainBlock {
  static constexpr int kWeights = 1;
  static constexpr int kBytes = sizeof(Word);
  static constexpr int kBits = 8 * sizeof(Word);
  static constexpr int kZero = 0;
  using Float = Word;
  static constexpr Word kExponent = kExponentBits;
  static constexpr int kFloatsAt = 0;
  static constexpr int kFloats = 1;
  static constexpr bool kHasMin = false;
  static constexpr int kParts = 1;
};

template <>
struct Block<TensorType::kF32> : PlainBlock<uint32_t, 0x7f800000> {
  static constexpr std::string_view kName = "F32";
};
template <>
struct Block<TensorType::kF16> : PlainBlock<uint16_t, 0x7c00> {
  static constexpr std::string_view kName = "F16";
};
template <>
struct Block<TensorType::kBF16> : PlainBlock<uint16_t, 0x7f80> {
  static constexpr std::string_view kName = "BF16";
};

// Blocks of 32 weights, d level or d quant + m.
template <bool kMin>
struct BlockOf32 : HalfScales<0, kMin> {
  static constexpr int kWeights = 32;
  static constexpr int kParts = 1;
  static constexpr float kUnit = 1;
  static constexpr int Scale(const uint8_t*, int) { return 1; }
  static constexpr int Min(const uint8_t*, int) { return kMin ? -1 : 0; }
};

// f16 d; f16 m, if kMin; u32 qh, if five bits; u8 qs[16]. Byte j of qs holds weight j in its low
// nibble and weight j + 16 in its high one; bit k of qh is bit 4 of weight k.
template <int kQuantBits, bool kMin>
struct NibbleBlock : BlockOf32<kMin> {
  static constexpr int kHighAt = kMin ? 4 : 2;
  static constexpr int kLowAt = kHighAt + (kQuantBits == 5 ? 4 : 0);
  static constexpr int kBytes = kLowAt + 16;
  static constexpr int kBits = kQuantBits;
  static constexpr int kZero = kMin ? 0 : 1 << (kBits - 1);
  static constexpr int Quant(const uint8_t* block, int i) {
    const uint8_t* const high = block + kHighAt;
    const uint8_t* const low = block + kLowAt;
    const int nibble = NibbleAt<16>(low, i);
    return kBits == 5 ? nibble | (high[i / 8] >> i % 8 & 1) << 4 : nibble;
  }
  static constexpr int Level(int quant) { return quant - kZero; }
};

template <>
struct Block<TensorType::kQ4_0> : NibbleBlock<4, false> {
  static constexpr std::string_view kName = "Q4_0";
};
template <>
struct Block<TensorType::kQ4_1> : NibbleBlock<4, true> {
  static constexpr std::string_view kName = "Q4_1";
};
template <>
struct Block<TensorType::kQ5_0> : NibbleBlock<5, false> {
  static constexpr std::string_view kName = "Q5_0";
};
template <>
struct Block<TensorType::kQ5_1> : NibbleBlock<5, true> {
  static constexpr std::string_view kName = "Q5_1";
};

// As Q4_0, but quants are indices of a code book.
template <>
struct Block<TensorType::kIQ4_NL> : BlockOf32<false>, CodeBook<kUnevenLevels> {
  static constexpr std::string_view kName = "IQ4_NL";
  static constexpr int kBytes = 18;
  static constexpr int kBits = 4;
  static constexpr int Quant(const uint8_t* block, int i) { return NibbleAt<16>(block + 2, i); }
};

// f16 d; i8 qs[32].
template <>
struct Block<TensorType::kQ8_0> : BlockOf32<false> {
  static constexpr std::string_view kName = "Q8_0";
  static constexpr int kBytes = 34;
  static constexpr int kBits = 8;
  static constexpr int kZero = 128;
  static constexpr int Quant(const uint8_t* block, int i) { return block[2 + i] ^ 0x80; }
  static constexpr int Level(int quant) { return quant - kZero; }
};

// K-quants: blocks of 256 weights.

// u8 sc[16]; u8 qs[64]; f16 d; f16 dmin. Weight 128h + 32j + l has bits 2j of qs[32h + l]; sc has
// the scales in its low nibbles and the mins in its high ones.
template <>
struct Block<TensorType::kQ2_K> : SuperBlock<2, 16, 15>, EvenLevels<0>, HalfScales<80, true> {
  static constexpr std::string_view kName = "Q2_K";
  static constexpr int kBytes = 84;
  static constexpr int Quant(const uint8_t* block, int i) {
    return block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
  }
  static constexpr int Scale(const uint8_t* block, int part) { return block[part] & 15; }
  static constexpr int Min(const uint8_t* block, int part) { return block[part] >> 4; }
};

// u8 hmask[32]; u8 qs[64]; u8 sc[12]; f16 d. As Q2_K; bit i / 32 of hmask[i % 32] is bit 2 of
// weight i. Scale k, less 32, is a nibble of sc[k % 8] below two bits of sc[8 + k % 4].
template <>
struct Block<TensorType::kQ3_K> : SuperBlock<3, 16, 32>, EvenLevels<4>, HalfScales<108, false> {
  static constexpr std::string_view kName = "Q3_K";
  static constexpr int kBytes = 110;
  static constexpr int Quant(const uint8_t* block, int i) {
    const int low = block[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    return low + 4 * (block[i % 32] >> (i / 32) & 1);
  }
  static constexpr int Scale(const uint8_t* block, int part) {
    const uint8_t* const sc = block + 96;
    const int low = part < 8 ? sc[part] & 15 : sc[part - 8] >> 4;
    return (low | (sc[8 + part % 4] >> (2 * (part / 4)) & 3) << 4) - 32;
  }
};

// The 6-bit scales and mins of Q4_K and Q5_K: 8 sub-blocks in 12 bytes, behind d and dmin.
template <int kQuantBits>
struct SixBitScales : SuperBlock<kQuantBits, 8, 63>, EvenLevels<0>, HalfScales<0, true> {
  static constexpr int Scale(const uint8_t* block, int part) {
    const uint8_t* const sc = block + 4;
    return part < 4 ? sc[part] & 63 : (sc[part + 4] & 15) | sc[part - 4] >> 6 << 4;
  }
  static constexpr int Min(const uint8_t* block, int part) {
    const uint8_t* const sc = block + 4;
    return part < 4 ? sc[part + 4] & 63 : sc[part + 4] >> 4 | sc[part] >> 6 << 4;
  }
};

// f16 d; f16 dmin; u8 sc[12]; u8 qs[128]. 32 bytes of qs hold 64 weights: sub-block 2c in the low
// nibbles, 2c + 1 in the high ones.
template <>
struct Block<TensorType::kQ4_K> : SixBitScales<4> {
  static constexpr std::string_view kName = "Q4_K";
  static constexpr int kBytes = 144;
  static constexpr int Quant(const uint8_t* block, int i) {
    return block[16 + i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
  }
};

// f16 d; f16 dmin; u8 sc[12]; u8 qh[32]; u8 qs[128]. As Q4_K; bit j of qh[l] is bit 4 of weight l
// of sub-block j.
template <>
struct Block<TensorType::kQ5_K> : SixBitScales<5> {
  static constexpr std::string_view kName = "Q5_K";
  static constexpr int kBytes = 176;
  static constexpr int Quant(const uint8_t* block, int i) {
    return (block[48 + i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15) |
           (block[16 + i % 32] >> (i / 32) & 1) << 4;
  }
};

// u8 ql[128]; u8 qh[64]; i8 sc[16]; f16 d. In each half of 128 weights (ql + 64, qh + 32, sc + 8),
// weight 32g + l has a nibble of ql[l + 32 (g % 2)], low for g < 2, below bits 2g of qh[l].
template <>
struct Block<TensorType::kQ6_K> : SuperBlock<6, 16, 128>, EvenLevels<32>, HalfScales<208, false> {
  static constexpr std::string_view kName = "Q6_K";
  static constexpr int kBytes = 210;
  static constexpr int Quant(const uint8_t* block, int i) {
    const int g = i % 128 / 32;
    const int low = block[i / 128 * 64 + g % 2 * 32 + i % 32] >> (g / 2 * 4) & 15;
    return low | (block[128 + i / 128 * 32 + i % 32] >> (2 * g) & 3) << 4;
  }
  static constexpr int Scale(const uint8_t* block, int part) {
    return static_cast<int8_t>(block[192 + part]);
  }
};

// Calls f(Block<type>()). Does nothing for a type without a definition, which a file opened for
// inspection may hold.
template <typename F>
constexpr void VisitType(TensorType type, const F& f) {
#define ORCD_VISIT(kType) \
  case TensorType::kType: \
    return f(Block<TensorType::kType>())
  switch (type) {
    ORCD_VISIT(kF32);
    ORCD_VISIT(kF16);
    ORCD_VISIT(kQ4_0);
    ORCD_VISIT(kQ4_1);
    ORCD_VISIT(kQ5_0);
    ORCD_VISIT(kQ5_1);
    ORCD_VISIT(kQ8_0);
    ORCD_VISIT(kQ2_K);
    ORCD_VISIT(kQ3_K);
    ORCD_VISIT(kQ4_K);
    ORCD_VISIT(kQ5_K);
    ORCD_VISIT(kQ6_K);
    ORCD_VISIT(kIQ2_XXS);
    ORCD_VISIT(kIQ2_XS);
    ORCD_VISIT(kIQ3_XXS);
    ORCD_VISIT(kIQ1_S);
    ORCD_VISIT(kIQ4_NL);
    ORCD_VISIT(kIQ3_S);
    ORCD_VISIT(kIQ2_S);
    ORCD_VISIT(kIQ4_XS);
    ORCD_VISIT(kIQ1_M);
    ORCD_VISIT(kBF16);
    ORCD_VISIT(kTQ1_0);
    ORCD_VISIT(kTQ2_0);
    ORCD_VISIT(kMXFP4);
    ORCD_VISIT(kNVFP4);
  }
#undef ORCD_VISIT
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_BLOCKS_H_
