// Position in a pipeline (ring buffer) of kStages stages, each with an mbarrier.
#ifndef ORCD_CUDA_KERNELS_SM90_RING_PLACE_CUH_
#define ORCD_CUDA_KERNELS_SM90_RING_PLACE_CUH_

namespace orcd::cuda {

// `parity` is the phase parity that a consumer waits for. The producer waits for the opposite
// parity, whose phase counts as complete in the first round.
template <int kStages>
struct RingPlace {
  int slot = 0;
  int parity = 0;

  __device__ __forceinline__ void Next() {
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SM90_RING_PLACE_CUH_
