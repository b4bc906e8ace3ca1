// The tables of a step (ExpertTables), as a choice of experts (expert_choice.cuh) fills them.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_EXPERT_TABLES_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_EXPERT_TABLES_CUH_

#include <cstdint>

#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/portable/expert_choice.cuh"

namespace orcd::cuda {

// Numbers of an ExpertLoad: experts by bucket, tokens.
inline constexpr int kLoadNumbers = ExpertLoad::kBuckets + 1;
static_assert(sizeof(ExpertLoad) == kLoadNumbers * sizeof(uint64_t));

// False of tokens that only pad the step, and of those behind it.
__device__ __forceinline__ bool Chooses(const ChooseExpertsArgs& args, int token) {
  return token < args.tokens &&
         (args.step_tokens == nullptr || args.step_tokens[token].sequence >= 0);
}

// Chooses by these logits for token `token`, if it `chooses`, by a team; its first warp's lane j
// gets choice j, or -1, with the shared expert behind the others if it joins them. All warps of the
// block, once.
template <int kLaneKeys>
__device__ __forceinline__ int ChooseForToken(const ChooseExpertsArgs& args, int token,
                                              bool chooses, const float* logits, const Team& team,
                                              uint64_t* keys) {
  const ExpertsSpec& spec = args.spec;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool there = token < args.tokens;
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

// The choice of a step of one token, and all of its tables: every expert has one row.
class OneTokenChoice {
 public:
  // Loads what does not depend on the logits. All warps of a block.
  __device__ __forceinline__ explicit OneTokenChoice(const ChooseExpertsArgs& args)
      : args_(args),
        warp_(static_cast<int>(threadIdx.x / 32)),
        lane_(static_cast<int>(threadIdx.x % 32)),
        counts_(warp_ == 0 && args.load != nullptr && lane_ < kLoadNumbers),
        number_(counts_ ? numbers()[lane_] : 0),
        chooses_(Chooses(args, 0)) {}

  // The same warps, `warps` of them.
  template <int kLaneKeys>
  __device__ __forceinline__ void Make(const float* logits, int warps, uint64_t* keys) {
    static_assert(kLoadNumbers <= 32 && kMaxGpuExpertsUsed <= 32);
    const ExpertsSpec spec = AllExperts(args_.spec, args_.shared_joins);
    const ExpertTables& tables = args_.tables;
    // All or none of the token's choices.
    const int choices = chooses_ ? spec.used : 0;
    const Team team = {.index = 0, .warp = warp_, .warps = warps};
    const int expert = ChooseForToken<kLaneKeys>(args_, 0, chooses_, logits, team, keys);
    if (warp_ == 1) {
      if (lane_ < spec.used) tables.rows[lane_] = lane_ < choices ? lane_ * kExpertRowAlign : -1;
      for (int row = lane_; row < MaxExpertRows(spec, 1); row += 32) {
        const bool has_token = row % kExpertRowAlign == 0 && row / kExpertRowAlign < choices;
        tables.tokens[row] = has_token ? 0 : -1;
      }
    }
    if (warp_ != 0) return;
    for (int i = lane_; i < MaxExpertTiles(spec, 1, args_.tile_rows); i += 32) {
      // There are at most as many choices as lanes.
      tables.tiles[i] =
          i < choices ? ExpertTile{expert, i * kExpertRowAlign, 1} : ExpertTile{0, 0, 0};
    }
    if (counts_) Count();
  }

 private:
  __device__ __forceinline__ uint64_t* numbers() const {
    return reinterpret_cast<uint64_t*>(args_.load);
  }
  __device__ __forceinline__ void Count() {
    // The first bucket has experts of one token, and the last number is the tokens'.
    if (lane_ == 0 || lane_ == kLoadNumbers - 1) number_ += chooses_ ? args_.spec.used : 0;
    numbers()[lane_] = number_;
    if (args_.published_load != nullptr) {
      reinterpret_cast<volatile uint64_t*>(args_.published_load)[lane_] = number_;
      __threadfence_system();
    }
  }

  const ChooseExpertsArgs& args_;
  const int warp_;
  const int lane_;
  const bool counts_;
  uint64_t number_;
  const bool chooses_;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_PORTABLE_EXPERT_TABLES_CUH_
