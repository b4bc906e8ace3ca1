// Instances of the kernel of matvec_experts.cuh for formats with level books.
#include "cuda/kernels/sm90/matvec_experts.cuh"

namespace orcd::cuda::matvec {

ORCD_EXPERT_MATVEC_KERNEL(FormatBit(TileFormat::kMXFP4))
ORCD_EXPERT_MATVEC_KERNEL(FormatBit(TileFormat::kIQ4_XS))
ORCD_EXPERT_MATVEC_KERNEL(kRareLevelBooks)

}  // namespace orcd::cuda::matvec
