// The choice of a token's experts, in F64, as runtime/cpu/router.h has it.
//
// A token has a team of warps. The first chooses while the others take exponentials, and then
// weighs what it chose:
//   By logits  a softmax over all without selection bias or groups, or one over the chosen: greater
//              logits have greater scores, so the logits' bits choose, without a score. Logits that
//              differ may have equal scores if exponentials round them together or underflow; the
//              least chosen logit tells that no such pair can decide (LeastDecides).
//   By scores  the rest. The team makes a key of each score, then the first warp chooses.
// Sums are in one order whatever the team: a lane's experts are lane, lane + 32, and so on.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_EXPERT_CHOICE_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_EXPERT_CHOICE_CUH_

#include <climits>
#include <cmath>
#include <cstdint>

#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/ptx.cuh"
#include "runtime/model/spec.h"

namespace orcd::cuda {

// F16's smallest normal number.
inline constexpr double kLeastWeightSum = 0x1p-14;

// A key orders scores as an integer: the greater score has the greater key, equal scores have equal
// keys, and a NaN counts as infinity. No score has the key 0.
inline constexpr uint64_t kTakenKey = 0;
inline constexpr uint64_t kSignBit = uint64_t{1} << 63;

__device__ __forceinline__ uint64_t KeyOf(double score) {
  // One zero has one key.
  const double comparable = isnan(score) ? INFINITY : score == 0 ? 0.0 : score;
  const auto bits = static_cast<uint64_t>(__double_as_longlong(comparable));
  return bits & kSignBit ? ~bits : bits | kSignBit;
}
__device__ __forceinline__ double ScoreOfKey(uint64_t key) {
  return __longlong_as_double(static_cast<int64_t>(key & kSignBit ? key & ~kSignBit : ~key));
}

__device__ __forceinline__ double Sigmoid(float logit) { return 1 / (1 + exp(-double{logit})); }

// The same for logits, in 32 bits.
inline constexpr uint32_t kTakenLogit = 0;
inline constexpr uint32_t kLogitSignBit = uint32_t{1} << 31;

__device__ __forceinline__ uint32_t KeyOfLogit(float logit) {
  const float comparable = isnan(logit) ? INFINITY : logit == 0 ? 0.0f : logit;
  const uint32_t bits = __float_as_uint(comparable);
  return bits & kLogitSignBit ? ~bits : bits | kLogitSignBit;
}
__device__ __forceinline__ float LogitOfKey(uint32_t key) {
  return __uint_as_float(key & kLogitSignBit ? key & ~kLogitSignBit : ~key);
}

// True if the order of scores of a softmax is that of the logits wherever it decides: between
// `least`, the least chosen logit, and another one. From 2^-15 on, two F32 numbers differ by 2^-39
// or more, so their exponentials, each within 2^-43 of its size, differ as well; nor do they, or
// their quotients by the sum, underflow. False if `max` is infinite, as it is if a logit is NaN.
__device__ __forceinline__ bool LeastDecides(float least, float max) {
  return fabsf(least) >= 0x1p-15f && least - max > -600;
}

// A lane's keys are those of i = lane, lane + 32, …: the lane's n-th is i = lane + 32n.
struct GreatestKey {
  uint64_t key;
  int index;
};

// Keys of a warp in shared memory. A lane touches only its own.
struct SharedKeys {
  uint64_t* keys;
  int count;

  // Calls function(i, key i) for the lane's keys, to which it may write.
  template <typename Function>
  __device__ __forceinline__ void ForEach(const Function& function) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x % 32); i < count; i += 32) function(i, keys[i]);
  }
  // The greatest; of equal ones the first.
  __device__ __forceinline__ GreatestKey Greatest() const {
    GreatestKey greatest = {kTakenKey, 0};
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x % 32); i < count; i += 32) {
      const uint64_t key = keys[i];
      if (key > greatest.key) greatest = {key, i};
    }
    return greatest;
  }
  // The lane has key `index`.
  __device__ __forceinline__ void Take(int index) { keys[index] = kTakenKey; }
};

// At most 32 * kKeys keys of a warp in registers, as SharedKeys has them.
template <int kKeys>
struct RegisterKeys {
  uint64_t keys[kKeys];
  int count;

