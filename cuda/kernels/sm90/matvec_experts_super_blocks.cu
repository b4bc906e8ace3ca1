// Instances of the kernel of matvec_experts.cuh for the K-quants.
#include "cuda/kernels/sm90/matvec_experts.cuh"

namespace orcd::cuda::matvec {

ORCD_EXPERT_MATVEC_KERNEL(kQ4KM)
ORCD_EXPERT_MATVEC_KERNEL(FormatBit(TileFormat::kQ5_K))
ORCD_EXPERT_MATVEC_KERNEL(FormatBit(TileFormat::kQ2_K))

}  // namespace orcd::cuda::matvec
