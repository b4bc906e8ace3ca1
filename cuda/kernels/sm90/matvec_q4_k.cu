// Instances of the kernel of matvec.cuh for Q4_K, and for the formats of Q4_K_M models.
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ4_K))
ORCD_MATVEC_KERNELS(kQ4KM)

}  // namespace orcd::cuda::matvec
