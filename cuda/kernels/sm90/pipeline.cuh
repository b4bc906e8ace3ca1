// Position in a pipeline (ring buffer) of kStages stages, each with an mbarrier.
#ifndef ORCD_CUDA_KERNELS_SM90_PIPELINE_CUH_
#define ORCD_CUDA_KERNELS_SM90_PIPELINE_CUH_

namespace orcd::cuda {

// `phase` is the phase parity that a consumer waits for. The producer waits for the opposite
// parity, whose phase counts as complete in the first round.
template <int kStages>
struct PipelineStage {
  int index = 0;
  int phase = 0;

  __device__ __forceinline__ void Next() {
    if (++index == kStages) {
      index = 0;
      phase ^= 1;
    }
  }
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SM90_PIPELINE_CUH_
