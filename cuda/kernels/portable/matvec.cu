// Launches of the product for a few tokens: one for the matrices of each set of formats
// (matvec_params.h), with the number of warps, stages and bytes of shared memory that suit the GPU.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <variant>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/portable/kernel_set.h"
#include "cuda/kernels/portable/matvec.cuh"

namespace orcd::cuda::portable {
namespace {

using matvec::Kernel;
using matvec::KernelFor;
using matvec::LaunchShape;
using matvec::MatvecParams;
using matvec::Part;

constexpr int kMaxWarps = 20;
// Warps that copy x quickly, if few warps have tiles.
constexpr int kMinWarps = 4;
// Warps that hide each other's latencies; fewer only where a block has no more tiles.
constexpr int kFewWarps = 8;
// Bytes of all rings of a block: more bytes in flight do not arrive sooner.
constexpr int kMostRingBytes = 128 * 1024;
// Bytes in flight with which a block reads as fast as it can, of fast and of slow memory.
constexpr int kLeastBytesInFlight = 44 * 1024;
constexpr int kFewBytesInFlight = 16 * 1024;
// Bytes of weights in flight before x is there: the copies of x queue behind them.
constexpr int kBytesAhead = 48 * 1024;
// Shared memory that the system reserves for every block.
constexpr int kReservedBytes = 1024;
// A block has at most this share of its shared memory for a chunk of x.
constexpr int kChunkShare = 3;

struct FormatSet {
  uint32_t formats;
  Kernel (*kernel)();
};
constexpr FormatSet kSets[] = {
    {matvec::kF16, KernelFor<matvec::kF16>},
    {matvec::kBlocks, KernelFor<matvec::kBlocks>},
    {matvec::kSuperBlocks, KernelFor<matvec::kSuperBlocks>},
    {matvec::kBookFormats, KernelFor<matvec::kBookFormats>},
};

const FormatSet& SetOf(TileFormat format) {
  return *std::find_if(std::begin(kSets), std::end(kSets), [&](const FormatSet& set) {
    return (set.formats & FormatBit(format)) != 0;
  });
}

// True if a launch takes a matrix of `format` beside one of `other`.
bool OneLaunchTakes(TileFormat format, TileFormat other) {
  return format == other || (!HasBook(format) && SetOf(format).formats == SetOf(other).formats);
}

constexpr int Quotient(int value, int by) { return (value + by - 1) / by; }

// Chooses a launch's shape, as good as the shared memory allows.
class ShapeChooser {
 public:
  ShapeChooser(const MatvecParams& args, int cols, int splits, const DeviceTraits& device) {
    for (int s = 0; s <= splits; ++s) {
      shape_.split_begin[s] = SplitBegin(cols, splits, s);
      if (s > 0) {
        split_cols_ = std::max(split_cols_, shape_.split_begin[s] - shape_.split_begin[s - 1]);
      }
    }
    shape_.members = std::min(args.tiles, std::max(1, device.sms / splits));
    shape_.log2_tokens = std::bit_width(static_cast<unsigned>(args.tokens - 1));
    tiles_a_block_ = Quotient(args.tiles, shape_.members);
    for (const Part& part : args.parts) {
      if (part.data == nullptr) continue;
      shape_.stage_bytes = std::max(shape_.stage_bytes, part.stage_bytes);
      const int stage_cols = matvec::StageGroups(part.format) * kActivationCols;
      tile_stages_ = std::max(tile_stages_, Quotient(split_cols_, stage_cols));
    }
    if (HasBook(args.parts[0].format)) book_bytes_ = kBookBytes;
  }

