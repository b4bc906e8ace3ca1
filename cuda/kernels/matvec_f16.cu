#include "cuda/kernels/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(Bit(TileFormat::kF16))

}  // namespace orcd::cuda::matvec
