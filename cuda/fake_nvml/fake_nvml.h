// The answers that a test sets of the management library in fake_nvml.cc.
#ifndef ORCD_CUDA_FAKE_NVML_FAKE_NVML_H_
#define ORCD_CUDA_FAKE_NVML_FAKE_NVML_H_

#include <atomic>

namespace orcd::cuda {

inline constexpr char kFakeGpu[] = "GPU-5c5ac5b2-0000-0000-0000-000000000001";

struct FakeNvml {
  int init_error = 0;
  // Programs that have started the library and not ended it.
  std::atomic<int> users = 0;
  bool has_ecc = true;
  bool has_events = true;
  // [volatile, aggregate][corrected, uncorrected]
  std::atomic<unsigned long long> errors[2][2] = {};
  std::atomic<bool> remap_pending = false;
  // Xids that wait to be taken.
  std::atomic<int> xids = 0;
  unsigned long long xid = 0;
};

}  // namespace orcd::cuda

// In the library.
extern "C" orcd::cuda::FakeNvml* FakeNvmlOf();

#endif  // ORCD_CUDA_FAKE_NVML_FAKE_NVML_H_
