// Pipeline of a producer and its consumers: a ring of stages in shared memory, filled by bulk
// copies.
#ifndef ORCD_CUDA_KERNELS_SM90_PIPELINE_CUH_
#define ORCD_CUDA_KERNELS_SM90_PIPELINE_CUH_

#include <cstdint>

#include "cuda/kernels/common/ptx.cuh"

namespace orcd::cuda {

// A thread's position in a pipeline. `phase` is the phase parity that a consumer waits for. The
// producer waits for the opposite parity, whose phase counts as complete in the first round.
template <int kStages>
struct PipelineStage {
  int index = 0;
  int phase = 0;

  // `stages`: those that are used.
  __device__ __forceinline__ void Next(int stages = kStages) {
    if (++index == stages) {
      index = 0;
      phase ^= 1;
    }
  }
};

// The barriers of kStageCount stages, in shared memory; the stages lie elsewhere.
template <int kStageCount>
struct Pipeline {
  static constexpr int kStages = kStageCount;
  using Stage = PipelineStage<kStages>;

  // Complete when the bytes that Commit announced have arrived, and when consumers have released
  // the stage.
  uint64_t full[kStages];
  uint64_t empty[kStages];

  // One thread; BarrierInitFence and a barrier of all must follow. `releases`: of each stage.
  __device__ __forceinline__ void Init(int releases) {
    for (int i = 0; i < kStages; ++i) {
      BarrierInit(Full(i), 1);
      BarrierInit(Empty(i), releases);
    }
  }
  __device__ __forceinline__ uint32_t Full(int i) const { return SharedAddress(&full[i]); }
  __device__ __forceinline__ uint32_t Empty(int i) const { return SharedAddress(&empty[i]); }

  // Producer: waits until the stage may be filled. Commit announces the bytes of copies to
  // Full(stage.index).
  __device__ __forceinline__ void Acquire(Stage stage) const {
    BarrierWait(Empty(stage.index), stage.phase ^ 1);
  }
  __device__ __forceinline__ void Commit(Stage stage, int bytes) const {
    BarrierExpect(Full(stage.index), bytes);
  }
  // Consumer: waits until the stage is full. Release: one of those that the stage needs; loads from
  // the stage must have completed, and wgmmas that read it.
  __device__ __forceinline__ void Wait(Stage stage) const {
    BarrierWait(Full(stage.index), stage.phase);
  }
  __device__ __forceinline__ void Release(int index) const { BarrierArrive(Empty(index)); }
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SM90_PIPELINE_CUH_
