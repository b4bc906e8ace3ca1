// Launch of the product for a few tokens: picks the kernel (matvec.cuh) of the model's formats, and
// the number of warps, stages and bytes of shared memory.
#include <algorithm>
#include <array>
#include <bit>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/sm90/kernel_set.h"
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda {
namespace {

using matvec::Kernel;
using matvec::KernelFor;
using matvec::LaunchShape;

constexpr int kMaxSharedBytes = sm90::kMatvecSharedBytes;
constexpr int kStaticBytes = (sizeof(matvec::RingBarriers) + 127) / 128 * 128;
// Bytes of all rings of a block that has an SM for itself. More bytes in flight do not arrive
// sooner, and keep other reads waiting.
constexpr int kRingBytes = 144 * 1024;
// Columns of a stage; with many warps, so many that a stage is about 2 KB.
constexpr int kStageCols = matvec::kMaxStageCols;
constexpr int kSmallStageCols = 128;
constexpr int kSmallF16StageCols = 64;
constexpr int kFewWarps = 8;
// Warps that make an input quickly, if few warps have tiles.
constexpr int kMinWarps = 8;

// Bytes of weights in flight before x is there. Two stages may be up to kTwoStagesAhead if x is
// short, as it is without a norm.
constexpr int kBytesAhead = 32 * 1024;
constexpr int kTwoStagesAhead = 56 * 1024;

struct FormatSet {
  uint32_t formats;
  Kernel (*kernel)(bool one_token);
};
template <uint32_t... kFormats>
constexpr std::array kSetsOf = {FormatSet{kFormats, KernelFor<kFormats>}...};
// The sets that models use; the last takes any format.
constexpr auto& kSets =
    kSetsOf<FormatBit(TileFormat::kF16), FormatBit(TileFormat::kQ8_0), FormatBit(TileFormat::kQ4_0),
            FormatBit(TileFormat::kQ5_0), FormatBit(TileFormat::kIQ4_NL),
            FormatBit(TileFormat::kQ4_K), FormatBit(TileFormat::kQ5_K),
            FormatBit(TileFormat::kQ6_K), matvec::kQ4KM, matvec::kQ5KM, matvec::kSmallQ4KM,
            matvec::kIq4XsM, matvec::kDeltaInputs, matvec::kIq4XsDeltaInputs, matvec::kMxfp4Q8,
            FormatBit(TileFormat::kNVFP4), matvec::kIq3M, FormatBit(TileFormat::kIQ3_XXS),
            FormatBit(TileFormat::kIQ2_S), FormatBit(TileFormat::kIQ2_XS),
            FormatBit(TileFormat::kIQ2_XXS), matvec::kAllFormats>;

// Returns the first set that contains all of `formats`.
const FormatSet& SetOf(uint32_t formats) {
  return *std::find_if(kSets.begin(), kSets.end(),
                       [&](const FormatSet& set) { return (formats & ~set.formats) == 0; });
}

// Returns the kernel for the whole model's formats, unless those are so many that one for the
// product's alone is faster.
Kernel FindKernel(uint32_t formats, uint32_t model_formats, bool one_token) {
  const FormatSet& of_model = SetOf(formats | model_formats);
  constexpr int kFewFormats = 4;
  const bool few = std::popcount(of_model.formats) <= kFewFormats;
  return (few ? of_model : SetOf(formats)).kernel(one_token);
}

// Sets the bytes of a stage of the rings, and returns the most stages that a ring can use.
int SetStageBytes(const MatmulParams& args, int split_cols, int rounds, LaunchShape& shape) {
  shape.stage_bytes = 0;
  int most_stages = 0;
  for (int i = 0; i < args.num_matrices; ++i) {
    const TileFormat format = args.matrices[i].format;
    const int in_stage = matvec::StageUnits(format, shape.stage_cols);
    const int units = (split_cols + UnitCols(format) - 1) / UnitCols(format);
    shape.stage_bytes = std::max(shape.stage_bytes, in_stage * UnitBytes(format));
    most_stages = std::max(most_stages, (units + in_stage - 1) / in_stage * rounds);
  }
  return most_stages;
}

// Sets the warps that have tiles, for `rounds` rounds of tiles, and the stages of their rings
// beside `other_bytes` of shared memory. Returns the bytes of a stage of all rings.
int SetRings(const MatmulParams& args, uint32_t formats, int split_cols, int tiles_a_block,
             int rounds, int other_bytes, LaunchShape& shape) {
  shape.tile_warps = (tiles_a_block + rounds - 1) / rounds;
  shape.stage_cols = shape.tile_warps <= kFewWarps            ? kStageCols
                     : formats == FormatBit(TileFormat::kF16) ? kSmallF16StageCols
                                                              : kSmallStageCols;
  constexpr int kMinStages = 2;
  for (;; shape.stage_cols /= 2) {
    const int most_stages = SetStageBytes(args, split_cols, rounds, shape);
    const int all_rings_stage = shape.tile_warps * shape.stage_bytes;
    const auto stages_in = [&](int ring_bytes) {
      return std::min({ring_bytes / all_rings_stage, matvec::kMaxStages, most_stages});
    };
    shape.stages = stages_in(kMaxSharedBytesOfTwo - kStaticBytes - other_bytes);
    if (shape.stages >= std::min(kMinStages, most_stages)) return all_rings_stage;
    // Smaller stages in a step of one token, lest the kernel before leave no room for this one:
    // where it ends first, two blocks would then share an SM.
    if (args.tokens == 1 && shape.stage_cols > kSmallF16StageCols) continue;
    shape.stages =
        std::max(kMinStages, stages_in(std::min(kRingBytes, kMaxSharedBytes - other_bytes)));
    return all_rings_stage;
  }
}

}  // namespace

cudaError_t sm90::PrepareMatvecKernels() {
  for (const FormatSet& set : kSets) {
    for (const bool one_token : {true, false}) {
      const cudaError_t error = cudaFuncSetAttribute(
          set.kernel(one_token), cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

cudaError_t sm90::LaunchMatvec(const MatmulArgs& matmul, const DeviceTraits& device,
                               cudaStream_t stream) {
  if (!sm90::MatvecTakes(matmul.product) || sm90::MatmulProblem(matmul) != nullptr) {
    return cudaErrorInvalidValue;
  }
  const MatmulParams args(matmul);
  const int tiles = RowTiles(args);
  const uint32_t formats = sm90::FormatsOf(args);
  LaunchShape shape = {};
  const int cols = args.matrices[0].cols;
  const int members = std::min(tiles, std::max(1, device.sms / args.splits));
  shape.tiles = tiles;
  shape.members = members;
  shape.k_block_cols = KBlockCols(cols);
  shape.k_blocks = KBlocks(cols);
  shape.splits_reciprocal =
      args.splits == 1 ? 0 : static_cast<uint32_t>((uint64_t{1} << 32) / args.splits + 1);
  const int tiles_a_block = (tiles + members - 1) / members;

  const int split_cols = sm90::SplitCols(args);
  const bool one_token = args.tokens == 1;
  // If the block makes x: the norm's weights (InputShared), a row and the sums.
  int x_bytes = split_cols / 8 * sm90::MatvecInputStride(args.tokens);
  if (args.norm.residual != nullptr) {
    x_bytes = (split_cols + cols + NormThreads(cols) / 32) * static_cast<int>(sizeof(float));
  }
  const int other_bytes = sm90::BytesBesideRings(x_bytes, formats);
  const int fewest_rounds = (tiles_a_block + matvec::kMaxWarps - 1) / matvec::kMaxWarps;
  int all_rings_stage = 0;
  // Returns the block's shared memory.
  const auto set_rings = [&](int rounds) {
    all_rings_stage =
        SetRings(args, formats, split_cols, tiles_a_block, rounds, other_bytes, shape);
    return shape.stages * all_rings_stage + other_bytes;
  };
  int rounds = fewest_rounds;
  int bytes = set_rings(rounds);
  // Fewer warps if a book of pairs leaves no room for the next kernel's block, but not too few.
  if (one_token && (formats & FormatBit(TileFormat::kIQ4_XS)) != 0) {
    constexpr int kTwoBytes = kMaxSharedBytesOfTwo - kStaticBytes;
    while (bytes > kTwoBytes && shape.tile_warps > kFewWarps) bytes = set_rings(++rounds);
    if (bytes > kTwoBytes) {
      rounds = fewest_rounds;
      bytes = set_rings(rounds);
    }
  }
  // Fewer warps if the rings do not fit.
  while (bytes > kMaxSharedBytes && shape.tile_warps > 1) bytes = set_rings(++rounds);
  int book = (shape.stages * all_rings_stage + x_bytes + kBookAlignment - 1) / kBookAlignment *
             kBookAlignment;
  for (int i = 0; i < kBooks; ++i) {
    if ((formats >> kFirstBook >> i & 1) == 0) continue;
    shape.books[i] = book;
    book += kBookBytes;
  }
  const bool two =
      args.norm.residual == nullptr && shape.stages >= 2 && 2 * all_rings_stage <= kTwoStagesAhead;
  shape.stages_ahead = std::clamp(kBytesAhead / all_rings_stage, two ? 2 : 1, shape.stages);
  const int shared_bytes = std::max(bytes, kMinSharedBytesOfTwo - kStaticBytes);
  return LaunchInDecode(FindKernel(formats, matmul.model_formats, one_token),
                        dim3(std::max(device.sms, members * args.splits)),
                        (std::max(shape.tile_warps, kMinWarps) + 1) * 32, shared_bytes, stream,
                        args, shape);
}

}  // namespace orcd::cuda
