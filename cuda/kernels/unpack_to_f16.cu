// Quantised tiles to F16 tiles, with the bits that the fused kernels multiply.
#include <cuda_fp16.h>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/matmul.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/unpack.cuh"

namespace orcd::cuda {
namespace {

constexpr int kThreads = 128;

// A warp unpacks one group of one unit: grid (units * groups / warps, tiles).
template <TileFormat kFormat>
__global__ void __launch_bounds__(kThreads)
    UnpackKernel(const uint8_t* tiles, int units, uint8_t* out) {
  LaunchDependents();
  WaitForDependency();
  constexpr int kGroups = UnitCols(kFormat) / kGroupCols;
  const int index = static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32);
  if (index >= units * kGroups) return;
  const int lane = threadIdx.x % 32;
  const int group = index % kGroups;
  const uint8_t* unit =
      tiles + (int64_t{blockIdx.y} * units + index / kGroups) * UnitBytes(kFormat);
  UnitScales<kFormat> unit_scales;
  unit_scales.Load(unit, lane);
  uint32_t a[kGroupSteps][4];
  UnpackGroup<kFormat>(unit, unit_scales, group, lane, a);
  uint8_t* const to =
      out + (int64_t{blockIdx.y} * units * kGroups + index) * UnitBytes(TileFormat::kF16);
#pragma unroll
  for (int step = 0; step < kGroupSteps; ++step) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      *reinterpret_cast<uint32_t*>(to + F16PairOffset(step, pair) + lane * 4) = a[step][pair];
    }
  }
}

template <TileFormat kFormat>
cudaError_t LaunchUnpack(const TiledMatrix& matrix, int first_tile, int tiles, uint8_t* out,
                         cudaStream_t stream) {
  const int groups = matrix.units() * (UnitCols(kFormat) / kGroupCols);
  constexpr int kWarps = kThreads / 32;
  return Launch(UnpackKernel<kFormat>, dim3((groups + kWarps - 1) / kWarps, tiles), kThreads, 0,
                stream, matrix.data + first_tile * matrix.tile_bytes(), matrix.units(), out);
}

}  // namespace

cudaError_t LaunchUnpackToF16(const TiledMatrix& matrix, int first_tile, int tiles, uint8_t* out,
                              cudaStream_t stream) {
  switch (matrix.format) {
    case TileFormat::kF16:
      return cudaMemcpyAsync(out, matrix.data + first_tile * matrix.tile_bytes(),
                             tiles * matrix.tile_bytes(), cudaMemcpyDeviceToDevice, stream);
    case TileFormat::kQ8_0:
      return LaunchUnpack<TileFormat::kQ8_0>(matrix, first_tile, tiles, out, stream);
    case TileFormat::kQ4_0:
      return LaunchUnpack<TileFormat::kQ4_0>(matrix, first_tile, tiles, out, stream);
    case TileFormat::kQ4_1:
      return LaunchUnpack<TileFormat::kQ4_1>(matrix, first_tile, tiles, out, stream);
    case TileFormat::kQ5_0:
      return LaunchUnpack<TileFormat::kQ5_0>(matrix, first_tile, tiles, out, stream);
    case TileFormat::kQ5_1:
      return LaunchUnpack<TileFormat::kQ5_1>(matrix, first_tile, tiles, out, stream);
    case TileFormat::kQ2_K:
      return LaunchUnpack<TileFormat::kQ2_K>(matrix, first_tile, tiles, out, stream);
    case TileFormat::kQ4_K:
      return LaunchUnpack<TileFormat::kQ4_K>(matrix, first_tile, tiles, out, stream);
    case TileFormat::kQ5_K:
      return LaunchUnpack<TileFormat::kQ5_K>(matrix, first_tile, tiles, out, stream);
    case TileFormat::kQ6_K:
      return LaunchUnpack<TileFormat::kQ6_K>(matrix, first_tile, tiles, out, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace orcd::cuda
