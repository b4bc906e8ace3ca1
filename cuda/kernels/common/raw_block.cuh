// GGUF blocks in device code: integers and scales, not yet multiplied. The layouts are those of
// runtime/gguf/dequantize.cc.
#ifndef ORCD_CUDA_KERNELS_COMMON_RAW_BLOCK_CUH_
#define ORCD_CUDA_KERNELS_COMMON_RAW_BLOCK_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/common/tile_format.h"
#include "runtime/gguf/block_formats.h"

namespace orcd::cuda {

// One tensor type of the file:
//   kWeights, kBytes               size of a block
//   kFormat                        tile format that holds it
//   Quant(block, i)                integer of weight i in the tile's representation, not negative
//   Half(block, which)             F16 bits of d (0), or of m or dmin (1)
//   Scale(block, part), Min(...)   integer factors of sub-block `part`
template <TensorType kType>
struct RawBlock;

__device__ __forceinline__ uint16_t Load16(const uint8_t* p) {
  return static_cast<uint16_t>(p[0] | p[1] << 8);
}

template <>
struct RawBlock<TensorType::kF32> {
  static constexpr int kWeights = 1;
  static constexpr int kBytes = 4;
  static constexpr TileFormat kFormat = TileFormat::kF16;
  // F16 bits.
  static __device__ uint16_t Value(const uint8_t* block) {
    return __half_as_ushort(__float2half_rn(*reinterpret_cast<const float*>(block)));
  }
};

template <>
struct RawBlock<TensorType::kF16> {
  static constexpr int kWeights = 1;
  static constexpr int kBytes = 2;
  static constexpr TileFormat kFormat = TileFormat::kF16;
  static __device__ uint16_t Value(const uint8_t* block) {
    return *reinterpret_cast<const uint16_t*>(block);
  }
};

template <>
struct RawBlock<TensorType::kBF16> {
  static constexpr int kWeights = 1;
  static constexpr int kBytes = 2;
  static constexpr TileFormat kFormat = TileFormat::kF16;
  static __device__ uint16_t Value(const uint8_t* block) {
    const uint32_t bits = uint32_t{*reinterpret_cast<const uint16_t*>(block)} << 16;
    return __half_as_ushort(__float2half_rn(__uint_as_float(bits)));
  }
};

// The four types with 32 weights of a nibble each, and for two of them a fifth bit.
template <int kBlockBytes, TileFormat kTiles, bool kFifthBit, bool kHasMin>
struct RawNibbles {
  static constexpr int kWeights = 32;
  static constexpr int kBytes = kBlockBytes;
  static constexpr TileFormat kFormat = kTiles;
  static __device__ int Quant(const uint8_t* block, int i) {
    const uint8_t* const high = block + (kHasMin ? 4 : 2);
    const uint8_t* const low = high + (kFifthBit ? 4 : 0);
    const int nibble = i < 16 ? low[i] & 15 : low[i - 16] >> 4;
    return kFifthBit ? nibble | (high[i / 8] >> i % 8 & 1) << 4 : nibble;
  }
  static __device__ uint16_t Half(const uint8_t* block, int which) {
    return Load16(block + 2 * which);
  }
};

template <>
struct RawBlock<TensorType::kQ4_0> : RawNibbles<18, TileFormat::kQ4_0, false, false> {};
template <>
struct RawBlock<TensorType::kQ4_1> : RawNibbles<20, TileFormat::kQ4_1, false, true> {};
template <>
struct RawBlock<TensorType::kQ5_0> : RawNibbles<22, TileFormat::kQ5_0, true, false> {};
template <>
struct RawBlock<TensorType::kQ5_1> : RawNibbles<24, TileFormat::kQ5_1, true, true> {};

template <>
struct RawBlock<TensorType::kQ8_0> {
  static constexpr int kWeights = 32;
  static constexpr int kBytes = 34;
  static constexpr TileFormat kFormat = TileFormat::kQ8_0;
  static __device__ int Quant(const uint8_t* block, int i) { return block[2 + i] ^ 0x80; }
  static __device__ uint16_t Half(const uint8_t* block, int) { return Load16(block); }
};

template <>
struct RawBlock<TensorType::kQ2_K> {
  static constexpr int kWeights = 256;
  static constexpr int kBytes = 84;
  static constexpr TileFormat kFormat = TileFormat::kQ2_K;
  static __device__ int Quant(const uint8_t* block, int i) {
    return block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
  }
  static __device__ uint16_t Half(const uint8_t* block, int which) {
    return Load16(block + 80 + 2 * which);
  }
  static __device__ int Scale(const uint8_t* block, int part) { return block[part] & 15; }
  static __device__ int Min(const uint8_t* block, int part) { return block[part] >> 4; }
};

// Stored as kQ6_K, whose scales and quants can hold those of Q3_K.
template <>
struct RawBlock<TensorType::kQ3_K> {
  static constexpr int kWeights = 256;
  static constexpr int kBytes = 110;
  static constexpr TileFormat kFormat = TileFormat::kQ6_K;
  static __device__ int Quant(const uint8_t* block, int i) {
    const int low = block[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    return low + 4 * (block[i % 32] >> (i / 32) & 1) - 4 + 32;
  }
  static __device__ uint16_t Half(const uint8_t* block, int) { return Load16(block + 108); }
  static __device__ int Scale(const uint8_t* block, int part) {
    const uint8_t* const sc = block + 96;
    const int low = part < 8 ? sc[part] & 15 : sc[part - 8] >> 4;
    return (low | (sc[8 + part % 4] >> (2 * (part / 4)) & 3) << 4) - 32;
  }
};

// The 6-bit scales and mins of Q4_K and Q5_K: 8 sub-blocks in 12 bytes.
struct RawScaleMin {
  static __device__ uint16_t Half(const uint8_t* block, int which) {
    return Load16(block + 2 * which);
  }
  static __device__ int Scale(const uint8_t* block, int part) {
    const uint8_t* const sc = block + 4;
    return part < 4 ? sc[part] & 63 : (sc[part + 4] & 15) | sc[part - 4] >> 6 << 4;
  }
  static __device__ int Min(const uint8_t* block, int part) {
    const uint8_t* const sc = block + 4;
    return part < 4 ? sc[part + 4] & 63 : sc[part + 4] >> 4 | sc[part] >> 6 << 4;
  }
};

template <>
struct RawBlock<TensorType::kQ4_K> : RawScaleMin {
  static constexpr int kWeights = 256;
  static constexpr int kBytes = 144;
  static constexpr TileFormat kFormat = TileFormat::kQ4_K;
  static __device__ int Quant(const uint8_t* block, int i) {
    return block[16 + i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
  }
};

template <>
struct RawBlock<TensorType::kQ5_K> : RawScaleMin {
  static constexpr int kWeights = 256;
  static constexpr int kBytes = 176;
  static constexpr TileFormat kFormat = TileFormat::kQ5_K;
  static __device__ int Quant(const uint8_t* block, int i) {
    return (block[48 + i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15) |
           (block[16 + i % 32] >> (i / 32) & 1) << 4;
  }
};

template <>
struct RawBlock<TensorType::kQ6_K> {
  static constexpr int kWeights = 256;
  static constexpr int kBytes = 210;
  static constexpr TileFormat kFormat = TileFormat::kQ6_K;
  static __device__ int Quant(const uint8_t* block, int i) {
    const int g = i % 128 / 32;
    const int low = block[i / 128 * 64 + g % 2 * 32 + i % 32] >> (g / 2 * 4) & 15;
    return low | (block[128 + i / 128 * 32 + i % 32] >> (2 * g) & 3) << 4;
  }
  static __device__ uint16_t Half(const uint8_t* block, int) { return Load16(block + 208); }
  static __device__ int Scale(const uint8_t* block, int part) {
    return static_cast<int8_t>(block[192 + part]);
  }
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_RAW_BLOCK_CUH_
