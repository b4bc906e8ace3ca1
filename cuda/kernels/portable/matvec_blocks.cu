// Instance of the kernel of matvec.cuh for formats of blocks.
#include "cuda/kernels/portable/matvec.cuh"

namespace orcd::cuda::portable::matvec {

ORCD_PORTABLE_MATVEC_KERNEL(kBlocks)

}  // namespace orcd::cuda::portable::matvec
