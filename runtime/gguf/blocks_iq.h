// I-quants in blocks of 256 weights. blocks.h includes this.
//
// All but IQ4_XS find 8 or 4 weights at a time in a code book of such groups (code_books.h). Such a
// group holds integers of 2 or 3 bits; with the weight's sign above them they are the quants here,
// whose levels are again a small code book. So every weight is one of at most 16 levels times the
// scale of its sub-block, whatever the file does to store it. Index and Minus are the index of group
// n in the code book and the sign of its eighth (IQ1).
#ifndef ORCD_RUNTIME_GGUF_BLOCKS_IQ_H_
#define ORCD_RUNTIME_GGUF_BLOCKS_IQ_H_

#include <cstdint>
#include <string_view>

#include "runtime/gguf/block.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/gguf/code_books.h"

namespace orcd {

// f16 d; u16 sh; u8 sl[4]; u8 qs[128]. Sub-block s of 32 weights has, as IQ4_NL, the nibbles of 16
// bytes from qs[16s] on. Its scale, plus 32, is a nibble of sl[s / 2] below bits 2s of sh. numpy:
// (d scale) level.
template <>
struct Block<TensorType::kIQ4_XS>
    : SuperBlock<4, 8, 32>, CodeBook<kUnevenLevels>, HalfScales<0, false> {
  static constexpr std::string_view kName = "IQ4_XS";
  static constexpr int kBytes = 136;
  static constexpr int Quant(const uint8_t* block, int i) {
    return NibbleAt<16>(block + 8 + i / 32 * 16, i % 32);
  }
  static constexpr int Scale(const uint8_t* block, int part) {
    const int low = block[4 + part / 2] >> (part % 2 * 4) & 15;
    return (low | (LoadHalfBits(block + 2) >> (2 * part) & 3) << 4) - 32;
  }
};

// Seven signs, and an eighth that makes the number of minuses even.
constexpr int EvenSigns(int seven) {
  int parity = seven ^ seven >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return seven | (parity & 1) << 7;
}

// Seven bits of the 28 below the scale in a 32-bit word, for the weights 8n to 8n + 7 of a group.
constexpr int SignsInWord(const uint8_t* word, int n) {
  const uint32_t bits = LoadHalfBits(word) | static_cast<uint32_t>(LoadHalfBits(word + 2)) << 16;
  return EvenSigns(static_cast<int>(bits >> (7 * n) & 127));
}

// IQ2: quants are an integer of 2 bits below the sign. d has a scale of 4 bits and a half, in
// eighths: numpy computes (d (0.5 + s)) 0.25 level, which is d (2s + 1) / 8 level.
inline constexpr LevelTable kIq2Levels = {8, 25, 43, 0, -8, -25, -43, 0};
template <int kSubBlocks>
struct Iq2Block : SuperBlock<3, kSubBlocks, 31>, CodeBook<kIq2Levels>, HalfScales<0, false> {
  static constexpr float kUnit = 0.125f;

