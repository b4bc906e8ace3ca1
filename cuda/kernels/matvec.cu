#include <algorithm>
#include <array>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/matvec.cuh"

namespace orcd::cuda {
namespace {

using matvec::Bit;
using matvec::Kernel;
using matvec::KernelFor;
using matvec::LaunchShape;

constexpr int kMaxSharedBytes = 220 * 1024;
// Of all rings together: more on its way does not come sooner, and keeps what else is read waiting.
constexpr int kRingBytes = 144 * 1024;
// So few wait for their own results more than for each other: they take whole stretches of columns
// at a time. More take less, which comes sooner.
constexpr int kFewWarps = 8;
constexpr int kSmallStageBytes = 2304;
// Enough to make an input quickly, where few warps have tiles.
constexpr int kMinWarps = 8;

constexpr uint32_t kQ4KAndQ6K = Bit(TileFormat::kQ4_K) | Bit(TileFormat::kQ6_K);
constexpr uint32_t kQ5KAndQ6K = Bit(TileFormat::kQ5_K) | Bit(TileFormat::kQ6_K);
constexpr uint32_t kQ5_0AndQ8_0 = Bit(TileFormat::kQ5_0) | Bit(TileFormat::kQ8_0);

// The sets that models use, and last what takes any.
struct FormatSet {
  uint32_t formats;
  Kernel (*kernel)(bool one_token);
};
constexpr std::array kSets = {
    FormatSet{Bit(TileFormat::kF16), KernelFor<Bit(TileFormat::kF16)>},
    FormatSet{Bit(TileFormat::kQ8_0), KernelFor<Bit(TileFormat::kQ8_0)>},
    FormatSet{Bit(TileFormat::kQ4_0), KernelFor<Bit(TileFormat::kQ4_0)>},
    FormatSet{Bit(TileFormat::kQ5_0), KernelFor<Bit(TileFormat::kQ5_0)>},
    FormatSet{Bit(TileFormat::kQ4_K), KernelFor<Bit(TileFormat::kQ4_K)>},
    FormatSet{Bit(TileFormat::kQ5_K), KernelFor<Bit(TileFormat::kQ5_K)>},
    FormatSet{Bit(TileFormat::kQ6_K), KernelFor<Bit(TileFormat::kQ6_K)>},
    FormatSet{kQ4KAndQ6K, KernelFor<kQ4KAndQ6K>},
    FormatSet{kQ5KAndQ6K, KernelFor<kQ5KAndQ6K>},
    FormatSet{kQ5_0AndQ8_0, KernelFor<kQ5_0AndQ8_0>},
    FormatSet{matvec::kAllFormats, KernelFor<matvec::kAllFormats>},
};

Kernel FindKernel(uint32_t formats, bool one_token) {
  const auto set = std::find_if(kSets.begin(), kSets.end(),
                                [&](const FormatSet& s) { return (formats & ~s.formats) == 0; });
  return set->kernel(one_token);
}

}  // namespace

cudaError_t PrepareMatvecKernels() {
  for (const FormatSet& set : kSets) {
    for (const bool one_token : {true, false}) {
      const cudaError_t error = cudaFuncSetAttribute(
          set.kernel(one_token), cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

cudaError_t LaunchMatvec(const MatmulArgs& args, int multiprocessors, cudaStream_t stream) {
  int tiles = 0;
  uint32_t formats = 0;
  int small_bytes = 0;
  int stretch_bytes = 0;
  LaunchShape shape = {};
  for (int i = 0; i < args.num_matrices; ++i) {
    tiles += args.matrices[i].row_tiles();
    formats |= Bit(args.matrices[i].format);
    const TileFormat format = args.matrices[i].format;
    small_bytes = std::max(small_bytes,
                           std::max(kSmallStageBytes / UnitBytes(format), 1) * UnitBytes(format));
    stretch_bytes = std::max(stretch_bytes, matvec::StretchUnits(format) * UnitBytes(format));
  }
  const int cols = args.matrices[0].cols;
  const int members = std::min(tiles, std::max(1, multiprocessors / args.splits));
  const int tiles_a_block = (tiles + members - 1) / members;
  const int rounds = (tiles_a_block + matvec::kMaxWarps - 1) / matvec::kMaxWarps;
  shape.tile_warps = (tiles_a_block + rounds - 1) / rounds;

  int segment = 0;
  for (int s = 0; s < args.splits; ++s) {
    segment = std::max(segment,
                       SegmentBegin(cols, args.splits, s + 1) - SegmentBegin(cols, args.splits, s));
  }
  const bool one_token = args.tokens == 1;
  const int norm_bytes =
      args.norm.residual == nullptr ? 0 : (cols + NormThreads(cols) / 32) * sizeof(float);
  const int x_bytes = segment * (one_token ? 2 : 16) + norm_bytes;
  const int ring_bytes = std::min(kRingBytes, kMaxSharedBytes - x_bytes) / shape.tile_warps;
  shape.stage_bytes = shape.tile_warps <= kFewWarps ? stretch_bytes : small_bytes;
  shape.stages = std::clamp(ring_bytes / shape.stage_bytes, 2, matvec::kMaxStages);
  const size_t shared_bytes =
      static_cast<size_t>(shape.tile_warps) * shape.stages * shape.stage_bytes + x_bytes;
  return Launch(FindKernel(formats, one_token), dim3(members * args.splits),
                (std::max(shape.tile_warps, kMinWarps) + 1) * 32, shared_bytes, stream, args,
                shape);
}

}  // namespace orcd::cuda
