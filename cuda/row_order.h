// Orders of a matrix's rows in VRAM that are not the file's. Each function gives the file's row
// that stands at `row`.
#ifndef ORCD_CUDA_ROW_ORDER_H_
#define ORCD_CUDA_ROW_ORDER_H_

#include <cstdint>
#include <initializer_list>

#include "runtime/model/spec.h"

namespace orcd::cuda {

// Within each head, the even rows come before the odd ones.
constexpr int RowOfHalves(int row, int head_dim) {
  const int at = row % head_dim;
  const int half = head_dim / 2;
  return row - at + at % half * 2 + at / half;
}
// The place of `row` in that order.
constexpr int PlaceInHalves(int row, int head_dim) {
  const int at = row % head_dim;
  return row - at + at % 2 * (head_dim / 2) + at / 2;
}

// The queries of gated attention, and their gates: the file has both by turns, head by head.
constexpr int RowOfQuery(int row, int head_dim) { return row + row / head_dim * head_dim; }
constexpr int RowOfAttentionGate(int row, int head_dim) {
  return RowOfQuery(row, head_dim) + head_dim;
}

// Parts that the file has by turns, as many rows of each at a time as `sizes` says, one after the
// other; there are `groups` turns.
inline int RowOfPartsByTurns(int row, int groups, std::initializer_list<int> sizes) {
  int turn = 0;
  for (const int size : sizes) turn += size;
  int before = 0;
  for (const int size : sizes) {
    if (row < groups * size) return row / size * turn + before + row % size;
    row -= groups * size;
    before += size;
  }
  return -1;
}

// DeltaNetWeights::qkv_gate as q | k | v | z.
inline int RowOfDeltaInputs(int row, const DeltaNetSpec& spec) {
  const int values = spec.value_size() / spec.key_heads;
  return RowOfPartsByTurns(row, spec.key_heads, {spec.head_dim, spec.head_dim, values, values});
}

// DeltaNetWeights::beta_alpha as beta of all value heads, then alpha of all.
inline int RowOfDeltaFactors(int row, const DeltaNetSpec& spec) {
  const int heads = spec.value_heads / spec.key_heads;
  return RowOfPartsByTurns(row, spec.key_heads, {heads, heads});
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_ROW_ORDER_H_
