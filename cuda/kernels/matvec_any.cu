#include "cuda/kernels/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(kAllFormats)

}  // namespace orcd::cuda::matvec
