// Instance of the kernel of matvec.cuh for formats with group books.
#include "cuda/kernels/portable/matvec.cuh"

namespace orcd::cuda::portable::matvec {

ORCD_PORTABLE_MATVEC_KERNEL(kGroupBookFormats)

}  // namespace orcd::cuda::portable::matvec
