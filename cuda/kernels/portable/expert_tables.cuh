// What a choice of experts (expert_choice.cuh) writes to a step's tables (ExpertTables).
#ifndef ORCD_CUDA_KERNELS_PORTABLE_EXPERT_TABLES_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_EXPERT_TABLES_CUH_

#include <cstdint>

#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/portable/expert_choice.cuh"

namespace orcd::cuda {

// Numbers of an ExpertLoad: experts by bucket, tokens.
inline constexpr int kLoadNumbers = ExpertLoad::kBuckets + 1;
static_assert(sizeof(ExpertLoad) == kLoadNumbers * sizeof(uint64_t));

__host__ __device__ __forceinline__ ExpertsSpec AllExperts(const ChooseExpertsArgs& args) {
  return args.shared_joins ? WithShared(args.spec) : args.spec;
}

// Chooses for token `token` with these logits, if there is one, by a team; its first warp's lane j
// gets choice j, or -1, with the shared expert behind the others if it joins them. All warps of the
// block, once.
template <int kLaneKeys>
__device__ __forceinline__ int ChooseForToken(const ChooseExpertsArgs& args, int token,
                                              const float* logits, const Team& team,
                                              uint64_t* keys) {
  const ExpertsSpec& spec = args.spec;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool there = token < args.tokens;
  const bool chooses =
      there && (args.step_tokens == nullptr || args.step_tokens[token].sequence >= 0);
  const LaneChoice choice = ChooseExpertsOfToken<kLaneKeys>(spec, chooses ? logits : nullptr,
                                                            args.selection_bias, team, keys);
  const int64_t first = int64_t{token} * (spec.used + (args.shared_joins ? 1 : 0));
  if (there && team.chooses() && lane < spec.used) {
    args.tables.chosen[first + lane] = choice.expert;
    args.tables.weights[first + lane] = choice.weight;
  }
  const int shared = chooses ? spec.count : -1;
  if (there && team.warp == team.warps - 1 && lane == 0) {
    float weight = chooses ? 1 : 0;
    if (chooses && spec.shared_gated) weight = static_cast<float>(Sigmoid(logits[spec.count]));
    if (args.shared_joins) {
      args.tables.chosen[first + spec.used] = shared;
      args.tables.weights[first + spec.used] = weight;
    } else if (args.tables.shared_weights != nullptr) {
      args.tables.shared_weights[token] = weight;
    }
  }
  return args.shared_joins && lane == spec.used ? shared : choice.expert;
}

// The logits of a token.
__device__ __forceinline__ const float* LogitsOf(const ChooseExpertsArgs& args, int token) {
  return args.logits + int64_t{token} * (args.spec.count + (args.spec.shared_gated ? 1 : 0));
}

// Chooses for the one token of a step and writes all of its tables: every expert has one row. All
// `warps` warps of the block.
template <int kLaneKeys>
__device__ __forceinline__ void ChooseForOneToken(const ChooseExpertsArgs& args,
                                                  const float* logits, int warps, uint64_t* keys) {
  static_assert(kLoadNumbers <= 32 && kMaxGpuExpertsUsed <= 32);
  const ExpertsSpec spec = AllExperts(args);
  const ExpertTables& tables = args.tables;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool counts = warp == 0 && args.load != nullptr && lane < kLoadNumbers;
  auto* const numbers = reinterpret_cast<uint64_t*>(args.load);
  uint64_t number = counts ? numbers[lane] : 0;
  // All or none of the token's choices.
  const bool chooses = args.step_tokens == nullptr || args.step_tokens[0].sequence >= 0;
  const int choices = chooses ? spec.used : 0;
  const int expert =
      ChooseForToken<kLaneKeys>(args, 0, logits, {.index = 0, .warp = warp, .warps = warps}, keys);
  if (warp == 1) {
    if (lane < spec.used) tables.rows[lane] = lane < choices ? lane * kExpertRowAlign : -1;
    for (int row = lane; row < MaxExpertRows(spec, 1); row += 32) {
      const bool has_token = row % kExpertRowAlign == 0 && row / kExpertRowAlign < choices;
      tables.tokens[row] = has_token ? 0 : -1;
    }
  }
  if (warp != 0) return;
  for (int i = lane; i < MaxExpertTiles(spec, 1, args.tile_rows); i += 32) {
    // There are at most as many choices as lanes.
    tables.tiles[i] =
        i < choices ? ExpertTile{expert, i * kExpertRowAlign, 1} : ExpertTile{0, 0, 0};
  }
  if (!counts) return;
  // The first bucket has experts of one token, and the last number is the tokens'.
  if (lane == 0 || lane == kLoadNumbers - 1) number += chooses ? args.spec.used : 0;
  numbers[lane] = number;
  if (args.published_load != nullptr) {
    reinterpret_cast<volatile uint64_t*>(args.published_load)[lane] = number;
    __threadfence_system();
  }
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_PORTABLE_EXPERT_TABLES_CUH_
