// Dequantises tiles to F16 tiles, with the bits that the fused kernels multiply: weights times
// 2^-exponent (TiledMatrix). For the kernel that does nothing else (dequantise_to_f16.cu), and for
// spare warps of the GEMM (DequantiseAhead).
#ifndef ORCD_CUDA_KERNELS_SM90_DEQUANTISE_TO_F16_CUH_
#define ORCD_CUDA_KERNELS_SM90_DEQUANTISE_TO_F16_CUH_

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/common/dequantise.cuh"
#include "cuda/kernels/common/matmul.h"

namespace orcd::cuda {

// Stores a group as a unit of an F16 tile; `to` is this lane's address.
template <TileFormat kFormat>
__device__ __forceinline__ void StoreGroup(const GroupQuants<kFormat>& quants,
                                           const GroupScales<kFormat>& scales, uint8_t* to) {
  const auto store = [&]<int kStep>(std::integral_constant<int, kStep>) {
    uint32_t a[4];
    Fragment<kFormat, kStep>(quants, scales, a);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      *reinterpret_cast<uint32_t*>(to + F16PairOffset(kStep, pair)) = a[pair];
    }
  };
  store(std::integral_constant<int, 0>());
  store(std::integral_constant<int, 1>());
  store(std::integral_constant<int, 2>());
  store(std::integral_constant<int, 3>());
}

// Dequantises the units of a matrix that belong to warp `warp` of `warps`; they are dealt in turn.
// The loads of two groups are in flight at a time.
template <TileFormat kFormat>
__device__ __forceinline__ void DequantiseUnits(const TiledMatrix& matrix, uint8_t* to, int warp,
                                                int warps) {
  constexpr int kGroups = UnitGroups(kFormat);
  constexpr int kBytes = UnitBytes(TileFormat::kF16);
  const int lane = threadIdx.x % 32;
  const uint32_t factors = SuperBlockFactors(matrix.exponent);
  const int units = matrix.row_tiles() * matrix.units();
  to += lane * 4;
  if constexpr (kGroups == 1) {
#pragma unroll 1
    for (int first = warp * 2; first < units; first += warps * 2) {
      Group<kFormat> groups[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (first + i >= units) break;
        const uint8_t* const unit = matrix.data + int64_t{first + i} * UnitBytes(kFormat);
        groups[i].Load(unit, UnitScales<kFormat>(), 0, lane);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (first + i >= units) break;
        StoreGroup(groups[i].quants, groups[i].scales, to + int64_t{first + i} * kBytes);
      }
    }
  } else {
#pragma unroll 1
    for (int i = warp; i < units; i += warps) {
      const uint8_t* const unit = matrix.data + int64_t{i} * UnitBytes(kFormat);
      uint8_t* const unit_to = to + int64_t{i} * (kGroups * kBytes);
      GroupQuants<kFormat> quants[2];
      quants[0].Load(unit, 0, lane);
      quants[1].Load(unit, 1, lane);
      UnitScales<kFormat> unit_scales;
      unit_scales.Load(unit, factors, lane);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        GroupScales<kFormat> scales;
        scales.Load(unit, unit_scales, group, lane);
        StoreGroup(quants[group % 2], scales, unit_to + group * kBytes);
        if (group + 2 < kGroups) quants[group % 2].Load(unit, group + 2, lane);
      }
    }
  }
}

// Dequantises this warp's share, as warp `warp` of `warps`, of all matrices of `ahead`.
__device__ __forceinline__ void DequantiseAll(const DequantiseAhead& ahead, int warp, int warps) {
#pragma unroll 1
  for (int i = 0; i < ahead.count; ++i) {
    // Selected by comparisons, as in FindTile.
    TiledMatrix matrix = ahead.matrices[0];
    uint8_t* to = ahead.to[0];
#pragma unroll
    for (int j = 1; j < DequantiseAhead::kMost; ++j) {
      if (i == j) {
        matrix = ahead.matrices[j];
        to = ahead.to[j];
      }
    }
    switch (matrix.format) {
      case TileFormat::kQ8_0:
        DequantiseUnits<TileFormat::kQ8_0>(matrix, to, warp, warps);
        break;
      case TileFormat::kQ4_K:
        DequantiseUnits<TileFormat::kQ4_K>(matrix, to, warp, warps);
        break;
      case TileFormat::kQ5_K:
        DequantiseUnits<TileFormat::kQ5_K>(matrix, to, warp, warps);
        break;
      case TileFormat::kQ6_K:
        DequantiseUnits<TileFormat::kQ6_K>(matrix, to, warp, warps);
        break;
      default:
        break;
    }
  }
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SM90_DEQUANTISE_TO_F16_CUH_
