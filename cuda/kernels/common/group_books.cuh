// The code books of groups of 8 or 4 weights (formats with HasGroupBook): what a file's block says
// of a group, and books in shared memory, from which tensor-core fragments are loaded.
//
// In shared memory an entry is a group's magnitudes as 16-bit integers, which are subnormal F16
// numbers: 2^-24 times the integer. Lanes look up different entries at once, so the entries are
// there several times, side by side: [index][copy][weight], kBookBytes in all. With enough copies,
// every row of a fragment has memory banks of its own.
#ifndef ORCD_CUDA_KERNELS_COMMON_GROUP_BOOKS_CUH_
#define ORCD_CUDA_KERNELS_COMMON_GROUP_BOOKS_CUH_

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

inline constexpr int kBookBytes = 32 * 1024;
constexpr int EntryBytes(TileFormat format) { return GroupWeights(format) * 2; }
// Bytes from one entry to the next, which hold its copies.
constexpr int EntryStride(TileFormat format) { return kBookBytes >> IndexBits(format); }

// Offset of the part of an entry that a lane addresses: the copy of its row and, where each lane
// loads the two weights of a pair for itself (groups of 4), that pair.
template <TileFormat kFormat>
__device__ __forceinline__ uint32_t LaneOfBook(int lane) {
  return lane * (GroupWeights(kFormat) == 8 ? 16 : 4) % EntryStride(kFormat);
}

// Writes the book to shared memory; thread `thread` of `threads`. A barrier must follow.
template <TileFormat kFormat>
__device__ __forceinline__ void FillBook(uint8_t* book, int thread, int threads) {
  using B = Block<kFormatTypes[static_cast<int>(kFormat)]>;
  constexpr int kWords = GroupWeights(kFormat) / 2;
#pragma unroll 1
  for (int index = thread; index < 1 << IndexBits(kFormat); index += threads) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int pair = i % kWords;
      words[i] = B::Level(GroupBook<kFormat>::Level(index, 2 * pair)) |
                 B::Level(GroupBook<kFormat>::Level(index, 2 * pair + 1)) << 16;
    }
    // Lanes begin at different copies, whose banks differ.
    const int entry = index * EntryStride(kFormat);
#pragma unroll
    for (int copy = 0; copy < EntryStride(kFormat) / 16; ++copy) {
      const int at = (copy + entry / 128) * 16 % EntryStride(kFormat);
      *reinterpret_cast<uint4*>(book + entry + at) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

// The magnitudes of a lane's pairs in a step, as F16. `book` is the book's address in shared memory
// with LaneOfBook.
//
// Groups of 8: a group is a row of a matrix of ldmatrix; lane l has `index` of row l % 8 of matrix
// l / 8.
template <TileFormat kFormat>
__device__ __forceinline__ void LoadGroups(uint32_t book, uint32_t index, uint32_t (&pairs)[4]) {
  LoadMatrices(book + index * EntryStride(kFormat), pairs);
}
// Groups of 4.
template <TileFormat kFormat>
__device__ __forceinline__ uint32_t LoadPair(uint32_t book, uint32_t index) {
  return LoadFixedWord(book + index * EntryStride(kFormat));
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_GROUP_BOOKS_CUH_