 protected:
  // Weight i of a group of 8, whose sign is bit i of `signs`.
  static constexpr int QuantOf(uint32_t group, int signs, int i) {
    return static_cast<int>(group >> (2 * i) & 3) | (signs >> i & 1) << 2;
  }
};

// f16 d; {u8 qs[4]; u32 signs}[8]. Each eight bytes are 32 weights, in four groups of 8; the top
// nibble of `signs` is their scale.
template <>
struct Block<TensorType::kIQ2_XXS> : Iq2Block<8> {
  static constexpr std::string_view kName = "IQ2_XXS";
  static constexpr int kBytes = 66;
  static constexpr int Quant(const uint8_t* block, int i) {
    const uint8_t* const part = block + 2 + i / 32 * 8;
    const int n = i % 32 / 8;
    return QuantOf(code_books::kIQ2_XXS[part[n]], SignsInWord(part + 4, n), i % 8);
  }
  static constexpr int Scale(const uint8_t* block, int part) {
    return (block[2 + part * 8 + 7] >> 4) * 2 + 1;
  }
};

// f16 d; u16 qs[32]; u8 sc[8]. qs[n] is group n: nine bits of index, seven of signs. sc holds
// nibbles, low first.
template <>
struct Block<TensorType::kIQ2_XS> : Iq2Block<16> {
  static constexpr std::string_view kName = "IQ2_XS";
  static constexpr int kBytes = 74;
  static constexpr int Quant(const uint8_t* block, int i) {
    const int group = LoadHalfBits(block + 2 + i / 8 * 2);
    return QuantOf(code_books::kIQ2_XS[group & 511], EvenSigns(group >> 9), i % 8);
  }
  static constexpr int Scale(const uint8_t* block, int part) {
    return (block[66 + part / 2] >> (part % 2 * 4) & 15) * 2 + 1;
  }
};

// f16 d; u8 qs[32]; u8 signs[32]; u8 qh[8]; u8 sc[8]. Group n has the index qs[n] below bits 2 (n %
// 4) of qh[n / 4]; sc as IQ2_XS.
template <>
struct Block<TensorType::kIQ2_S> : Iq2Block<16> {
  static constexpr std::string_view kName = "IQ2_S";
  static constexpr int kBytes = 82;
  static constexpr int Quant(const uint8_t* block, int i) {
    return QuantOf(code_books::kIQ2_S[Index(block, i / 8)], block[34 + i / 8], i % 8);
  }
  static constexpr int Index(const uint8_t* block, int n) {
    return block[2 + n] | (block[66 + n / 4] >> (n % 4 * 2) & 3) << 8;
  }
  static constexpr int Scale(const uint8_t* block, int part) {
    return (block[74 + part / 2] >> (part % 2 * 4) & 15) * 2 + 1;
  }
};

// IQ3: quants are an integer of 3 bits below the sign.
template <const LevelTable& kTable>
struct Iq3Block : SuperBlock<4, 8, 31>, CodeBook<kTable>, HalfScales<0, false> {
 protected:
  // Weight i of eight, whose sign is bit i of `signs`. `group` is its group of 4.
  static constexpr int QuantOf(uint32_t group, int signs, int i) {
    return static_cast<int>(group >> (i % 4 * 4) & 7) | (signs >> i & 1) << 3;
  }
};

// f16 d; u8 qs[64]; u32 signs[8], as IQ2_XXS. qs[n] is group n. numpy: (d (0.5 + s)) 0.5 level,
// which is d (2s + 1) / 4 level.
inline constexpr LevelTable kIq3XxsLevels = {4,  12,  20,  28,  36,  44,  52,  62,
                                             -4, -12, -20, -28, -36, -44, -52, -62};
template <>
struct Block<TensorType::kIQ3_XXS> : Iq3Block<kIq3XxsLevels> {
  static constexpr std::string_view kName = "IQ3_XXS";
  static constexpr int kBytes = 98;
  static constexpr float kUnit = 0.25f;
  static constexpr int Quant(const uint8_t* block, int i) {
    return QuantOf(code_books::kIQ3_XXS[block[2 + i / 4]],
                   SignsInWord(block + 66 + i / 32 * 4, i % 32 / 8), i % 8);
  }
  static constexpr int Scale(const uint8_t* block, int part) {
    return (block[66 + part * 4 + 3] >> 4) * 2 + 1;
  }
};

// f16 d; u8 qs[64]; u8 qh[8]; u8 signs[32]; u8 sc[4]. Group n has the index qs[n] below bit n % 8 of
// qh[n / 8]; sc holds nibbles, low first. numpy: (d (1 + 2s)) level.
inline constexpr LevelTable kIq3SLevels = {1,  3,  5,  7,  9,  11,  13,  15,
                                           -1, -3, -5, -7, -9, -11, -13, -15};
template <>
struct Block<TensorType::kIQ3_S> : Iq3Block<kIq3SLevels> {
  static constexpr std::string_view kName = "IQ3_S";
  static constexpr int kBytes = 110;
  static constexpr int Quant(const uint8_t* block, int i) {
    return QuantOf(code_books::kIQ3_S[Index(block, i / 4)], block[74 + i / 8], i % 8);
  }
  static constexpr int Index(const uint8_t* block, int n) {
    return block[2 + n] | (block[66 + n / 8] >> (n % 8) & 1) << 8;
  }
  static constexpr int Scale(const uint8_t* block, int part) {
    return (block[106 + part / 2] >> (part % 2 * 4) & 15) * 2 + 1;
  }
};

// IQ1: the weights of a group of 8 are -1, 0 or 1, all plus or all minus an eighth. Quants are 0, 1
// or 2 below the sign of that eighth; levels count eighths. numpy: (d (2s + 1)) (g ± 0.125), which
// is d (2s + 1) / 8 level.
inline constexpr LevelTable kIq1Levels = {-7, 1, 9, 0, -9, -1, 7, 0};
template <int kSubBlocks>
struct Iq1Block : SuperBlock<3, kSubBlocks, 15>, CodeBook<kIq1Levels> {
  static constexpr float kUnit = 0.125f;

