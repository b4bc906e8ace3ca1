// Instances of the kernel of matvec.cuh for formats with group books, and for IQ3_M models.
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(kIq3M)
ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kIQ3_XXS))
ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kIQ2_S))
ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kIQ2_XS))
ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kIQ2_XXS))

}  // namespace orcd::cuda::matvec
