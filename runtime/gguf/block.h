// What a definition of a block type says, and the parts that several definitions share. blocks.h has
// the definitions.
#ifndef ORCD_RUNTIME_GGUF_BLOCK_H_
#define ORCD_RUNTIME_GGUF_BLOCK_H_

#include <array>
#include <cstdint>

#include "runtime/gguf/block_formats.h"

namespace orcd {

// A definition has:
//   kName             the name that GGUF tools print
//   kWeights, kBytes  size of a block; plain types are blocks of one weight
//   kFloats           if not 0, the block's numbers that can be NaN or infinite are kFloats words of
//   Float, kFloatsAt, kExponent
//                     type Float from byte kFloatsAt on; they are if all bits of kExponent are set
//   IsFinite(block)   if kFloats is 0: false if a weight can be NaN or infinite
// Weight i of types other than plain ones is d Scale kUnit Level(Quant), less m Min if kHasMin
// (WeightOf):
//   kBits, Quant(block, i)  an integer of kBits bits, not negative
//   Level(quant)            its value: quant - kZero, or an entry of the code book kLevels
//   kHalves, Half(block, which)
//                           F16 bits of d (0) and m (1), which is also called dmin; kHalves is how
//                           many of them the block has
//   SingleBits(block)       if kHalves is 0: d as F32 bits
//   kUnit                   a power of two
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

// The F16 numbers of a block: d at byte kAt, followed by m or dmin if kMin.
template <int kAt, bool kMin>
struct HalfScales {
  using Float = uint16_t;
  static constexpr uint16_t kExponent = 0x7c00;
  static constexpr int kFloatsAt = kAt;
  static constexpr int kFloats = kMin ? 2 : 1;
  static constexpr int kHalves = kFloats;
  static constexpr bool kHasMin = kMin;
  static constexpr uint16_t Half(const uint8_t* block, int which) {
    return LoadHalfBits(block + kAt + 2 * which);
  }
  static constexpr int Min(const uint8_t*, int) { return 0; }
};

// Nibble i of 2 kHalf: kHalf bytes hold the first half of the weights in their low nibbles and the
// second in their high ones.
template <int kHalf>
constexpr int NibbleAt(const uint8_t* bytes, int i) {
  return i < kHalf ? bytes[i] & 15 : bytes[i - kHalf] >> 4;
}

// The sub-blocks of a block of 256 weights.
template <int kQuantBits, int kSubBlocks, int kMostScale>
struct SuperBlock {
  static constexpr int kWeights = 256;
  static constexpr int kBits = kQuantBits;
  static constexpr int kParts = kSubBlocks;
  static constexpr int kLargestScale = kMostScale;
  static constexpr float kUnit = 1;
};

// Quants that count from kQuantZero.
template <int kQuantZero>
struct EvenLevels {
  static constexpr int kZero = kQuantZero;
  static constexpr int Level(int quant) { return quant - kZero; }
};

using LevelTable = std::array<int8_t, 16>;

// Eight bytes of a code book, from `first` on, as a word: device code would copy an array to local
// memory.
constexpr uint64_t LevelWord(const LevelTable& levels, int first) {
  uint64_t word = 0;
  for (int i = 7; i >= 0; --i) word = word << 8 | static_cast<uint8_t>(levels[first + i]);
  return word;
}

// Quants that are indices of a code book. What no quant of the type can be has the level 0.
template <const LevelTable& kTable>
struct CodeBook {
  static constexpr int kZero = 0;
  static constexpr LevelTable kLevels = kTable;
  static constexpr int Level(int quant) {
    constexpr uint64_t kLower = LevelWord(kLevels, 0);
    constexpr uint64_t kUpper = LevelWord(kLevels, 8);
    return static_cast<int8_t>((quant < 8 ? kLower : kUpper) >> (quant & 7) * 8);
  }
};

// Of IQ4_NL and IQ4_XS.
inline constexpr LevelTable kUnevenLevels = {-127, -104, -83, -65, -49, -35, -22, -10,
                                             1,    13,   25,  38,  53,  69,  89,  113};

// d has 11 significant bits, a scale at most 7 and a level at most 8, and no more than 24 together,
// so their product is exact in F32, subnormal numbers of MXFP4 included. The weight is rounded at
// most once, and is the same in whatever order the factors are multiplied and however the compiler
// contracts the sum.
template <typename B>
constexpr float WeightOf(float d, float m, int scale, int min, int quant) {
  const float product =
      d * (static_cast<float>(scale) * B::kUnit) * static_cast<float>(B::Level(quant));
  return B::kHasMin ? product - m * static_cast<float>(min) : product;
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_BLOCK_H_
