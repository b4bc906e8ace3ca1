// The definition of every block type that this project reads: its size, and the meaning of its
// bytes. Everything that does not need to be fast reads blocks through it; fast paths
// (runtime/cpu/dequantize.inc, cuda/kernels/common/dequantise.cuh) are tested against it. All
// functions are constexpr and so may be called in device code, too. Source: ggml's block
// definitions.
#ifndef ORCD_RUNTIME_GGUF_BLOCKS_H_
#define ORCD_RUNTIME_GGUF_BLOCKS_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "runtime/gguf/block_formats.h"

namespace orcd {

// A definition has:
//   kName             the name that GGUF tools print
//   kWeights, kBytes  size of a block; plain types are blocks of one weight
//   Float, kExponent, kFloatsAt, kFloats
//                     the block's numbers that can be NaN or infinite: kFloats words of type Float
//                     from byte kFloatsAt on, which are if all bits of kExponent are set
// Weight i of types other than plain ones is d Scale Level(Quant), less m Min if kHasMin
// (WeightOf):
//   kBits, Quant(block, i)  the integer in the file: kBits bits, not negative
//   Level(quant)            its value: quant - kZero, or an entry of a code book
//   Half(block, which)      F16 bits of d (0) and m (1), which is also called dmin
//   kParts                  sub-blocks with scales of their own; 1 if d is the only scale
//   Scale(block, part), Min(block, part)
//                           integer factors of d and m in a sub-block
//   kLargestScale           the largest magnitude of Scale, if kParts > 1
template <TensorType kType>
struct Block;

// Unaligned.
constexpr uint16_t LoadHalfBits(const uint8_t* p) {
  return static_cast<uint16_t>(p[0] | p[1] << 8);
}

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

// The F16 numbers of a block: d at byte kAt, followed by m or dmin if kMin.
template <int kAt, bool kMin>
struct HalfScales {
  using Float = uint16_t;
  static constexpr uint16_t kExponent = 0x7c00;
  static constexpr int kFloatsAt = kAt;
  static constexpr int kFloats = kMin ? 2 : 1;
  static constexpr bool kHasMin = kMin;
  static constexpr uint16_t Half(const uint8_t* block, int which) {
    return LoadHalfBits(block + kAt + 2 * which);
  }
  static constexpr int Min(const uint8_t*, int) { return 0; }
};

// Blocks of 32 weights, d level or d quant + m.
template <bool kMin>
struct BlockOf32 : HalfScales<0, kMin> {
  static constexpr int kWeights = 32;
  static constexpr int kParts = 1;
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
    const int nibble = i < 16 ? low[i] & 15 : low[i - 16] >> 4;
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

// Eight bytes of a code book, from `first` on, as a word: device code would copy an array to local
// memory.
constexpr uint64_t LevelWord(const std::array<int8_t, 16>& levels, int first) {
  uint64_t word = 0;
  for (int i = 7; i >= 0; --i) word = word << 8 | static_cast<uint8_t>(levels[first + i]);
  return word;
}

// As Q4_0, but quants are indices of a code book.
template <>
struct Block<TensorType::kIQ4_NL> : NibbleBlock<4, false> {
  static constexpr std::string_view kName = "IQ4_NL";
  static constexpr int kZero = 0;
  static constexpr std::array<int8_t, 16> kLevels = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                     1,    13,   25,  38,  53,  69,  89,  113};
  static constexpr int Level(int quant) {
    constexpr uint64_t kLower = LevelWord(kLevels, 0);
    constexpr uint64_t kUpper = LevelWord(kLevels, 8);
    return static_cast<int8_t>((quant < 8 ? kLower : kUpper) >> (quant & 7) * 8);
  }
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
template <int kQuantBits, int kQuantZero, int kSubBlocks, int kMostScale>
struct SuperBlock {
  static constexpr int kWeights = 256;
  static constexpr int kBits = kQuantBits;
  static constexpr int kZero = kQuantZero;
  static constexpr int kParts = kSubBlocks;
  static constexpr int kLargestScale = kMostScale;
  static constexpr int Level(int quant) { return quant - kZero; }
};

// u8 sc[16]; u8 qs[64]; f16 d; f16 dmin. Weight 128h + 32j + l has bits 2j of qs[32h + l]; sc has
// the scales in its low nibbles and the mins in its high ones.
template <>
struct Block<TensorType::kQ2_K> : SuperBlock<2, 0, 16, 15>, HalfScales<80, true> {
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
struct Block<TensorType::kQ3_K> : SuperBlock<3, 4, 16, 32>, HalfScales<108, false> {
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
struct SixBitScales : SuperBlock<kQuantBits, 0, 8, 63>, HalfScales<0, true> {
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
struct Block<TensorType::kQ6_K> : SuperBlock<6, 32, 16, 128>, HalfScales<208, false> {
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

// d has 11 significant bits, a scale at most 7 and a level at most 8, so their product is exact in
// F32. The weight is rounded at most once, and is the same however the compiler contracts the sum.
template <typename B>
constexpr float WeightOf(float d, float m, int scale, int min, int quant) {
  const float product = d * static_cast<float>(scale) * static_cast<float>(B::Level(quant));
  return B::kHasMin ? product - m * static_cast<float>(min) : product;
}

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
    ORCD_VISIT(kIQ4_NL);
    ORCD_VISIT(kBF16);
  }
#undef ORCD_VISIT
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_BLOCKS_H_