  __device__ __forceinline__ explicit RegisterKeys(int count_of_keys) : count(count_of_keys) {
#pragma unroll
    for (int n = 0; n < kKeys; ++n) keys[n] = kTakenKey;
  }
  template <typename Function>
  __device__ __forceinline__ void ForEach(const Function& function) {
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      const int i = static_cast<int>(threadIdx.x % 32) + n * 32;
      if (i < count) function(i, keys[n]);
    }
  }
  __device__ __forceinline__ GreatestKey Greatest() const {
    GreatestKey greatest = {kTakenKey, 0};
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      if (keys[n] > greatest.key) {
        greatest = {keys[n], static_cast<int>(threadIdx.x % 32) + n * 32};
      }
    }
    return greatest;
  }
  __device__ __forceinline__ void Take(int index) {
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      keys[n] = index / 32 == n ? kTakenKey : keys[n];
    }
  }
};

// At most 32 * kKeys logits of a warp in registers, as keys.
template <int kKeys>
struct LogitKeys {
  uint32_t keys[kKeys];

  __device__ __forceinline__ LogitKeys(const float* logits, int count) {
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      const int i = static_cast<int>(threadIdx.x % 32) + n * 32;
      keys[n] = i < count ? KeyOfLogit(logits[i]) : kTakenLogit;
    }
  }
  // The lane's greatest.
  __device__ __forceinline__ uint32_t Greatest() const {
    uint32_t greatest = kTakenLogit;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) greatest = max(greatest, keys[n]);
    return greatest;
  }
  // The index of the first of the lane's keys that are `key`; ~0: none is.
  __device__ __forceinline__ uint32_t Find(uint32_t key) const {
    uint32_t index = ~0u;
#pragma unroll
    for (int n = kKeys - 1; n >= 0; --n) {
      index = keys[n] == key ? threadIdx.x % 32 + n * 32 : index;
    }
    return index;
  }
  // In the lane that has it.
  __device__ __forceinline__ void Take(uint32_t index) {
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      keys[n] = index == threadIdx.x % 32 + n * 32 ? kTakenLogit : keys[n];
    }
  }
};

// An ascending list of a warp: lane j has entry j.
inline constexpr int kNoEntry = INT_MAX;
// `entry` with `index`, which all lanes have, put into the list. A whole warp.
__device__ __forceinline__ int InsertInOrder(int entry, int index) {
  const int before = __shfl_up_sync(~0u, entry, 1);
  if (entry < index) return entry;
  return threadIdx.x % 32 > 0 && before > index ? before : index;
}

struct LogitChoice {
  // Lane j: the choices' j-th index, ascending.
  int index;
  // The key of the last choice.
  uint32_t least;
};

// Finds the `wanted` greatest keys, at most 32. Of equal keys the first is greater. A whole warp.
template <int kKeys>
__device__ __forceinline__ LogitChoice TakeGreatestLogits(LogitKeys<kKeys>& keys, int wanted) {
  LogitChoice choice = {kNoEntry, kTakenLogit};
#pragma unroll 1
  for (int round = 0; round < wanted; ++round) {
    choice.least = __reduce_max_sync(~0u, keys.Greatest());
    const uint32_t index = __reduce_min_sync(~0u, keys.Find(choice.least));
    keys.Take(index);
    choice.index = InsertInOrder(choice.index, static_cast<int>(index));
  }
  return choice;
}

// Finds the `wanted` greatest keys and makes them kTakenKey: lane j gets their j-th index,
// ascending, of at most 32. Of equal keys the first is greater. A whole warp.
template <typename Keys>
__device__ __forceinline__ int TakeGreatest(Keys& keys, int wanted) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  GreatestKey mine = keys.Greatest();
  int result = kNoEntry;
#pragma unroll 1
  for (int round = 0; round < wanted; ++round) {
    const auto high = static_cast<uint32_t>(mine.key >> 32);
    bool greatest = high == __reduce_max_sync(~0u, high);
    const unsigned lanes = __ballot_sync(~0u, greatest);
    int index;
    if ((lanes & (lanes - 1)) == 0) {
      index = __shfl_sync(~0u, mine.index, __ffs(static_cast<int>(lanes)) - 1);
    } else {
      const uint32_t low = greatest ? static_cast<uint32_t>(mine.key) : 0;
      const uint32_t greatest_low = __reduce_max_sync(~0u, low);
      greatest = greatest && low == greatest_low;
      index = static_cast<int>(
          __reduce_min_sync(~0u, greatest ? static_cast<uint32_t>(mine.index) : ~0u));
    }
    if (lane == index % 32) {
      keys.Take(index);
      mine = keys.Greatest();
    }
    result = InsertInOrder(result, index);
  }
  return result;
}

