// Mixtures of experts (ExpertsSpec) on the GPU: the router, the sorting of a step's tokens by the
// experts that they chose, the products of experts, and the sum of their outputs. Everything runs
// on the GPU alone, so that a CUDA graph holds it: grids are for the most work that a step of so
// many tokens can have, and blocks without work end at once.
//
// A choice is one of the `used` experts of a token. Each choice has a row of the experts' inputs;
// rows are sorted by expert, and of one expert by token, and each expert's rows begin at a multiple
// of kExpertRowAlign. What a token gets depends on its own row alone: not on who shares its step.
//
// A shared expert joins the others if its matrices are like theirs (SharedMayJoin): it is then one
// more, the last, which each token chooses too (AllExperts), and needs no products of its own.
#ifndef ORCD_CUDA_KERNELS_COMMON_EXPERTS_H_
#define ORCD_CUDA_KERNELS_COMMON_EXPERTS_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <variant>

#include "cuda/kernels/common/activations.h"
#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/step.h"
#include "cuda/kernels/common/tile_format.h"
#include "runtime/backend/expert_load.h"
#include "runtime/model/spec.h"

namespace orcd::cuda {

// Bounds of the kernels.
inline constexpr int kMaxGpuExperts = 1024;
inline constexpr int kMaxGpuExpertsUsed = 32;

// Most experts of a token that are multiplied without gathered rows (MultipliesOneToken).
inline constexpr int kMaxOneTokenChoices = 16;

// Rows of activations that tensor cores take together.
inline constexpr int kExpertRowAlign = 8;

// True if the layer's shared expert joins the others, provided that its matrices have their types.
constexpr bool SharedMayJoin(const ExpertsSpec& spec) {
  return spec.shared_ffn > 0 && spec.shared_ffn == spec.ffn && spec.count < kMaxGpuExperts &&
         spec.used < kMaxOneTokenChoices;
}
// The experts as all but the choice takes them: with a shared one that joins them among them.
constexpr ExpertsSpec AllExperts(ExpertsSpec spec, bool shared_joins) {
  if (!shared_joins) return spec;
  ++spec.count;
  ++spec.used;
  spec.shared_ffn = 0;
  spec.shared_gated = false;
  return spec;
}

// Most rows of the experts' inputs, with those that align them, of a step of `tokens` tokens.
constexpr int MaxExpertRows(const ExpertsSpec& spec, int tokens) {
  const int choices = tokens * spec.used;
  return (choices + (kExpertRowAlign - 1) * std::min(spec.count, choices) + kExpertRowAlign - 1) /
         kExpertRowAlign * kExpertRowAlign;
}

// Rows of one expert that are multiplied together: the rows of a block of the products' kernel.
struct ExpertTile {
  int32_t expert;
  // A multiple of kExpertRowAlign.
  int32_t first_row;
  // At most the step's tile size; 0: no work.
  int32_t rows;
};

// Most tiles of `tile_rows` rows.
constexpr int MaxExpertTiles(const ExpertsSpec& spec, int tokens, int tile_rows) {
  const int choices = tokens * spec.used;
  return std::min(spec.count, choices) + choices / tile_rows;
}

// Rows of a tile of the products of a step of so many tokens: 32, 64, 128 or 256, by the rows that
// an expert has if tokens choose evenly. Decides no bits.
constexpr int ExpertTileRows(const ExpertsSpec& spec, int tokens) {
  const int64_t each = int64_t{tokens} * spec.used / std::max(spec.count, 1);
  return each <= 24 ? 32 : each <= 64 ? 64 : each <= 160 ? 128 : 256;
}

// The choices of a step's tokens in one layer, in VRAM. Every layer writes them anew. `used` is
// AllExperts'.
struct ExpertTables {
  // [tokens, used] ascending indices; -1: the token has none, as it only pads the step.
  int32_t* chosen = nullptr;
  float* weights = nullptr;  // [tokens, used]
  // [tokens] factor of the output of a shared expert that is apart; null if it has none.
  float* shared_weights = nullptr;
  int32_t* rows = nullptr;      // [tokens, used] the choice's row
  int32_t* tokens = nullptr;    // [MaxExpertRows] the row's token; -1: the row only aligns
  ExpertTile* tiles = nullptr;  // [MaxExpertTiles], those with work first
};

// logits = weights . x + bias in F32, each a sum whose order follows from `hidden` alone.
struct RouterArgs {
  const float* x = nullptr;        // [tokens, hidden], NormArgs::out_f32
  const float* weights = nullptr;  // [outputs, hidden]
  const float* bias = nullptr;     // [count]; null: none
  // The experts, and behind them, if the shared expert is gated, its router's one row.
  int count = 0;
  int outputs = 0;
  int hidden = 0;  // A multiple of 8.
  int tokens = 0;
  float* logits = nullptr;  // [tokens, outputs]
};
cudaError_t LaunchRouter(const RouterArgs& args, cudaStream_t stream);

// Chooses the experts of all tokens by the rules of ExpertsSpec, in F64, as runtime/cpu/router.h
// describes, and sorts the choices: writes all of `tables`.
struct ChooseExpertsArgs {
  // Without a shared expert that joins the others.
  ExpertsSpec spec;
  bool shared_joins = false;
  const float* logits = nullptr;          // [tokens, outputs]
  const float* selection_bias = nullptr;  // [count]; null: none
  // The step's tokens, of which those without a sequence choose nothing; null: all choose.
  const TokenEntry* step_tokens = nullptr;
  int tokens = 0;
  int tile_rows = 0;
  ExpertTables tables = {};
  // Counts since the model was loaded, to which this layer's are added, without the shared expert;
  // in VRAM.
  ExpertLoad* load = nullptr;
  // Null, or memory of the host that gets a copy of `load` (the last layer with experts).
  ExpertLoad* published_load = nullptr;
};
cudaError_t LaunchChooseExperts(const ChooseExpertsArgs& args, cudaStream_t stream);

// The norm before the router, LaunchRouter and LaunchChooseExperts of a step of one token, in one
// launch and with their bits (KernelSet::route_one_token).
struct RouteOneTokenArgs {
  // As a product that normalises takes it; writes new_residual and `out`.
  NormArgs norm = {};
  // Without x, which is the norm's output in F32, and without logits.
  RouterArgs router = {};
  ChooseExpertsArgs choice = {};
  // [1 + outputs]: the number of launches, and the logits, each beside the number of its launch, by
  // which the block that chooses knows that they have come. Zeros before the first launch; nothing
  // else writes them.
  uint64_t* passed = nullptr;
};
inline constexpr int kMaxRoutedHidden = 4096;
inline constexpr int kMaxRoutedExperts = 512;
constexpr bool RoutesOneToken(const NormArgs& norm, const ExpertsSpec& spec) {
  NormArgs rest = norm;
  rest.bias = nullptr;
  return ProductsNormalise(rest) && norm.hidden <= kMaxRoutedHidden &&
         spec.count <= kMaxRoutedExperts;
}
// to row r = x of the token of row r. Rows that only align are left as they are.
struct GatherExpertRowsArgs {
  Activations x = {};  // [tokens, cols]
  int cols = 0;        // As they are padded: a multiple of kActivationCols.
  ExpertTables tables = {};
  int max_rows = 0;
  Activations to = {};  // [max_rows, cols]
};
cudaError_t LaunchGatherExpertRows(const GatherExpertRowsArgs& args, cudaStream_t stream);

// True if a step of one token multiplies such experts without gathered rows (OneToken), in sets of
// kernels that fuse (KernelSet::fuses).
constexpr bool MultipliesOneToken(const ExpertsSpec& spec, int hidden) {
  // Columns of all rows that a block holds in shared memory.
  constexpr int kMostCols = 48 * 1024;
  return spec.used <= kMaxOneTokenChoices && hidden <= kMostCols / 2 &&
         int64_t{spec.used + spec.used % 2} * (spec.ffn + kActivationCols) <= kMostCols;
}

// The rows of x that the tiles of a step of one token multiply. Tile i is its choice i.
enum class OneToken : uint8_t {
  // The step is not taken so.
  kNo,
  // Gate and up: all tiles multiply row 0, and tile i makes row i of SwiGlu::out.
  kSharedRow,
  // `down`, right after a product of the same tiles with kSharedRow: tile i multiplies row i. What
  // that product waited for wrote the tiles and SumOfChoices::weights.
  kOwnRows,
};

// Writes what LaunchCombineExperts makes of one token's products, without a shared expert; for
// OneToken::kOwnRows.
struct SumOfChoices {
  const float* weights = nullptr;  // ExpertTables::weights
  const float* bias = nullptr;     // CombineExpertsArgs::bias
  float scale = 1;
  float* out = nullptr;  // [rows of an expert without padding]
};

// Products of experts: row r of the result is W[expert of r] x[r]. One split of K whatever the
// shape (numeric_contract.h). Rows outside of tiles are neither written nor looked at.
struct ExpertMatmulArgs {
  Activations x = {};  // [max rows, cols]; by `one_token`
  // The experts' matrices of one shape, one below the other; each has a multiple of 16 rows.
  TiledMatrix experts = {};
  int expert_rows = 0;
  const ExpertTile* tiles = nullptr;
  int max_tiles = 0;
  int tile_rows = 0;  // ExpertTileRows
  // StoreF32 has no partials to sum; its stride is at least the rows of an expert without padding,
  // `stored_rows`, of which no others are written.
  std::variant<StoreF32, SwiGlu, SumOfChoices> epilogue = {};
  int stored_rows = 0;
  // SwiGlu: [count, expert_rows], what is added to the products, in the order of the tiles' rows;
  // null: none.
  const float* bias = nullptr;
  OneToken one_token = OneToken::kNo;
};

// out = the sum over a token's choices, by ascending expert, of weight * (scale * y + bias), and
// then the product (of all tokens, unsummed) of a shared expert that is apart, times its scale and
// its weight. F32, a fused multiply-add each.
struct CombineExpertsArgs {
  ExpertsSpec spec;
  // The first so many of a token's choices are added.
  int added = 0;
  ExpertTables tables = {};
  const float* y = nullptr;     // [max rows, hidden]
  const float* bias = nullptr;  // [count, hidden]; null: none
  float scale = 1;
  const float* shared = nullptr;  // StoreF32::y; null: no shared expert is apart
  int shared_splits = 0;
  int shared_tokens = 0;  // PartialsTokens
  float shared_scale = 1;
  int hidden = 0;  // A multiple of 8.
  int tokens = 0;
  float* out = nullptr;  // [tokens, hidden]
};
cudaError_t LaunchCombineExperts(const CombineExpertsArgs& args, cudaStream_t stream);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_EXPERTS_H_
