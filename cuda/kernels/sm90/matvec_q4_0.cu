// Instance of the kernel of matvec.cuh for Q4_0.
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ4_0))

}  // namespace orcd::cuda::matvec