// Sum of a value of lanes 0 to count - 1, one after another from zero.
__device__ __forceinline__ double SumInOrder(double value, int count) {
  double sum = 0;
#pragma unroll 4
  for (int j = 0; j < count; ++j) sum += __shfl_sync(~0u, value, j);
  return sum;
}

// Keys, or scores, for which a team needs shared memory.
constexpr int ChoiceKeys(const ExpertsSpec& spec) {
  return spec.count + (spec.groups > 1 ? spec.groups : 0);
}

// Lowers the keys of the experts outside the chosen groups below every other score's.
__device__ __forceinline__ void ExcludeOtherGroups(const ExpertsSpec& spec, uint64_t* keys) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int size = spec.count / spec.groups;
  const uint64_t lowest = KeyOf(-INFINITY);
  uint64_t* const group_keys = keys + spec.count;
  __syncwarp();
  for (int group = lane; group < spec.groups; group += 32) {
    uint64_t best = lowest;
    uint64_t second = lowest;
    for (int i = group * size; i < (group + 1) * size; ++i) {
      const uint64_t key = keys[i];
      if (key > best) {
        second = best;
        best = key;
      } else {
        second = max(second, key);
      }
    }
    group_keys[group] = KeyOf(size > 1 ? ScoreOfKey(best) + ScoreOfKey(second) : ScoreOfKey(best));
  }
  SharedKeys groups = {group_keys, spec.groups};
  TakeGreatest(groups, spec.groups_used);
  __syncwarp();
  for (int i = lane; i < spec.count; i += 32) {
    if (group_keys[i / size] != kTakenKey) keys[i] = lowest;
  }
}

// Lane j < spec.used has choice j of the token, by ascending index.
struct LaneChoice {
  int expert;
  float weight;
};

// The warps of a token: the first chooses, and the rest score. A single warp does both.
struct Team {
  int index;  // In the block; below kMaxTeams, and of more than two warps below kMaxWideTeams.
  int warp;   // This warp in the team.
  int warps;

  __device__ bool chooses() const { return warp == 0; }
  __device__ bool scores() const { return warp > 0 || warps == 1; }
  __device__ int scorer() const { return max(warp - 1, 0); }
  __device__ int scorers() const { return max(warps - 1, 1); }
};
inline constexpr int kMaxTeams = 32;
// Each has a named barrier.
inline constexpr int kMaxWideTeams = 15;

// Shared memory of a team besides its keys.
struct TeamMemory {
  // The sum of the exponentials, of a softmax over all.
  double sum;
  bool by_scores;
};

// True if weights take the scores of all experts, however they were chosen. The sum of a softmax
// cancels if its weights are divided by their own sum, which is more than the least one that
// counts: the chosen have the greatest scores.
constexpr bool ScoresAll(const ExpertsSpec& spec) {
  return spec.score == RouterScore::kSigmoid ||
         (spec.score == RouterScore::kSoftmax && !spec.normalise);
}
static_assert(kLeastWeightSum < 1.0 / kMaxGpuExperts);

// Makes values[i] of the scores: of a softmax over all the exponentials, and their sum. The team's
// warps that score.
__device__ __forceinline__ void Score(const ExpertsSpec& spec, const float* logits, double max,
                                      const Team& team, uint64_t* values, TeamMemory& memory) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int i = team.scorer() * 32 + lane; i < spec.count; i += team.scorers() * 32) {
    double value = logits[i];
    if (spec.score == RouterScore::kSoftmax) {
      value = exp(value - max);
    } else if (spec.score == RouterScore::kSigmoid) {
      value = Sigmoid(logits[i]);
    }
    values[i] = static_cast<uint64_t>(__double_as_longlong(value));
  }
  if (spec.score != RouterScore::kSoftmax) return;
  __syncwarp();
  if (team.scorers() > 1) NamedBarrierSync(1 + team.index, team.scorers() * 32);
  if (team.scorer() > 0) return;
  double sum = 0;
#pragma unroll 4
  for (int i = lane; i < spec.count; i += 32) {
    sum += __longlong_as_double(static_cast<int64_t>(values[i]));
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (lane == 0) memory.sum = sum;
}

// Most keys of a lane that registers hold as scores.
inline constexpr int kMostScoreKeys = 8;

