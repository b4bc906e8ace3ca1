// A place in a ring of kStages stages, each with an mbarrier.
#ifndef ORCD_CUDA_KERNELS_RING_PLACE_CUH_
#define ORCD_CUDA_KERNELS_RING_PLACE_CUH_

namespace orcd::cuda {

// `parity` is that of the phase that a consumer waits for; who fills the ring waits for the other
// one, which is over at once the first time round.
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

#endif  // ORCD_CUDA_KERNELS_RING_PLACE_CUH_
