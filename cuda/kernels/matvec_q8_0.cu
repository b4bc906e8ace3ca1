#include "cuda/kernels/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(Bit(TileFormat::kQ8_0))

}  // namespace orcd::cuda::matvec
