// Kernel that dequantises weights to F16 tiles, for products whose kernel does not take their
// format and number of tokens (KernelSet::gemm_takes). It makes the bits that the fused kernels
// multiply: weights times 2^-exponent (TiledMatrix).
//
// A warp dequantises four groups of 16 rows by 64 columns of a row tile: loads all of them, waits
// for the kernel before, and stores. 4 warps per block; no shared memory, no barriers. Floor:
// quantised bytes read once, 2 bytes per weight written. Formats with books have one block per row
// tile, whose warps go on to further groups, since it fills its shared memory with the book.
#include <cuda_fp16.h>

#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "cuda/kernels/common/dequantise.cuh"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/product_tiles.cuh"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/portable/kernel_set.h"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
// Groups of a warp.
constexpr int kGroups = 4;
constexpr int UnitsAWarp(TileFormat format) { return kGroups / UnitGroups(format); }

// Stores a group as a unit of an F16 tile; `to` is the unit's address with OffsetOf the lane.
template <TileFormat kFormat>
__device__ __forceinline__ int OffsetOf(int lane) {
  return HasGroupBook(kFormat) ? QuadOffset(lane) : lane * 4;
}
template <TileFormat kFormat>
__device__ __forceinline__ void StoreGroup(const GroupQuants<kFormat>& quants,
                                           const GroupScales<kFormat>& scales, uint8_t* to) {
  const auto store = [&]<int kStep>(std::integral_constant<int, kStep>) {
    uint32_t a[4];
    Fragment<kFormat, kStep>(quants, scales, a);
    if constexpr (HasGroupBook(kFormat)) {
      *reinterpret_cast<uint2*>(to + F16PairOffset(kStep, 0)) = make_uint2(a[0], a[2]);
      *reinterpret_cast<uint2*>(to + F16PairOffset(kStep, 1)) = make_uint2(a[1], a[3]);
    } else {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        *reinterpret_cast<uint32_t*>(to + F16PairOffset(kStep, pair)) = a[pair];
      }
    }
  };
  store(std::integral_constant<int, 0>());
  store(std::integral_constant<int, 1>());
  store(std::integral_constant<int, 2>());
  store(std::integral_constant<int, 3>());
}

// Dequantises the units of a row tile from `first` on, UnitsAWarp at most of `units` that the tile
// has. `book`: as in UnitScales.
template <TileFormat kFormat>
__device__ __forceinline__ void DequantiseUnits(const uint8_t* tile, int first, int units,
                                                uint32_t factors, uint32_t book, uint8_t* out) {
  const int lane = threadIdx.x % 32;
  const uint8_t* const unit = tile + int64_t{first} * UnitBytes(kFormat);
  uint8_t* to = out + int64_t{first} * (UnitGroups(kFormat) * UnitBytes(TileFormat::kF16)) +
                OffsetOf<kFormat>(lane);
  // All groups are loaded before any is stored, and before WaitForDependency: the kernel before may
  // still read the destination.
  Group<kFormat> groups[kGroups];
#pragma unroll
  for (int i = 0; i < UnitsAWarp(kFormat); ++i) {
    if (first + i >= units) break;
    UnitScales<kFormat> unit_scales;
    unit_scales.Load(unit + i * UnitBytes(kFormat), factors, lane, book);
#pragma unroll
    for (int group = 0; group < UnitGroups(kFormat); ++group) {
      groups[i * UnitGroups(kFormat) + group].Load(unit + i * UnitBytes(kFormat), unit_scales,
                                                   group, lane);
    }
  }
  WaitForDependency();
#pragma unroll
  for (int group = 0; group < kGroups; ++group, to += UnitBytes(TileFormat::kF16)) {
    if (first + group / UnitGroups(kFormat) >= units) return;
    groups[group].LookUp(0);
    groups[group].LookUp(1);
    StoreGroup(groups[group].quants, groups[group].scales, to);
  }
}

// grid (units / (UnitsAWarp * warps), or 1 for formats with books, tiles).
template <TileFormat kFormat>
__global__ void __launch_bounds__(kThreads)
    DequantiseKernel(const __grid_constant__ Product product, int first_tile, uint8_t* out) {
  LaunchDependents();
  int tile = first_tile + static_cast<int>(blockIdx.y);
  const TiledMatrix matrix = FindTile(product, tile);
  const int units = matrix.units();
  const uint32_t factors = FactorsOf<kFormat>(matrix.exponent);
  const uint8_t* const from = matrix.data + int64_t{tile} * units * UnitBytes(kFormat);
  uint8_t* const to =
      out + int64_t{blockIdx.y} * units * (UnitGroups(kFormat) * UnitBytes(TileFormat::kF16));
  int first = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32) * UnitsAWarp(kFormat);
  if constexpr (HasBook(kFormat)) {
    __shared__ __align__(kBookAlignment) uint8_t book[kBookBytes];
    FillBook<kFormat>(book, threadIdx.x, kThreads);
    __syncthreads();
    const uint32_t lane_book = SharedAddress(book) + LaneOfBook<kFormat>(threadIdx.x % 32);
#pragma unroll 1
    for (; first < units; first += kWarps * UnitsAWarp(kFormat)) {
      DequantiseUnits<kFormat>(from, first, units, factors, lane_book, to);
    }
  } else {
    DequantiseUnits<kFormat>(from, first, units, factors, 0, to);
  }
}

template <TileFormat kFormat>
cudaError_t LaunchDequantiseOf(const Product& product, int first_tile, int tiles, uint8_t* out,
                               cudaStream_t stream) {
  constexpr int kUnits = UnitsAWarp(kFormat) * kWarps;
  return Launch(
      DequantiseKernel<kFormat>,
      dim3(HasBook(kFormat) ? 1 : (product.matrices[0].units() + kUnits - 1) / kUnits, tiles),
      kThreads, 0, stream, product, first_tile, out);
}

// LaunchDequantiseOf of each format but kF16, which is the first.
template <size_t... kBefore>
constexpr auto Launches(std::index_sequence<kBefore...>) {
  return std::array{LaunchDequantiseOf<static_cast<TileFormat>(kBefore + 1)>...};
}
constexpr auto kLaunches = Launches(std::make_index_sequence<kFormatCount - 1>());

}  // namespace

cudaError_t LaunchDequantise(const Product& product, int first_tile, int tiles, uint8_t* out,
                             cudaStream_t stream) {
  const TiledMatrix& matrix = product.matrices[0];
  if (matrix.format != TileFormat::kF16) {
    return kLaunches[static_cast<int>(matrix.format) - 1](product, first_tile, tiles, out, stream);
  }
  if (product.num_matrices > 1) return cudaErrorInvalidValue;
  return cudaMemcpyAsync(out, matrix.data + first_tile * matrix.tile_bytes(),
                         tiles * matrix.tile_bytes(), cudaMemcpyDeviceToDevice, stream);
}

}  // namespace orcd::cuda
