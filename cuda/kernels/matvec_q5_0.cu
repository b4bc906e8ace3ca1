#include "cuda/kernels/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ5_0))
ORCD_MATVEC_KERNELS(kSmallQ4KM)

}  // namespace orcd::cuda::matvec
