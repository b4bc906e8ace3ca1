// Entry points of the products of many tokens and of experts: checks the arguments and dispatches
// to gemm_….cu.
#include <algorithm>
#include <variant>

#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/portable/gemm.cuh"
#include "cuda/kernels/portable/kernel_set.h"

namespace orcd::cuda::portable {
namespace {

// True if kernels take the product, and the epilogue, of the arguments.
bool Takes(const MatmulArgs& args) {
  const Product& p = args.product;
  const bool many = p.tokens > kMaxPartialsTokens;
  bool fits = p.tokens > kMatvecTokens && p.num_matrices > 0 && p.splits >= 1;
  for (int i = 0; i < p.num_matrices; ++i) {
    const TiledMatrix& matrix = p.matrices[i];
    const TiledMatrix& before = p.matrices[std::max(i - 1, 0)];
    fits = fits && GemmTakes(matrix.format, p.tokens) && matrix.format == before.format &&
           matrix.cols == before.cols && (i == 0 || before.rows % kTileRows == 0);
  }
  const auto* const x = std::get_if<Activations>(&args.prologue);
  if (!fits || x == nullptr || x->tokens < p.tokens) return false;
  if (const auto* const store = std::get_if<StoreF32>(&args.epilogue)) {
    return p.splits == 1 || (store->sum ? p.matrices[0].format == TileFormat::kF16 : !many);
  }
  return std::holds_alternative<SwiGlu>(args.epilogue) && p.num_matrices == 1 && p.splits == 1;
}

template <typename Args>
void SetEpilogue(const Args& args, gemm::Params& params) {
  if (const auto* const part = std::get_if<StoreF32>(&args.epilogue)) params.store = *part;
  if (const auto* const part = std::get_if<SwiGlu>(&args.epilogue)) params.swiglu = *part;
}

// Launches the kernel that dequantises weights of the format.
cudaError_t LaunchOfFormat(const gemm::Params& params, const DeviceTraits& device,
                           cudaStream_t stream) {
  switch (params.matrices[0].format) {
    case TileFormat::kF16:
    case TileFormat::kQ8_0:
    case TileFormat::kQ5_0:
      return gemm::LaunchOfBlocks(params, device, stream);
    case TileFormat::kQ4_0:
    case TileFormat::kQ4_1:
    case TileFormat::kQ5_1:
      return gemm::LaunchOfRareBlocks(params, device, stream);
    case TileFormat::kQ2_K:
    case TileFormat::kQ4_K:
    case TileFormat::kQ5_K:
    case TileFormat::kQ6_K:
      return gemm::LaunchOfSuperBlocks(params, device, stream);
    case TileFormat::kMXFP4:
    case TileFormat::kIQ4_XS:
    case TileFormat::kIQ4_NL:
    case TileFormat::kNVFP4:
      return gemm::LaunchOfLevelBooks(params, device, stream);
    default:
      return gemm::LaunchOfGroupBooks(params, device, stream);
  }
}

}  // namespace

bool GemmTakes(TileFormat format, int tokens) {
  return format == TileFormat::kF16 || tokens <= kMaxPartialsTokens;
}

bool GemmTakesBehind(TileFormat before, TileFormat format) { return format == before; }

cudaError_t PrepareGemmKernels(const DeviceTraits& device) {
  return AnyError({gemm::PrepareOfF16(device), gemm::PrepareOfBlocks(device),
                   gemm::PrepareOfRareBlocks(device), gemm::PrepareOfSuperBlocks(device),
                   gemm::PrepareOfLevelBooks(device), gemm::PrepareOfGroupBooks(device)});
}

cudaError_t LaunchGemm(const MatmulArgs& args, const DeviceTraits& device, cudaStream_t stream) {
  if (!Takes(args)) return cudaErrorInvalidValue;
  gemm::Params params = {args.product};
  params.x = std::get<Activations>(args.prologue);
  params.row_tiles = RowTiles(args.product);
  params.rows = Rows(args.product);
  params.partials_tokens = PartialsTokens(args.product.tokens);
  SetEpilogue(args, params);
  const bool f16 = params.matrices[0].format == TileFormat::kF16;
  return f16 && (params.tokens > gemm::kFewTokens || (params.store.sum && params.splits > 1))
             ? gemm::LaunchOfF16(params, device, stream)
             : LaunchOfFormat(params, device, stream);
}

cudaError_t LaunchExpertGemm(const ExpertMatmulArgs& args, const DeviceTraits& device,
                             cudaStream_t stream) {
  constexpr int kMostTileRows = 256;
  if (args.expert_rows % kTileRows != 0 || args.tile_rows <= 0 || args.tile_rows > kMostTileRows ||
      args.one_token != OneToken::kNo || std::holds_alternative<SumOfChoices>(args.epilogue)) {
    return cudaErrorInvalidValue;
  }
  if (args.max_tiles == 0) return cudaSuccess;
  gemm::Params params = {{.matrices = {args.experts}, .num_matrices = 1}};
  params.matrices[0].rows = args.expert_rows;
  params.x = args.x;
  params.row_tiles = args.expert_rows / kTileRows;
  params.rows = args.stored_rows;
  params.expert_tiles = args.tiles;
  params.max_expert_tiles = args.max_tiles;
  params.tile_rows = args.tile_rows;
  params.bias = args.bias;
  SetEpilogue(args, params);
  return LaunchOfFormat(params, device, stream);
}

}  // namespace orcd::cuda::portable
