// Instances of the kernel of matvec_experts.cuh for formats with group books.
#include "cuda/kernels/sm90/matvec_experts.cuh"

namespace orcd::cuda::matvec {

ORCD_EXPERT_MATVEC_KERNEL(FormatBit(TileFormat::kIQ3_S))
ORCD_EXPERT_MATVEC_KERNEL(FormatBit(TileFormat::kIQ3_XXS))
ORCD_EXPERT_MATVEC_KERNEL(FormatBit(TileFormat::kIQ2_S))
ORCD_EXPERT_MATVEC_KERNEL(FormatBit(TileFormat::kIQ2_XS))
ORCD_EXPERT_MATVEC_KERNEL(FormatBit(TileFormat::kIQ2_XXS))

}  // namespace orcd::cuda::matvec