  // Chooses a shape with all of x in shared memory and at most `budget` bytes of it, `more_rounds`
  // beyond the fewest at most. False if there is none with enough warps and `in_flight` bytes.
  bool Choose(int budget, int more_rounds, int in_flight) {
    shape_.chunk_cols = split_cols_;
    const int enough_warps = std::min(tiles_a_block_, kFewWarps);
    const int fewest = Quotient(tiles_a_block_, kMaxWarps);
    for (int rounds = fewest; rounds <= fewest + more_rounds; ++rounds) {
      const bool fits = SetRings(budget, rounds);
      if (shape_.tile_warps < enough_warps) return false;
      if (!fits) continue;
      if ((shape_.stages - 1) * shape_.all_stages_bytes >= in_flight) return true;
      // Rings with more are of no use, or there are none.
      if (shape_.stages > tile_stages_ * rounds || shape_.stages == matvec::kMaxStages) return true;
    }
    return false;
  }
  // Chooses a shape for any x: with chunks of it, unless all of it lets as many warps work.
  bool ChooseAny(int budget) {
    const int column_bytes = 2 << shape_.log2_tokens;
    const int chunk = (budget - book_bytes_) / kChunkShare / column_bytes /
                      matvec::kChunkAlignment * matvec::kChunkAlignment;
    const int fewest = Quotient(tiles_a_block_, kMaxWarps);
    for (int rounds = fewest; rounds <= tiles_a_block_; ++rounds) {
      for (const int chunk_cols : {split_cols_, std::min(split_cols_, chunk)}) {
        shape_.chunk_cols = chunk_cols;
        if (chunk_cols > 0 && SetRings(budget, rounds)) return true;
      }
    }
    return false;
  }

  LaunchShape& shape() { return shape_; }
  int shared_bytes() const { return shared_bytes_; }

 private:
  // Sets warps, stages and offsets for `rounds` rounds of tiles and shape_.chunk_cols. False if
  // there is no memory for two stages.
  bool SetRings(int budget, int rounds) {
    shape_.rounds = rounds;
    shape_.tile_warps = Quotient(tiles_a_block_, rounds);
    shape_.all_stages_bytes = shape_.tile_warps * shape_.stage_bytes;
    const int x_bytes = shape_.chunk_cols * 2 << shape_.log2_tokens;
    const int book_room = book_bytes_ == 0 ? 0 : book_bytes_ + kBookAlignment;
    const int room = std::min(budget - x_bytes - book_room, kMostRingBytes);
    // More than four of them are a number that AwaitAllCopiesBut waits for exactly.
    int useful = tile_stages_ * rounds + 1;
    if (useful > 4) useful += useful % 2;
    const int stages =
        std::min({matvec::kMaxStages, useful, std::max(room, 0) / shape_.all_stages_bytes});
    shape_.stages = stages > 4 ? stages - stages % 2 : stages;
    shape_.ring_bytes = shape_.stages * shape_.all_stages_bytes;
    shape_.book = RoundUp(shape_.ring_bytes + x_bytes, kBookAlignment);
    shared_bytes_ = book_bytes_ == 0 ? shape_.ring_bytes + x_bytes : shape_.book + book_bytes_;
    return shape_.stages >= 2;
  }
  static constexpr int RoundUp(int value, int to) { return Quotient(value, to) * to; }

