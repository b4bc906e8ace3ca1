// Instances of the kernel of matvec.cuh for IQ4_XS models, which have some matrices of Q5_K and
// Q6_K, for MXFP4 models, which have others of Q8_0, and for NVFP4.
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(kIq4XsM)
ORCD_MATVEC_KERNELS(kIq4XsDeltaInputs)
ORCD_MATVEC_KERNELS(kMxfp4Q8)
ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kNVFP4))

}  // namespace orcd::cuda::matvec
