// Blocks of E2M1 numbers (two bits of exponent, one of mantissa), whose scales are 8-bit floats.
// blocks.h includes this.
#ifndef ORCD_RUNTIME_GGUF_BLOCKS_FP4_H_
#define ORCD_RUNTIME_GGUF_BLOCKS_FP4_H_

#include <cstdint>
#include <string_view>

#include "runtime/gguf/block.h"
#include "runtime/gguf/block_formats.h"

namespace orcd {

// Twice the values of E2M1, so that they are integers.
inline constexpr LevelTable kE2m1Levels = {0, 1,  2,  3,  4,  6,  8,  12,
                                           0, -1, -2, -3, -4, -6, -8, -12};

// Blocks without F16 numbers.
struct Fp4Block : CodeBook<kE2m1Levels> {
  static constexpr int kFloats = 0;
  static constexpr int kHalves = 0;
  static constexpr bool kHasMin = false;
  static constexpr int kBits = 4;
  static constexpr int Min(const uint8_t*, int) { return 0; }
};

// u8 e (E8M0); u8 qs[16], as Q4_0. Weight: 2^(e - 128) level. numpy: d level.
template <>
struct Block<TensorType::kMXFP4> : Fp4Block {
  static constexpr std::string_view kName = "MXFP4";
  static constexpr int kWeights = 32;
  static constexpr int kBytes = 17;
  static constexpr int kParts = 1;
  static constexpr float kUnit = 1;
  static constexpr int Scale(const uint8_t*, int) { return 1; }
  static constexpr int Quant(const uint8_t* block, int i) { return NibbleAt<16>(block + 1, i); }
  // 2^-128 and 2^-127 are subnormal.
  static constexpr uint32_t SingleBits(const uint8_t* block) {
    const uint32_t e = block[0];
    return e < 2 ? 0x00200000u << e : (e - 1) << 23;
  }
  // 12 2^125 is beyond F32; 255 is NaN in the OCP specification of E8M0, although ggml reads it as
  // 2^127.
  static constexpr bool IsFinite(const uint8_t* block) { return block[0] < 253; }
};

// u8 sc[4] (E4M3, whose sign is ignored); u8 qs[32]. Sub-block s of 16 weights has sc[s] and, as
// Q4_0, the nibbles of 8 bytes from qs[8s] on. Weight: sc / 2 level. numpy: (sc * 0.5) level. 0x7f,
// which is NaN in E4M3, is 0 here, as in ggml. A tensor may have a factor of its own, in a tensor
// beside it; it is no part of the weights.
template <>
struct Block<TensorType::kNVFP4> : Fp4Block {
  static constexpr std::string_view kName = "NVFP4";
  static constexpr int kWeights = 64;
  static constexpr int kBytes = 36;
  static constexpr int kParts = 4;
  // sc / 2 in units of the least of them.
  static constexpr float kUnit = 0x1p-10f;
  static constexpr int kLargestScale = 15 << 14;
  static constexpr int Scale(const uint8_t* block, int part) {
    const int bits = block[part];
    if (bits == 0x7f) return 0;
    const int exponent = bits >> 3 & 15;
    const int mantissa = bits & 7;
    return exponent == 0 ? mantissa : (8 | mantissa) << (exponent - 1);
  }
  static constexpr int Quant(const uint8_t* block, int i) {
    return NibbleAt<8>(block + 4 + i / 16 * 8, i % 16);
  }
  // 1.
  static constexpr uint32_t SingleBits(const uint8_t*) { return 0x3f800000u; }
  static constexpr bool IsFinite(const uint8_t*) { return true; }
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_BLOCKS_FP4_H_