  LaunchShape shape_ = {};
  int split_cols_ = 0;
  int tiles_a_block_ = 0;
  // Most stages of a tile in a split.
  int tile_stages_ = 0;
  int book_bytes_ = 0;
  int shared_bytes_ = 0;
};

cudaError_t LaunchOne(const MatvecParams& args, int cols, int splits, const DeviceTraits& device,
                      cudaStream_t stream) {
  const bool overlaps = LaunchesOverlap();
  ShapeChooser chooser(args, cols, splits, device);
  // Half of an SM's shared memory leaves the other half to the next kernel, which then begins to
  // read. A whole SM's allows more warps.
  const bool shares =
      overlaps && chooser.Choose(device.smem_sm / 2 - kReservedBytes, 1, kLeastBytesInFlight);
  if (!shares && !chooser.Choose(device.smem_block, args.tiles, kFewBytesInFlight) &&
      !chooser.ChooseAny(device.smem_block)) {
    return cudaErrorInvalidValue;
  }
  LaunchShape& shape = chooser.shape();
  shape.stages_ahead = overlaps && !args.weights_are_new
                           ? std::clamp(kBytesAhead / shape.all_stages_bytes, 1, shape.stages - 1)
                           : 0;
  return LaunchInDecode(SetOf(args.parts[0].format).kernel(), dim3(shape.members, splits),
                        std::max(shape.tile_warps, kMinWarps) * 32, chooser.shared_bytes(), stream,
                        args, shape);
}

Part MakePart(const TiledMatrix& matrix, int first_tile) {
  return {.data = matrix.data,
          .format = matrix.format,
          .exponent = matrix.exponent,
          .tile_bytes = static_cast<int>(matrix.tile_bytes()),
          .unit_cols_log2 = UnitColsLog2(matrix.format),
          .unit_bytes = UnitBytes(matrix.format),
          .stage_bytes = matvec::StageBytes(matrix.format),
          .first_tile = first_tile};
}

// Returns true if LaunchMatvec takes the arguments.
bool Takes(const MatmulArgs& args) {
  const Product& product = args.product;
  const auto* const x = std::get_if<Activations>(&args.prologue);
  const auto* const store = std::get_if<StoreF32>(&args.epilogue);
  const auto* const swiglu = std::get_if<SwiGlu>(&args.epilogue);
  if (product.tokens < 1 || product.tokens > kMatvecTokens || product.num_matrices < 1) {
    return false;
  }
  // The kernel takes activations of eight tokens at a time.
  if (x == nullptr || x->tokens != kMatvecTokens) return false;
  const int cols = product.matrices[0].cols;
  for (int i = 0; i < product.num_matrices; ++i) {
    if (product.matrices[i].cols != cols) return false;
    if (i > 0 && product.matrices[i - 1].rows % kTileRows != 0) return false;
  }
  if (product.splits < 1 || product.splits > std::min(kMaxSplits, KBlocks(cols))) return false;
  if (swiglu != nullptr) return product.num_matrices == 1 && product.splits == 1;
  return store != nullptr && (!store->sum || product.splits == 1);
}

}  // namespace

cudaError_t PrepareMatvecKernels(const DeviceTraits& device) {
  for (const FormatSet& set : kSets) {
    const cudaError_t error = cudaFuncSetAttribute(
        set.kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, device.smem_block);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchMatvec(const MatmulArgs& args, const DeviceTraits& device, cudaStream_t stream) {
  if (!Takes(args)) return cudaErrorInvalidValue;
  const Product& product = args.product;
  const auto* const store = std::get_if<StoreF32>(&args.epilogue);
  MatvecParams params = {};
  params.weights_are_new = product.weights_are_new;
  params.tokens = product.tokens;
  params.x = reinterpret_cast<const uint4*>(std::get<Activations>(args.prologue).data);
  if (store != nullptr) {
    params.y = store->y;
    params.stride = store->stride;
  } else {
    params.swiglu = std::get<SwiGlu>(args.epilogue);
  }
  for (int i = 0; i < product.num_matrices;) {
    const TileFormat format = product.matrices[i].format;
    params.rows = 0;
    params.tiles = 0;
    for (Part& part : params.parts) {
      part = {.first_tile = 1 << 30};
      if (i == product.num_matrices || !OneLaunchTakes(format, product.matrices[i].format))
        continue;
      const TiledMatrix& matrix = product.matrices[i++];
      part = MakePart(matrix, params.tiles);
      params.rows += matrix.rows;
      params.tiles += matrix.row_tiles();
    }
    const cudaError_t error =
        LaunchOne(params, product.matrices[0].cols, product.splits, device, stream);
    if (error != cudaSuccess) return error;
    if (store != nullptr) params.y += params.rows;
  }
  return cudaSuccess;
}

}  // namespace orcd::cuda::portable
