// Instances of the kernel of matvec.cuh for F16, for formats of blocks, and for Q4_K_M models some
// of whose columns are not a multiple of 256.
#include "cuda/kernels/sm90/matvec.cuh"

namespace orcd::cuda::matvec {

ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kF16))
ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ8_0))
ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ4_0))
ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kQ5_0))
ORCD_MATVEC_KERNELS(FormatBit(TileFormat::kIQ4_NL))
ORCD_MATVEC_KERNELS(kSmallQ4KM)

}  // namespace orcd::cuda::matvec