// Chooses by values that are keys of scores. A whole warp.
template <int kLaneKeys>
__device__ __forceinline__ int ChooseByScores(const ExpertsSpec& spec, uint64_t* values) {
  if (spec.groups > 1) {
    ExcludeOtherGroups(spec, values);
    __syncwarp();
  }
  SharedKeys shared = {values, spec.count};
  if constexpr (kLaneKeys > kMostScoreKeys) {
    return TakeGreatest(shared, spec.used);
  } else {
    RegisterKeys<kLaneKeys> keys(spec.count);
    keys.ForEach([&](int i, uint64_t& key) { key = values[i]; });
    return TakeGreatest(keys, spec.used);
  }
}

// `logits`, [count], and `selection_bias`, [count] or null, are in memory; null logits: the token
// chooses nothing. `values`, ChoiceKeys of them, are the team's, in shared memory. 32 * kLaneKeys:
// at least the experts. The choice is in the team's first warp, and the others have none. All
// warps of the block, once.
template <int kLaneKeys>
__device__ __forceinline__ LaneChoice ChooseExpertsOfToken(const ExpertsSpec& spec,
                                                           const float* logits,
                                                           const float* selection_bias,
                                                           const Team& team, uint64_t* values) {
  __shared__ TeamMemory memories[kMaxTeams];
  TeamMemory& memory = memories[team.index];
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool softmax = spec.score == RouterScore::kSoftmax;
  const bool scores_all = ScoresAll(spec);
  // A team takes the exponentials of all meanwhile, and a warp alone only those that it needs.
  const bool scored = scores_all || team.warps > 1;
  const bool any = logits != nullptr;
  float max = 0;
  LaneChoice choice = {-1, 0};
  bool by_scores = false;
  if (any) {
    LogitKeys<kLaneKeys> keys(logits, spec.count);
    max = LogitOfKey(__reduce_max_sync(~0u, keys.Greatest()));
    if (team.chooses()) {
      by_scores =
          spec.score == RouterScore::kSigmoid || selection_bias != nullptr || spec.groups > 1;
      if (!by_scores) {
        const LogitChoice greatest = TakeGreatestLogits(keys, spec.used);
        choice.expert = greatest.index;
        by_scores = softmax && !LeastDecides(LogitOfKey(greatest.least), max);
      }
      if (lane == 0) memory.by_scores = by_scores;
    }
    if (team.scores() && (scored || by_scores)) Score(spec, logits, max, team, values, memory);
  }
  if (__syncthreads_or(by_scores ? 1 : 0) != 0) {
    by_scores = any && memory.by_scores;
    if (by_scores) {
      const double sum = memory.sum;
#pragma unroll 1
      for (int i = team.warp * 32 + lane; i < spec.count; i += team.warps * 32) {
        double score = __longlong_as_double(static_cast<int64_t>(values[i]));
        if (softmax) score /= sum;
        values[i] = KeyOf(score + (selection_bias == nullptr ? 0.0 : double{selection_bias[i]}));
      }
    }
    __syncthreads();
    if (by_scores && team.chooses()) choice.expert = ChooseByScores<kLaneKeys>(spec, values);
  }
  if (!any || !team.chooses()) return {-1, 0};

  const bool has = lane < spec.used;
  double weight = 0;
  if (has && (by_scores || !scored)) {
    // There are no scores, or keys have taken their place.
    weight = logits[choice.expert];
    if (softmax) {
      weight = exp(weight - max);
    } else if (spec.score == RouterScore::kSigmoid) {
      weight = Sigmoid(logits[choice.expert]);
    }
  } else if (has) {
    weight = __longlong_as_double(static_cast<int64_t>(values[choice.expert]));
  }
  if (has && softmax && (by_scores || scores_all)) weight /= memory.sum;
  if (spec.score == RouterScore::kSoftmaxOfChosen) {
    const uint32_t key = has ? KeyOfLogit(static_cast<float>(weight)) : kTakenLogit;
    weight = exp(weight - double{LogitOfKey(__reduce_max_sync(~0u, key))});
    weight /= SumInOrder(weight, spec.used);
  }
  double factor = double{spec.scale};
  if (spec.normalise) {
    // A NaN is kept.
    const double all = SumInOrder(weight, spec.used);
    factor /= all < kLeastWeightSum ? kLeastWeightSum : all;
  }
  choice.weight = static_cast<float>(weight * factor);
  return choice;
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_PORTABLE_EXPERT_CHOICE_CUH_
