// The numeric contract: the orders of sums and the roundings that decide the bits of a step's
// results. Every kernel set keeps it, for any number of tokens, so a token's results do not depend
// on what else is in its step. Nothing here follows from a GPU, and a change here changes the bits
// of all sets.
//
//   Products   a row's columns are cut into splits (split-K), which depend on the matrix's shape
//              alone (Splits). A split is one chain of tensor-core steps of 16 columns,
//              ascending, with F32 sums; the splits' partials are added in order.
//   Attention  a score is one such chain; if the query has two F16 parts, each step adds the low
//              part's product first. Keys are taken in tiles of kKeyTile positions, each with its
//              own maximum, and tiles are merged in order (softmax.cuh).
//   Norms      squares are added in the order of NormThreads, then as reduce.cuh says; those of
//              queries and keys as head_values.cuh and rope.cu say.
//   Experts    a product of experts has one split. The router's columns are cut into 32 classes of
//              RouterClassCols, one after another. A class is one chain of fused multiply-adds from
//              zero; from zero, four classes after another are added to a group, and the eight
//              groups to the sum, which then gets its bias. A token's result is a chain of fused
//              multiply-adds from zero: its experts by ascending index, each output scaled and with
//              its bias (one more of them), and then the sum of partials, scaled, of a shared
//              expert that is apart (experts.h).
//              Experts are chosen and weighed in F64 (experts.h).
//   Rounding   The weights (by the rule of dequantise.cuh), the inputs of products, queries, keys,
//              values and the softmax's weights are F16. Everything else is F32.
#ifndef ORCD_CUDA_KERNELS_COMMON_NUMERIC_CONTRACT_H_
#define ORCD_CUDA_KERNELS_COMMON_NUMERIC_CONTRACT_H_

#include <algorithm>

namespace orcd::cuda {

// Largest split-K factor.
inline constexpr int kMaxSplits = 8;

// Columns of a K block; a split is whole K blocks.
constexpr int KBlockCols(int cols) { return cols % 256 == 0 ? 256 : 64; }
// Number of K blocks in `cols` columns.
constexpr int KBlocks(int cols) { return (cols + KBlockCols(cols) - 1) / KBlockCols(cols); }

// Split-K factor of a product with `row_tiles` tiles of 16 rows: large enough that a product of one
// token keeps a large GPU busy, small enough that adding the partials costs little.
constexpr int Splits(int row_tiles, int cols) {
  constexpr int kWantedTasks = 1056;
  constexpr int kMinCols = 448;
  const int blocks = KBlocks(cols);
  const int wanted = std::clamp(kWantedTasks / row_tiles, 1,
                                std::clamp(cols / kMinCols, 1, std::min(kMaxSplits, blocks)));
  const int blocks_each = (blocks + wanted - 1) / wanted;
  return (blocks + blocks_each - 1) / blocks_each;
}

// First column of split `split` of `splits`; for split = splits, the number of columns (padded).
constexpr int SplitBegin(int cols, int splits, int split) {
  const unsigned blocks = KBlocks(cols);
  return static_cast<int>(blocks * split / splits) * KBlockCols(cols);
}

// Threads that fix the order in which a norm adds up squares: consecutive threads take consecutive
// vectors of four values, round after round. The order depends on this number alone.
constexpr int NormThreads(int hidden) {
  constexpr int kMostVectors = 4;
  const int vectors = hidden / 4;
  return std::max(128, ((vectors + kMostVectors - 1) / kMostVectors + 31) / 32 * 32);
}

// Columns of a class of the router's product; the last classes may have fewer, or none.
constexpr int RouterClassCols(int hidden) { return (hidden + 1023) / 1024 * 32; }

// Positions of a key tile.
inline constexpr int kKeyTile = 128;

// Least magnitude of a key bias with which its kv head's queries have two F16 parts (step.h).
inline constexpr float kLargeKeyBias = 64;

// Scale of the SwiGLU product: keeps the FFN's products, which can be large, well within F16.
inline constexpr float kSwiGluScale = 1.0f / 16;

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_NUMERIC_CONTRACT_H_
