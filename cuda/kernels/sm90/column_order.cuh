// A fragments in the order of columns that wgmma needs, which reads its other operand from shared
// memory in place. Lanes of formats with group books have columns 4t to 4t + 3 of a step; they
// exchange them before they dequantise, when a weight is a byte.
#ifndef ORCD_CUDA_KERNELS_SM90_COLUMN_ORDER_CUH_
#define ORCD_CUDA_KERNELS_SM90_COLUMN_ORDER_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/common/dequantise.cuh"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/tile_format.h"

namespace orcd::cuda {

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
    pairs[2] = Permute(one, other, order_ ^ 0x4444);
    pairs[3] = Permute(one, other, (order_ + 0x2222) ^ 0x4444);
  }

 private:
  // The lane of the row from which the first word comes.
  int from_;
  // Byte permutations: of quads to the first word sent, and of received words to pair 0.
  uint32_t sent_;
  uint32_t order_;
};

// The A fragment of step kStep of a group. The quads have been looked up.
template <int kStep, TileFormat kFormat>
__device__ __forceinline__ void FragmentInOrder(const Group<kFormat>& group,
                                                const ColumnExchange& exchange, uint32_t (&a)[4]) {
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

// Dequantises into the A fragments of the four steps, whose columns are in the order of
// mma.m16n8k16. All lanes of the warp call this.
template <TileFormat kFormat>
__device__ __forceinline__ void DequantiseInOrder(const Group<kFormat>& group, int lane,
                                                  uint32_t (&a)[kGroupSteps][4]) {
  if constexpr (HasGroupBook(kFormat)) {
    const ColumnExchange exchange(lane);
    FragmentInOrder<0>(group, exchange, a[0]);
    FragmentInOrder<1>(group, exchange, a[1]);
    FragmentInOrder<2>(group, exchange, a[2]);
    FragmentInOrder<3>(group, exchange, a[3]);
  } else {
    group.Dequantise(a);
  }
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SM90_COLUMN_ORDER_CUH_
