// Instances of the kernel of matvec.cuh for the K-quants, for Q4_K_M and Q5_K_M models, and for the
// inputs of delta nets.
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ4_K))
ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ5_K))
ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ6_K))
ORCD_MATVEC_KERNELS(kQ4KM)
ORCD_MATVEC_KERNELS(kQ5KM)
ORCD_MATVEC_KERNELS(kDeltaInputs)

}  // namespace orcd::cuda::matvec
