#ifndef ORCD_CUDA_IN_FLIGHT_H_
#define ORCD_CUDA_IN_FLIGHT_H_

namespace orcd::cuda {

// Largest number of steps that are enqueued and not yet waited for. Each has its own tables.
inline constexpr int kMaxInFlight = 2;

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_IN_FLIGHT_H_
