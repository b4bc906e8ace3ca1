// Launch of the products of one token's experts: picks the kernel (matvec_experts.cuh) of the
// format, and the number of warps, stages and bytes of shared memory.
#include <algorithm>
#include <array>
#include <variant>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/sm90/kernel_set.h"
#include "cuda/kernels/sm90/matvec_experts.cuh"

namespace orcd::cuda {
namespace {

using matvec::ExpertMatvec;
using matvec::ExpertMatvecFor;
using matvec::ExpertMatvecParams;
using matvec::LaunchShape;

constexpr int kMaxSharedBytes = 220 * 1024;
constexpr int kStaticBytes = (sizeof(matvec::RingBarriers) + 127) / 128 * 128 +
                             2 * matvec::kMaxWarps * kTileRows * static_cast<int>(sizeof(float));
// Warps that copy x quickly, if few warps have tasks.
constexpr int kMinWarps = 8;
constexpr int kMinStages = 2;
// Bytes of weights in flight before x is there, as in matvec.cu.
constexpr int kBytesAhead = 56 * 1024;

struct FormatSet {
  uint32_t formats;
  ExpertMatvec (*kernel)();
};
template <uint32_t... kFormats>
constexpr std::array kSetsOf = {FormatSet{kFormats, ExpertMatvecFor<kFormats>}...};
constexpr auto& kSets =
    kSetsOf<FormatBit(TileFormat::kF16), FormatBit(TileFormat::kQ8_0), FormatBit(TileFormat::kQ5_0),
            matvec::kRareBlocks, matvec::kQ4KM, FormatBit(TileFormat::kQ5_K),
            FormatBit(TileFormat::kQ2_K), FormatBit(TileFormat::kMXFP4),
            FormatBit(TileFormat::kIQ4_XS), matvec::kRareLevelBooks, FormatBit(TileFormat::kIQ3_S),
            FormatBit(TileFormat::kIQ3_XXS), FormatBit(TileFormat::kIQ2_S),
            FormatBit(TileFormat::kIQ2_XS), FormatBit(TileFormat::kIQ2_XXS)>;

// Sets the stages of the rings of shape.tile_warps warps beside `other_bytes` of shared memory.
// False if there is no room for two.
bool SetRings(const TiledMatrix& matrix, int rounds, int other_bytes, LaunchShape& shape) {
  constexpr int kStageCols[] = {256, 128, 64};
  for (const int most_bytes : {kMaxSharedBytesOfTwo - kStaticBytes, kMaxSharedBytes}) {
    for (const int stage_cols : kStageCols) {
      const int in_stage = matvec::StageUnits(matrix.format, stage_cols);
      const int most = (matrix.units() + in_stage - 1) / in_stage * rounds;
      shape.stage_cols = stage_cols;
      shape.stage_bytes = in_stage * UnitBytes(matrix.format);
      shape.stages = std::min({(most_bytes - other_bytes) / (shape.tile_warps * shape.stage_bytes),
                               matvec::kMaxStages, most});
      if (shape.stages >= std::min(kMinStages, most)) return true;
    }
  }
  return false;
}

ExpertMatvecParams ParamsOf(const ExpertMatmulArgs& args) {
  ExpertMatvecParams params = {.matrix = args.experts,
                               .x = args.x,
                               .shares_x = args.one_token == OneToken::kSharedRow,
                               .tiles = args.tiles,
                               .max_tiles = args.max_tiles,
                               .stored_rows = args.stored_rows,
                               .bias = args.bias,
                               .bias_stride = args.expert_rows};
  params.matrix.rows = args.expert_rows;
  if (const auto* const store = std::get_if<StoreF32>(&args.epilogue)) params.store = *store;
  if (const auto* const swiglu = std::get_if<SwiGlu>(&args.epilogue)) params.swiglu = *swiglu;
  if (const auto* const sum = std::get_if<SumOfChoices>(&args.epilogue)) {
    params.sum = *sum;
    params.bias = sum->bias;
    params.bias_stride = args.stored_rows;
  }
  return params;
}

}  // namespace

cudaError_t sm90::PrepareExpertMatvecKernels() {
  for (const FormatSet& set : kSets) {
    const cudaError_t error = cudaFuncSetAttribute(
        set.kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t sm90::LaunchExpertMatvec(const ExpertMatmulArgs& args, const DeviceTraits& device,
                                     cudaStream_t stream) {
  const auto* const set = std::find_if(kSets.begin(), kSets.end(), [&](const FormatSet& of) {
    return (of.formats & FormatBit(args.experts.format)) != 0;
  });
  if (set == kSets.end() || args.expert_rows % kTileRows != 0 || args.max_tiles < 1 ||
      args.max_tiles > kMaxOneTokenChoices) {
    return cudaErrorInvalidValue;
  }
  const ExpertMatvecParams params = ParamsOf(args);
  const int row_tiles = params.matrix.row_tiles();
  const bool sums = params.sum.out != nullptr;
  // Warps that take tasks together, such groups in all and in a block, and rounds of a block.
  const int group = sums ? params.max_tiles : 1;
  const int groups = sums ? row_tiles : row_tiles * params.max_tiles;
  const int block_groups = (groups + device.sms - 1) / device.sms;
  const int rows = params.shares_x ? 1 : params.max_tiles;
  const int x_bytes = (rows + 1) / 2 * matvec::PairBytes(params.matrix.cols);
  const bool has_book = HasBook(params.matrix.format);
  const int other_bytes = x_bytes + BookRoom(has_book ? 1 : 0);
  LaunchShape shape = {};
  int rounds = (block_groups * group + matvec::kMaxWarps - 1) / matvec::kMaxWarps;
  for (;; ++rounds) {
    const int at_once = (block_groups + rounds - 1) / rounds;
    shape.tile_warps = at_once * group;
    if (shape.tile_warps <= matvec::kMaxWarps &&
        SetRings(params.matrix, rounds, other_bytes, shape)) {
      break;
    }
    if (at_once == 1) return cudaErrorInvalidValue;
  }
  const int all_rings_stage = shape.tile_warps * shape.stage_bytes;
  // Beside the weights of a list that has been waited for, x is already there or on its way.
  shape.stages_ahead =
      params.shares_x ? shape.stages : std::clamp(kBytesAhead / all_rings_stage, 1, shape.stages);
  if (has_book) {
    shape.books[BookNumber(params.matrix.format)] =
        (shape.stages * all_rings_stage + x_bytes + kBookAlignment - 1) / kBookAlignment *
        kBookAlignment;
  }
  const int shared_bytes =
      std::max(shape.stages * all_rings_stage + other_bytes, kMinSharedBytesOfTwo - kStaticBytes);
  return LaunchInDecode(set->kernel(), dim3(device.sms),
                        (std::max(shape.tile_warps, kMinWarps) + 1) * 32, shared_bytes, stream,
                        params, shape);
}

}  // namespace orcd::cuda
