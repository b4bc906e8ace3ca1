// Entry points of the products of experts: dispatches one token to matvec_experts.cu, more by the
// format to gemm_experts_….cu.
#include "cuda/kernels/sm90/gemm_experts.cuh"
#include "cuda/kernels/sm90/kernel_set.h"

namespace orcd::cuda {
namespace {

MatmulParams ExpertProduct(const ExpertMatmulArgs& args) {
  MatmulArgs product = {.prologue = args.x,
                        .product = {.matrices = {args.experts}, .num_matrices = 1}};
  product.product.matrices[0].rows = args.expert_rows;
  if (const auto* const store = std::get_if<StoreF32>(&args.epilogue)) product.epilogue = *store;
  if (const auto* const swiglu = std::get_if<SwiGlu>(&args.epilogue)) product.epilogue = *swiglu;
  MatmulParams params(product);
  params.rows = args.stored_rows;
  return params;
}

}  // namespace

cudaError_t sm90::LaunchExpertGemm(const ExpertMatmulArgs& args, const DeviceTraits& device,
                                   cudaStream_t stream) {
  if (args.one_token != OneToken::kNo) return LaunchExpertMatvec(args, device, stream);
  constexpr int kMostTileRows = 256;
  if (args.expert_rows % kTileRows != 0 || args.tile_rows <= 0 || args.tile_rows > kMostTileRows ||
      std::holds_alternative<SumOfChoices>(args.epilogue)) {
    return cudaErrorInvalidValue;
  }
  if (args.max_tiles == 0) return cudaSuccess;
  const gemm::ExpertParams params = {.product = ExpertProduct(args),
                                     .tiles = args.tiles,
                                     .tile_rows = args.tile_rows,
                                     .bias = args.bias,
                                     .max_tiles = args.max_tiles};
  const auto launch = [&] {
    switch (args.experts.format) {
      case TileFormat::kF16:
      case TileFormat::kQ8_0:
      case TileFormat::kQ5_0:
        return gemm::LaunchExpertsOfBlocks;
      case TileFormat::kQ4_0:
      case TileFormat::kQ4_1:
      case TileFormat::kQ5_1:
        return gemm::LaunchExpertsOfRareBlocks;
      case TileFormat::kQ2_K:
      case TileFormat::kQ4_K:
      case TileFormat::kQ5_K:
      case TileFormat::kQ6_K:
        return gemm::LaunchExpertsOfSuperBlocks;
      case TileFormat::kMXFP4:
      case TileFormat::kIQ4_XS:
      case TileFormat::kIQ4_NL:
      case TileFormat::kNVFP4:
        return gemm::LaunchExpertsOfLevelBooks;
      default:
        return gemm::LaunchExpertsOfGroupBooks;
    }
  }();
  return launch(params, device.sms, stream);
}

cudaError_t sm90::PrepareExpertGemmKernels() {
  return AnyError({gemm::PrepareExpertsOfBlocks(), gemm::PrepareExpertsOfRareBlocks(),
                   gemm::PrepareExpertsOfSuperBlocks(), gemm::PrepareExpertsOfLevelBooks(),
                   gemm::PrepareExpertsOfGroupBooks(), PrepareExpertMatvecKernels()});
}

}  // namespace orcd::cuda
