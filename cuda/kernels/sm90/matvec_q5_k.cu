// Instances of the kernel of matvec.cuh for Q5_K, and for the formats of Q5_K_M models.
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ5_K))
ORCD_MATVEC_KERNELS(kQ5KM)

}  // namespace orcd::cuda::matvec
