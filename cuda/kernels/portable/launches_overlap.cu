#include "cuda/kernels/common/launch.h"

namespace orcd::cuda {
namespace {

// Is asked for the version of the code that this GPU runs.
__global__ void Probe() {}

bool ProbeOverlaps() {
  cudaFuncAttributes attributes = {};
  return cudaFuncGetAttributes(&attributes, Probe) == cudaSuccess && attributes.ptxVersion >= 90;
}

}  // namespace

bool LaunchesOverlap() {
  static const bool overlap = ProbeOverlaps();
  return overlap;
}

}  // namespace orcd::cuda
