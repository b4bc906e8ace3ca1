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
constexpr int kSmallStageBytes = 2304;
// Enough to make an input quickly, where few warps have tiles.
constexpr int kMinWarps = 8;

// Before x is there.
constexpr int kBytesAhead = 32 * 1024;
// Of the 228 KB of a multiprocessor, with what a block has besides: no second block fits. The next
// kernel's blocks come while this one's are at work, and where two came to one multiprocessor,
// which is bound by arithmetic, another would have none.
constexpr int kMoreThanHalf = 108 * 1024;

// What takes next to no arithmetic to unpack.
constexpr uint32_t kReadyFormats = Bit(TileFormat::kF16) | Bit(TileFormat::kQ8_0);
constexpr uint32_t kQ4KAndQ6K = Bit(TileFormat::kQ4_K) | Bit(TileFormat::kQ6_K);
constexpr uint32_t kQ5KAndQ6K = Bit(TileFormat::kQ5_K) | Bit(TileFormat::kQ6_K);
constexpr uint32_t kQ5_0AndQ8_0 = Bit(TileFormat::kQ5_0) | Bit(TileFormat::kQ8_0);

// The sets that models use, and last what takes any.
struct FormatSet {
  uint32_t formats;
  Kernel (*kernel)(bool one_token, bool few_warps);
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

Kernel FindKernel(uint32_t formats, bool one_token, bool few_warps) {
  const auto set = std::find_if(kSets.begin(), kSets.end(),
                                [&](const FormatSet& s) { return (formats & ~s.formats) == 0; });
  return set->kernel(one_token, few_warps);
}

}  // namespace

cudaError_t PrepareMatvecKernels() {
  for (const FormatSet& set : kSets) {
    for (const bool one_token : {true, false}) {
      for (const bool few_warps : {true, false}) {
        const cudaError_t error =
            cudaFuncSetAttribute(set.kernel(one_token, few_warps),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
        if (error != cudaSuccess) return error;
      }
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
  const bool few_warps = shape.tile_warps <= matvec::kFewWarps;
  const int norm_bytes =
      args.norm.residual == nullptr ? 0 : (segment + cols + NormThreads(cols) / 32) * sizeof(float);
  const int x_bytes = segment * (one_token ? 2 : 16) + norm_bytes;
  const int ring_bytes = std::min(kRingBytes, kMaxSharedBytes - x_bytes) / shape.tile_warps;
  shape.stage_bytes = few_warps ? stretch_bytes : small_bytes;
  int most_stages = 0;
  for (int i = 0; i < args.num_matrices; ++i) {
    const TileFormat format = args.matrices[i].format;
    const int units = (segment + UnitCols(format) - 1) / UnitCols(format);
    const int in_stage = matvec::StageUnits(format, shape.stage_bytes);
    most_stages = std::max(most_stages, (units + in_stage - 1) / in_stage * rounds);
  }
  shape.stages =
      std::min(std::clamp(ring_bytes / shape.stage_bytes, 2, matvec::kMaxStages), most_stages);
  shape.stages_ahead = std::max(1, kBytesAhead / (shape.tile_warps * shape.stage_bytes));
  int shared_bytes = shape.tile_warps * shape.stages * shape.stage_bytes + x_bytes;
  if (args.gated.data != nullptr || (formats & ~kReadyFormats) != 0) {
    shared_bytes = std::max(shared_bytes, kMoreThanHalf);
  }
  return LaunchInDecode(FindKernel(formats, one_token, few_warps), dim3(members * args.splits),
                        (std::max(shape.tile_warps, kMinWarps) + 1) * 32, shared_bytes, stream,
                        args, shape);
}

}  // namespace orcd::cuda
