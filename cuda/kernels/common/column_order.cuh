// The order of columns in fragments. Lanes of formats with group books have columns 4t to 4t + 3 of
// a step. Where tensor cores add up a step of 16 columns whatever its order, lanes may keep these,
// and load those of x. Otherwise they exchange them before they dequantise, when a weight is a
// byte: for wgmma, which reads x from shared memory in place, and where tensor cores first add up
// the step's first eight columns.
#ifndef ORCD_CUDA_KERNELS_COMMON_COLUMN_ORDER_CUH_
#define ORCD_CUDA_KERNELS_COMMON_COLUMN_ORDER_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/common/dequantise.cuh"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/tile_format.h"

namespace orcd::cuda {

// True in code whose lanes keep their columns in mma.m16n8k16 and load those of x. Tensor cores
// that add up eight products at a time, as those before compute capability 9.0 do (Fasi et al.,
// Numerical behavior of NVIDIA tensor cores, 2021), would show the order in the bits. Later ones
// were not seen.
template <TileFormat kFormat>
constexpr bool KeepsColumns() {
#if __CUDA_ARCH__ == 900
  return HasGroupBook(kFormat);
#else
  return false;
#endif
}

// Exchanges the weights of a step between the four lanes of a row. `lane` is 4g + t.
class ColumnExchange {
 public:
  __device__ __forceinline__ explicit ColumnExchange(int lane) {
    const int t = lane % 4;
    from_ = t / 2 + t % 2 * 2;
    sent_ = t < 2 ? 0x5410 : 0x7632;
    order_ = t % 2 == 0 ? 0x1100 : 0x5544;
  }

  // `quads`: columns 4t to 4t + 3 of rows g and g + 8, a byte each. Makes the pairs of the A
  // fragment (tile_format.h), each weight's byte twice. All lanes of the warp call this.
  __device__ __forceinline__ void Exchange(const uint32_t (&quads)[2], uint32_t (&pairs)[4]) const {
    // Columns 4t and 4t + 1 of both rows are pairs 0 and 1 of lane 2t, or 2 and 3 of lane 2t - 4;
    // the other two, of the lane behind. First lanes 0 and 1 send to even lanes, and lanes 2 and 3
    // to odd ones; then the other way round.
    const uint32_t one = __shfl_sync(~0u, Permute(quads[0], quads[1], sent_), from_, 4);
    const uint32_t other =
        __shfl_sync(~0u, Permute(quads[0], quads[1], sent_ ^ 0x2222), from_ ^ 2, 4);
    // `one` has the first half's columns of even lanes, and the second half's of odd ones.
    pairs[0] = Permute(one, other, order_);
    pairs[1] = Permute(one, other, order_ + 0x2222);
    pairs[2] = Permute(other, one, order_);
    pairs[3] = Permute(other, one, order_ + 0x2222);
  }

 private:
  // The lane of the row from which the first word comes.
  int from_;
  // Byte permutations: of quads to the first word sent, and of received words to pair 0.
  uint32_t sent_;
  uint32_t order_;
};

// Formats with group books: the A fragment of step kStep of a group, whose quads have been looked
// up.
template <int kStep, TileFormat kFormat>
__device__ __forceinline__ void ExchangedFragment(const Group<kFormat>& group,
                                                  const ColumnExchange& exchange,
                                                  uint32_t (&a)[4]) {
  constexpr int kPart = kStep * GroupScales<kFormat>::kParts / kGroupSteps;
  uint32_t quads[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int number = 2 * kStep + row;
    // Magnitudes have seven bits.
    quads[row] = QuadBytesOf<kFormat>(group.quants.quads[number], group.scales.levels[0]) |
                 group.quants.Signs(number);
  }
  exchange.Exchange(quads, a);
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    // A subnormal number and its sign, as in BookFragment.
    a[pair] = AsBits(__hmul2(AsHalf2(a[pair] & 0x807f807fu), group.scales.Scale(kPart, pair % 2)));
  }
}

// The A fragment of step kStep of a group, its columns in the order of mma.m16n8k16. All lanes of
// the warp call this.
template <TileFormat kFormat, int kStep>
__device__ __forceinline__ void OrderedFragment(const Group<kFormat>& group, int lane,
                                                uint32_t (&a)[4]) {
  if constexpr (HasGroupBook(kFormat)) {
    ExchangedFragment<kStep>(group, ColumnExchange(lane), a);
  } else {
    Fragment<kFormat, kStep>(group.quants, group.scales, a);
  }
}

// The same, or with the columns that the lanes have (KeepsColumns).
template <TileFormat kFormat, int kStep>
__device__ __forceinline__ void MmaFragment(const Group<kFormat>& group, int lane,
                                            uint32_t (&a)[4]) {
  if constexpr (KeepsColumns<kFormat>()) {
    Fragment<kFormat, kStep>(group.quants, group.scales, a);
  } else {
    OrderedFragment<kFormat, kStep>(group, lane, a);
  }
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_COLUMN_ORDER_CUH_
