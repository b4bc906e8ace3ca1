// Instance of the kernel of matvec.cuh for any mix of formats.
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(kAllFormats)

}  // namespace orcd::cuda::matvec
