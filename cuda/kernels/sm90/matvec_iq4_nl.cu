// Instance of the kernel of matvec.cuh for IQ4_NL.
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kIQ4_NL))

}  // namespace orcd::cuda::matvec
