// Instance of the kernel of matvec.cuh for F16 weights.
#include "cuda/kernels/portable/matvec.cuh"

namespace orcd::cuda::portable::matvec {

ORCD_PORTABLE_MATVEC_KERNEL(kF16)

}  // namespace orcd::cuda::portable::matvec
