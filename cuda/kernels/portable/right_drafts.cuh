// Which of a part's drafts were right, once its step has drawn.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_RIGHT_DRAFTS_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_RIGHT_DRAFTS_CUH_

#include <cstdint>

#include "cuda/kernels/common/predict.h"

namespace orcd::cuda {

// The token that a run drew after the first `drafts` of its drafts.
__device__ __forceinline__ int32_t DrawnToken(const StepDraws& of, const RunEntry& run,
                                              int drafts) {
  return __ldcg(of.last_sample + of.draws[run.first_row + drafts].slot);
}

// Number of drafts before the first that is not what was drawn. A draft whose keys or values are
// not finite counts here, and not in the step's result: nothing is predicted then.
__device__ __forceinline__ int RightDrafts(const StepDraws& of, const RunEntry& run) {
  const TokenEntry* const drafts = of.step.tokens + run.first_token + run.tokens;
  int right = 0;
  while (right < run.drafts && DrawnToken(of, run, right) == drafts[right].id) ++right;
  return right;
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_PORTABLE_RIGHT_DRAFTS_CUH_
