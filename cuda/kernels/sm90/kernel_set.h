// The kernels for compute capability 9.0 (H100, H200), as KernelSet describes them.
#ifndef ORCD_CUDA_KERNELS_SM90_KERNEL_SET_H_
#define ORCD_CUDA_KERNELS_SM90_KERNEL_SET_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <variant>

#include "cuda/kernels/common/kernel_set.h"

namespace orcd::cuda {

// Shared-memory bounds of the kernels of a step of one token, which keeps two kernels on every SM:
// one that works, and the next, which prefetches. So each kernel has as many blocks as there are
// SMs (blocks without work wait for the kernel before, lest two blocks of a later kernel take their
// place), and each block has so much shared memory, dynamic and static, that two blocks fit an SM
// and three do not.
inline constexpr int kSmSharedBytes = 228 * 1024;
inline constexpr int kReservedSharedBytes = 1024;  // reserved by the system for every block
inline constexpr int kMaxSharedBytesOfTwo = kSmSharedBytes / 2 - kReservedSharedBytes;
inline constexpr int kMinSharedBytesOfTwo = kSmSharedBytes / 3 - kReservedSharedBytes + 128;

namespace sm90 {

extern const KernelSet kKernels;

cudaError_t PrepareMatvecKernels();
cudaError_t PrepareGemmKernels();
cudaError_t PrepareExpertGemmKernels();
cudaError_t PrepareExpertMatvecKernels();
cudaError_t PrepareDecodeAttentionKernels();
cudaError_t PreparePrefillAttentionKernels();
cudaError_t PrepareSampleKernel(int vocab);
cudaError_t PrepareRouteKernels();

cudaError_t LaunchMatvec(const MatmulArgs& args, const DeviceTraits& device, cudaStream_t stream);
cudaError_t LaunchGemm(const MatmulArgs& args, const DeviceTraits& device, cudaStream_t stream);
cudaError_t LaunchExpertGemm(const ExpertMatmulArgs& args, const DeviceTraits& device,
                             cudaStream_t stream);
// LaunchExpertGemm of one token (OneToken).
cudaError_t LaunchExpertMatvec(const ExpertMatmulArgs& args, const DeviceTraits& device,
                               cudaStream_t stream);
cudaError_t LaunchRouteOneToken(const RouteOneTokenArgs& args, const DeviceTraits& device,
                                cudaStream_t stream);
cudaError_t LaunchDecodeAttention(const DecodeAttentionArgs& args, const DeviceTraits& device,
                                  cudaStream_t stream);
cudaError_t LaunchPrefillAttention(const PrefillAttentionArgs& args, const DeviceTraits& device,
                                   cudaStream_t stream);
cudaError_t LaunchSample(const SampleArgs& args, const DeviceTraits& device, cudaStream_t stream);

// Most shared memory of a block of the matvec, and most columns of a stage of its rings.
inline constexpr int kMatvecSharedBytes = 220 * 1024;
inline constexpr int kMatvecStageCols = 256;

// Columns of the largest split.
constexpr int SplitCols(const Product& product) {
  const int cols = product.matrices[0].cols;
  int most = 0;
  for (int split = 0; split < product.splits; ++split) {
    most = std::max(most, SplitBegin(cols, product.splits, split + 1) -
                              SplitBegin(cols, product.splits, split));
  }
  return most;
}
// Bytes of 8 columns of the matvec's input in shared memory: of one token twice what they have
// (matvec_prologue.cuh), and of more than one those of eight.
constexpr int MatvecInputStride(int tokens) { return tokens == 1 ? 32 : 128; }
// The set of the matrices' formats.
constexpr uint32_t FormatsOf(const Product& product) {
  uint32_t formats = 0;
  for (int i = 0; i < product.num_matrices; ++i) formats |= FormatBit(product.matrices[i].format);
  return formats;
}
// Shared memory of a matvec block beside its rings: the input and the formats' books.
constexpr int BytesBesideRings(int input_bytes, uint32_t formats) {
  return (input_bytes + 127) / 128 * 128 + BookRoom(std::popcount(formats >> kFirstBook));
}
// True if there is room for the input of a split beside books and the rings of one warp.
constexpr bool MatvecTakes(const Product& product) {
  if (product.tokens > kMatvecTokens) return false;
  int stage_bytes = 0;
  for (int i = 0; i < product.num_matrices; ++i) {
    const TileFormat format = product.matrices[i].format;
    stage_bytes = std::max(stage_bytes, kMatvecStageCols / UnitCols(format) * UnitBytes(format));
  }
  const int x_bytes = SplitCols(product) / 8 * MatvecInputStride(product.tokens);
  return BytesBesideRings(x_bytes, FormatsOf(product)) + 2 * stage_bytes <= kMatvecSharedBytes;
}

constexpr bool GemmTakes(TileFormat format, int tokens) {
  switch (format) {
    case TileFormat::kF16:
      return true;
    case TileFormat::kQ8_0:
    case TileFormat::kQ5_0:
    case TileFormat::kQ4_K:
    case TileFormat::kQ5_K:
    case TileFormat::kQ6_K:
    case TileFormat::kIQ4_XS:
      return tokens <= kMaxPartialsTokens;
    default:
      return false;
  }
}

// Any formats that GemmTakes, in any order.
constexpr bool GemmTakesBehind(TileFormat before, TileFormat format) {
  return format == before ||
         (GemmTakes(before, kMatvecTokens + 1) && GemmTakes(format, kMatvecTokens + 1));
}

// True for F16 weights and a number of tokens above kMatvecTokens, if blocks of 64 tokens and all
// columns are as many as a large GPU runs at once, and have so few columns that reading what they
// do not share takes no longer than writing partials and adding them up.
constexpr bool GemmSums(const Product& product) {
  for (int i = 0; i < product.num_matrices; ++i) {
    if (product.matrices[i].format != TileFormat::kF16) return false;
  }
  const int tiles = RowTiles(product);
  return product.splits > 1 && product.tokens > 192 && product.tokens <= 256 && tiles >= 192 &&
         tiles <= 300 && product.matrices[0].cols <= 4096;
}

// Returns why no kernel takes the arguments; null if one does.
constexpr const char* MatmulProblem(const MatmulArgs& args) {
  const Product& p = args.product;
  const bool few = MatvecTakes(p);
  const bool many = p.tokens > kMaxPartialsTokens;
  bool f16 = true;
  for (int i = 0; i < p.num_matrices; ++i) {
    const TiledMatrix& matrix = p.matrices[i];
    const TiledMatrix& before = p.matrices[std::max(i - 1, 0)];
    f16 = f16 && matrix.format == TileFormat::kF16;
    if (!few &&
        !(GemmTakes(matrix.format, p.tokens) && GemmTakesBehind(before.format, matrix.format))) {
      return "does not take such formats";
    }
    if (matrix.cols != before.cols || (i > 0 && before.rows % kTileRows != 0)) {
      return "has matrices that do not fit together";
    }
  }
  const auto aligned = [&](int stride, int to) { return Rows(p) % to == 0 && stride % to == 0; };
  const auto* const x = std::get_if<Activations>(&args.prologue);
  const auto* const store = std::get_if<StoreF32>(&args.epilogue);
  const auto* const add = std::get_if<AddToResidual>(&args.epilogue);
  const auto* const qkv = std::get_if<StoreQkv>(&args.epilogue);
  if (x == nullptr ? p.tokens != 1 : x->tokens < p.tokens || (few && x->tokens > kMatvecTokens)) {
    return "has an input of other tokens";
  }
  if (const auto* const norm = std::get_if<NormArgs>(&args.prologue);
      norm != nullptr && !ProductsNormalise(*norm)) {
    return "cannot normalise its input so";
  }
  if (store != nullptr && p.splits > 1 &&
      (store->sum ? few || !f16 || !aligned(store->stride, many ? 4 : 2) : many)) {
    return "cannot store its result so";
  }
  if (add != nullptr && !(many && f16 && p.num_matrices == 1 && aligned(add->stride, 4))) {
    return "cannot add to the residual";
  }
  if (std::holds_alternative<SwiGlu>(args.epilogue) && (p.num_matrices > 1 || p.splits > 1)) {
    return "has several parts for SwiGLU";
  }
  if (qkv != nullptr &&
      !(many && f16 && qkv->rope.tokens == p.tokens && RopeEpilogueTakes(qkv->rope.qkv))) {
    return "cannot make qkv";
  }
  return nullptr;
}

}  // namespace sm90
}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SM90_KERNEL_SET_H_
