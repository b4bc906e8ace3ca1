// Instance of the kernel of matvec.cuh for Q6_K.
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ6_K))

}  // namespace orcd::cuda::matvec
