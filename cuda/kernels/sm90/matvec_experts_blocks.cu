// Instances of the kernel of matvec_experts.cuh for F16 and for formats of blocks.
#include "cuda/kernels/sm90/matvec_experts.cuh"

namespace orcd::cuda::matvec {

ORCD_EXPERT_MATVEC_KERNEL(FormatBit(TileFormat::kF16))
ORCD_EXPERT_MATVEC_KERNEL(FormatBit(TileFormat::kQ8_0))
ORCD_EXPERT_MATVEC_KERNEL(FormatBit(TileFormat::kQ5_0))
ORCD_EXPERT_MATVEC_KERNEL(kRareBlocks)

}  // namespace orcd::cuda::matvec
