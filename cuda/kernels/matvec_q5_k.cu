#include "cuda/kernels/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ5_K))
ORCD_MATVEC_KERNELS(kQ5KM)

}  // namespace orcd::cuda::matvec
