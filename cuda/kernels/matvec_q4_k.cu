#include "cuda/kernels/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ4_K))
ORCD_MATVEC_KERNELS(kQ4KM)

}  // namespace orcd::cuda::matvec
