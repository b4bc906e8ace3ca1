#include "cuda/kernels/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(Bit(TileFormat::kQ4_K))
ORCD_MATVEC_KERNELS(Bit(TileFormat::kQ4_K) | Bit(TileFormat::kQ6_K))

}  // namespace orcd::cuda::matvec