 protected:
  // Weight i of the group with index `index`.
  static constexpr int QuantOf(int index, int minus, int i) {
    return (code_books::kIQ1[index] >> (2 * i) & 3) | minus << 2;
  }
};

// f16 d; u8 qs[32]; u16 qh[8]. qh[s] belongs to 32 weights, groups 4s to 4s + 3: three high bits of
// each group's index, of the first group lowest; three bits of scale; the sign of the eighth.
template <>
struct Block<TensorType::kIQ1_S> : Iq1Block<8>, HalfScales<0, false> {
  static constexpr std::string_view kName = "IQ1_S";
  static constexpr int kBytes = 50;
  static constexpr int Quant(const uint8_t* block, int i) {
    return QuantOf(Index(block, i / 8), Minus(block, i / 8), i % 8);
  }
  static constexpr int Index(const uint8_t* block, int n) {
    return block[2 + n] | (LoadHalfBits(block + 34 + n / 4 * 2) >> (n % 4 * 3) & 7) << 8;
  }
  static constexpr int Minus(const uint8_t* block, int n) {
    return LoadHalfBits(block + 34 + n / 4 * 2) >> 15;
  }
  static constexpr int Scale(const uint8_t* block, int part) {
    return (LoadHalfBits(block + 34 + part * 2) >> 12 & 7) * 2 + 1;
  }
};

// u8 qs[32]; u8 qh[16]; u16 sc[4]. A nibble of qh belongs to a group, low first: three high bits of
// its index below the sign of its eighth. sc[k] has scales 4k to 4k + 3, of three bits, lowest
// first; its top nibble is nibble k of d.
template <>
struct Block<TensorType::kIQ1_M> : Iq1Block<16> {
  static constexpr std::string_view kName = "IQ1_M";
  static constexpr int kBytes = 56;
  static constexpr int kFloats = 0;
  static constexpr int kHalves = 1;
  static constexpr bool kHasMin = false;
  static constexpr uint16_t Half(const uint8_t* block, int) {
    int bits = 0;
    for (int k = 0; k < 4; ++k) bits |= block[49 + 2 * k] >> 4 << (4 * k);
    return static_cast<uint16_t>(bits);
  }
  static constexpr bool IsFinite(const uint8_t* block) {
    return (Half(block, 0) & 0x7c00) != 0x7c00;
  }
  static constexpr int Min(const uint8_t*, int) { return 0; }
  static constexpr int Quant(const uint8_t* block, int i) {
    return QuantOf(Index(block, i / 8), Minus(block, i / 8), i % 8);
  }
  static constexpr int Index(const uint8_t* block, int n) {
    return block[n] | (block[32 + n / 2] >> (n % 2 * 4) & 7) << 8;
  }
  static constexpr int Minus(const uint8_t* block, int n) {
    return block[32 + n / 2] >> (n % 2 * 4 + 3) & 1;
  }
  static constexpr int Scale(const uint8_t* block, int part) {
    return (LoadHalfBits(block + 48 + part / 4 * 2) >> (part % 4 * 3) & 7) * 2 + 1;
  }
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_BLOCKS_IQ_H_
