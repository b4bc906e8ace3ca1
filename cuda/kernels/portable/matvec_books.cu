// Instance of the kernel of matvec.cuh for formats with books.
#include "cuda/kernels/portable/matvec.cuh"

namespace orcd::cuda::portable::matvec {

ORCD_PORTABLE_MATVEC_KERNEL(kBookFormats)

}  // namespace orcd::cuda::portable::matvec
