// Blocks of the weights -d, 0 and d. blocks.h includes this. numpy: d level.
#ifndef ORCD_RUNTIME_GGUF_BLOCKS_TERNARY_H_
#define ORCD_RUNTIME_GGUF_BLOCKS_TERNARY_H_

#include <cstdint>
#include <string_view>

#include "runtime/gguf/block.h"
#include "runtime/gguf/block_formats.h"

namespace orcd {

template <int kHalfAt>
struct TernaryBlock : SuperBlock<2, 1, 1>, EvenLevels<1>, HalfScales<kHalfAt, false> {
  static constexpr int kBytes = kHalfAt + 2;
  static constexpr int Scale(const uint8_t*, int) { return 1; }
};

// u8 qs[48]; u8 qh[4]; f16 d. A byte is a fraction of 256 whose first digits to the base 3 are
// quants. Digit n of qs[m] is weight 32n + m for m < 32, weight 160 + 16n + m - 32 for others; digit
// n of qh[m] is weight 240 + 4n + m. qs has five digits, qh four.
template <>
struct Block<TensorType::kTQ1_0> : TernaryBlock<52> {
  static constexpr std::string_view kName = "TQ1_0";
  static constexpr int Quant(const uint8_t* block, int i) {
    if (i < 160) return Digit(block[i % 32], i / 32);
    if (i < 240) return Digit(block[32 + i % 16], i / 16 - 10);
    return Digit(block[48 + i % 4], i / 4 - 60);
  }

 private:
  static constexpr int Digit(int fraction, int n) {
    for (; n > 0; --n) fraction = fraction * 3 & 255;
    return fraction * 3 >> 8;
  }
};

// u8 qs[64]; f16 d. As Q2_K; the quant 3 has the level 2.
template <>
struct Block<TensorType::kTQ2_0> : TernaryBlock<64> {
  static constexpr std::string_view kName = "TQ2_0";
  static constexpr int Quant(const uint8_t* block, int i) {
    return block[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
  }
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_BLOCKS_TERNARY_H_
