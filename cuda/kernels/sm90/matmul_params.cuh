// A product as kernels take it.
#ifndef ORCD_CUDA_KERNELS_SM90_MATMUL_PARAMS_CUH_
#define ORCD_CUDA_KERNELS_SM90_MATMUL_PARAMS_CUH_

#include <variant>

#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/product_tiles.cuh"

namespace orcd::cuda {

// The parts of valid MatmulArgs side by side; pointers of alternatives not taken are null.
struct MatmulParams : Product {
  Activations x = {};
  NormArgs norm = {};
  // AddToResidual has the stride of `store`.
  StoreF32 store = {};
  AddToResidual add = {};
  SwiGlu swiglu = {};
  StoreQkv qkv = {};
  StreamKWorkspace stream_k = {};
  // Rows of the result, and PartialsTokens.
  int rows = 0;
  int partials_tokens = 0;

  explicit MatmulParams(const MatmulArgs& args)
      : Product(args.product),
        stream_k(args.stream_k),
        rows(Rows(args.product)),
        partials_tokens(PartialsTokens(args.product.tokens)) {
    if (const auto* const part = std::get_if<Activations>(&args.prologue)) x = *part;
    if (const auto* const part = std::get_if<NormArgs>(&args.prologue)) norm = *part;
    if (const auto* const part = std::get_if<StoreF32>(&args.epilogue)) store = *part;
    if (const auto* const part = std::get_if<AddToResidual>(&args.epilogue)) add = *part;
    if (const auto* const part = std::get_if<SwiGlu>(&args.epilogue)) swiglu = *part;
    if (const auto* const part = std::get_if<StoreQkv>(&args.epilogue)) qkv = *part;
    if (add.residual != nullptr) store.stride = add.stride;
  }
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SM90_MATMUL_PARAMS_CUH_
