// The choice of a token's experts by one warp, in F64, as runtime/cpu/router.h has it.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_EXPERT_CHOICE_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_EXPERT_CHOICE_CUH_

#include <cmath>
#include <cstdint>

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

// Finds the `wanted` greatest keys, at most 32 if the indices matter, and makes them kTakenKey:
// lane j gets the index of the j-th. Of equal keys the first is greater. A whole warp.
template <typename Keys>
__device__ __forceinline__ int TakeGreatest(Keys& keys, int wanted) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  GreatestKey mine = keys.Greatest();
  int result = 0;
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
    if (lane == round) result = index;
    if (lane == index % 32) {
      keys.Take(index);
      mine = keys.Greatest();
    }
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

// Keys for which a warp needs shared memory.
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

// `logits`, [count], and `selection_bias`, [count] or null, are in memory; `shared`, ChoiceKeys of
// them, are the warp's, in shared memory. kLaneKeys: keys that a lane keeps in registers, of one
// group of at most 32 * kLaneKeys experts; 0: they are in `shared`. A whole warp.
template <int kLaneKeys>
__device__ __forceinline__ LaneChoice ChooseExpertsOfToken(const ExpertsSpec& spec,
                                                           const float* logits,
                                                           const float* selection_bias,
                                                           uint64_t* shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  // The lanes have read the token before.
  __syncwarp();
  auto keys = [&] {
    if constexpr (kLaneKeys > 0) {
      return RegisterKeys<kLaneKeys>(spec.count);
    } else {
      return SharedKeys{shared, spec.count};
    }
  }();
  double max = 0;
  double sum = 0;
  if (spec.score == RouterScore::kSoftmax) {
    float greatest = -INFINITY;
#pragma unroll 4
    for (int i = lane; i < spec.count; i += 32) greatest = fmaxf(greatest, logits[i]);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, offset));
    }
    max = greatest;
    keys.ForEach([&](int i, uint64_t& key) {
      const double value = exp(logits[i] - max);
      key = static_cast<uint64_t>(__double_as_longlong(value));
      sum += value;
    });
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  }
  keys.ForEach([&](int i, uint64_t& key) {
    double score = logits[i];
    if (spec.score == RouterScore::kSoftmax) {
      score = __longlong_as_double(static_cast<int64_t>(key)) / sum;
    } else if (spec.score == RouterScore::kSigmoid) {
      score = Sigmoid(logits[i]);
    }
    key = KeyOf(score + (selection_bias == nullptr ? 0.0 : double{selection_bias[i]}));
  });
  if constexpr (kLaneKeys == 0) {
    if (spec.groups > 1) ExcludeOtherGroups(spec, shared);
  }

  const int chosen = TakeGreatest(keys, spec.used);
  int rank = 0;
#pragma unroll 4
  for (int j = 0; j < spec.used; ++j) rank += __shfl_sync(~0u, chosen, j) < chosen ? 1 : 0;
  // All keys have been read.
  __syncwarp();
  auto* const order = reinterpret_cast<int32_t*>(shared);
  if (lane < spec.used) order[rank] = chosen;
  __syncwarp();
  LaneChoice choice = {0, 0};
  double weight = 0;
  if (lane < spec.used) {
    choice.expert = order[lane];
    weight = logits[choice.expert];
    if (spec.score == RouterScore::kSoftmax) {
      weight = exp(weight - max) / sum;
    } else if (spec.score == RouterScore::kSigmoid) {
      weight = Sigmoid(logits[choice.expert]);
    }
  }
  if (spec.score == RouterScore::kSoftmaxOfChosen) {
    double greatest = lane < spec.used ? weight : -INFINITY;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      greatest = fmax(greatest, __shfl_xor_sync(~0u, greatest, offset));
    }
    weight = exp(weight - greatest);
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
