// Instance of the kernel of matvec.cuh for F16.
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kF16))

}  // namespace orcd::cuda::matvec
