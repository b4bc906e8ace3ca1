// Books in shared memory, where lanes look up weights: those of formats with HasGroupBook, the code
// books of groups of 8 or 4 weights, of which a lane looks up quads: four weights of a row; and
// those of formats with HasPairBook, all pairs of levels as F16, whose index is both quants.
//
// Lanes look up different entries at once, so the entries are there several times, side by side:
// [low byte of the index][its high bits][copy][quad], kBookBytes in all; a pair is as long as a
// quad. With enough copies, every lane has a memory bank of its own.
#ifndef ORCD_CUDA_KERNELS_COMMON_BOOKS_CUH_
#define ORCD_CUDA_KERNELS_COMMON_BOOKS_CUH_

#include <cstdint>

#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/tile_format.h"
#include "runtime/gguf/blocks.h"

namespace orcd::cuda {

// Offsets in a unit of the indices' high bits and of the signs, in bytes, and bytes of the signs of
// 64 columns.
constexpr int HighBitsOffset(TileFormat format) { return GroupWeights(format) == 8 ? 512 : 1024; }
constexpr int SignsOffset(TileFormat format) {
  return HighBitsOffset(format) + (IndexBits(format) - 8) * (GroupWeights(format) == 8 ? 64 : 128);
}
constexpr int SignBytes(TileFormat format) { return HasEvenSigns(format) ? 112 : 128; }
// Offset of byte `byte` of a lane's signs of 64 columns, for formats with HasEvenSigns.
constexpr int EvenSignOffset(int lane, int byte) {
  if (lane % 2 == 0) return lane * 2 + byte;
  return byte < 2 ? 64 + lane / 2 * 2 + byte : 96 + lane / 2;
}

// Index is the place in the book of group n of kWeights weights of a block. Signs is the signs of
// the weights from 8n on, bit by bit (of seven, if HasEvenSigns). Level(index, i) is the number of
// the magnitude of weight i in the format's levels.
template <TileFormat kFormat>
struct GroupBook;

template <>
struct GroupBook<TileFormat::kIQ2_XXS> {
  static constexpr int Index(const uint8_t* block, int n) { return block[2 + n / 4 * 8 + n % 4]; }
  static constexpr int Signs(const uint8_t* block, int n) {
    return WordSigns(block + 2 + n / 4 * 8 + 4, n % 4);
  }
  static constexpr int Level(int index, int i) {
    return code_books::kIQ2_XXS[index] >> (2 * i) & 3;
  }
  // Seven of the 28 low bits of a word.
  static constexpr int WordSigns(const uint8_t* word, int n) {
    const uint32_t bits = LoadHalfBits(word) | static_cast<uint32_t>(LoadHalfBits(word + 2)) << 16;
    return static_cast<int>(bits >> (7 * n) & 127);
  }
};

template <>
struct GroupBook<TileFormat::kIQ2_XS> {
  static constexpr int Index(const uint8_t* block, int n) {
    return LoadHalfBits(block + 2 + 2 * n) & 511;
  }
  static constexpr int Signs(const uint8_t* block, int n) {
    return LoadHalfBits(block + 2 + 2 * n) >> 9;
  }
  static constexpr int Level(int index, int i) { return code_books::kIQ2_XS[index] >> (2 * i) & 3; }
};

template <>
struct GroupBook<TileFormat::kIQ2_S> {
  static constexpr int Index(const uint8_t* block, int n) {
    return block[2 + n] | (block[66 + n / 4] >> (n % 4 * 2) & 3) << 8;
  }
  static constexpr int Signs(const uint8_t* block, int n) { return block[34 + n]; }
  static constexpr int Level(int index, int i) { return code_books::kIQ2_S[index] >> (2 * i) & 3; }
};

template <>
struct GroupBook<TileFormat::kIQ3_XXS> {
  static constexpr int Index(const uint8_t* block, int n) { return block[2 + n]; }
  static constexpr int Signs(const uint8_t* block, int n) {
    return GroupBook<TileFormat::kIQ2_XXS>::WordSigns(block + 66 + n / 4 * 4, n % 4);
  }
  static constexpr int Level(int index, int i) {
    return code_books::kIQ3_XXS[index] >> (4 * i) & 7;
  }
};

template <>
struct GroupBook<TileFormat::kIQ3_S> {
  static constexpr int Index(const uint8_t* block, int n) {
    return block[2 + n] | (block[66 + n / 8] >> (n % 8) & 1) << 8;
  }
  static constexpr int Signs(const uint8_t* block, int n) { return block[74 + n]; }
  static constexpr int Level(int index, int i) { return code_books::kIQ3_S[index] >> (4 * i) & 7; }
};

// Bytes from one low byte of an index to the next.
inline constexpr int kLowIndexStride = kBookBytes >> 8;
static_assert(kLowIndexStride == kBookAlignment);
// Bytes from one entry to the next, which hold its copies.
constexpr int EntryStride(TileFormat format) { return kBookBytes >> IndexBits(format); }
// Bytes of a quad: a magnitude each or, where the books have so many entries that copies would be
// few, half a byte each, the magnitude's number in the format's levels.
constexpr bool HasLevelNumbers(TileFormat format) {
  return HasGroupBook(format) && GroupWeights(format) == 8 && IndexBits(format) > 9;
}
constexpr int QuadBytes(TileFormat format) { return HasLevelNumbers(format) ? 2 : 4; }

// Offset of the part of an entry that a lane loads: a quad of the copy of its own.
template <TileFormat kFormat>
__device__ __forceinline__ uint32_t LaneOfBook(int lane) {
  return lane * QuadBytes(kFormat) % EntryStride(kFormat);
}

// The magnitudes of the four levels that numbers of half a byte select.
template <TileFormat kFormat>
constexpr uint32_t MagnitudeBytes() {
  using B = Block<kFormatTypes[static_cast<int>(kFormat)]>;
  return B::Level(0) | B::Level(1) << 8 | B::Level(2) << 16 | B::Level(3) << 24;
}

// Writes the book to shared memory; thread `thread` of `threads`. A barrier must follow.
template <TileFormat kFormat>
__device__ __forceinline__ void FillBook(uint8_t* book, int thread, int threads) {
  using B = Block<kFormatTypes[static_cast<int>(kFormat)]>;
  constexpr int kHighBits = IndexBits(kFormat) - 8;
  // A level as F16: a subnormal number, times 2^-24.
  const auto half_of = [](int level) {
    return static_cast<uint32_t>(level < 0 ? 0x8000 - level : level);
  };
#pragma unroll 1
  for (int place = thread; place < 1 << IndexBits(kFormat); place += threads) {
    const int index = place >> kHighBits | (place & ((1 << kHighBits) - 1)) << 8;
    uint32_t words[2] = {};
    if constexpr (HasPairBook(kFormat)) {
      words[0] = half_of(B::Level(index & 15)) | half_of(B::Level(index >> 4)) << 16;
      words[1] = words[0];
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int level = GroupBook<kFormat>::Level(index, i % GroupWeights(kFormat));
        if constexpr (HasLevelNumbers(kFormat)) {
          words[0] |= level << (4 * i);
          words[1] = words[0];
        } else {
          words[i / 4] |= B::Level(level) << (i % 4 * 8);
        }
      }
    }
    // Lanes begin at different copies, whose banks differ.
    const int entry = place * EntryStride(kFormat);
#pragma unroll
    for (int copy = 0; copy < EntryStride(kFormat) / 16; ++copy) {
      const int at = (copy + entry / 128) * 16 % EntryStride(kFormat);
      *reinterpret_cast<uint4*>(book + entry + at) =
          make_uint4(words[0], words[1], words[0], words[1]);
    }
  }
}

// Loads what the book has of a quad or a pair. `address`: in shared memory, with LaneOfBook.
template <TileFormat kFormat>
__device__ __forceinline__ uint32_t LoadQuad(uint32_t address) {
  return HasLevelNumbers(kFormat) ? LoadFixedHalf(address) : LoadFixedWord(address);
}
// The magnitudes of a quad, a byte each. `levels`: MagnitudeBytes.
template <TileFormat kFormat>
__device__ __forceinline__ uint32_t QuadBytesOf(uint32_t quad, uint32_t levels) {
  return HasLevelNumbers(kFormat) ? Permute(levels, 0, quad) : quad;
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_BOOKS_CUH_
