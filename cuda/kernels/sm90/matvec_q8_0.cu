// Instance of the kernel of matvec.cuh for Q8_0.
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ8_0))

}  // namespace orcd::cuda::matvec
