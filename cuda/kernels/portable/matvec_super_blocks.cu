// Instance of the kernel of matvec.cuh for formats of super-blocks whose quants are numbers or
// levels.
#include "cuda/kernels/portable/matvec.cuh"

namespace orcd::cuda::portable::matvec {

ORCD_PORTABLE_MATVEC_KERNEL(kSuperBlocks)

}  // namespace orcd::cuda::portable::matvec
