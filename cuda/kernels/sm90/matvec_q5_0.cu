// Instances of the kernel of matvec.cuh for Q5_0, and for Q4_K_M models some of whose columns are
// not a multiple of 256.
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ5_0))
ORCD_MATVEC_KERNELS(kSmallQ4KM)

}  // namespace orcd::cuda::matvec
