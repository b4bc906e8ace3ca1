// A management library with one GPU, for tests without a GPU. A test sets its answers through
// FakeNvmlOf().
#include "cuda/fake_nvml/fake_nvml.h"

#include <cstdio>
#include <cstring>

namespace {

constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kTimeout = 10;

orcd::cuda::FakeNvml fake;
int gpu;
int events;

struct EventData {
  void* device;
  unsigned long long type;
  unsigned long long data;
  unsigned gpu_instance;
  unsigned compute_instance;
};

}  // namespace

extern "C" {

orcd::cuda::FakeNvml* FakeNvmlOf() { return &fake; }

// NVML names them.
// NOLINTBEGIN(readability-identifier-naming)
int nvmlInit_v2() {
  if (fake.init_error != 0) return fake.init_error;
  ++fake.users;
  return 0;
}
int nvmlShutdown() {
  --fake.users;
  return 0;
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::snprintf(text, size, "580.82.07");
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strcmp(uuid, orcd::cuda::kFakeGpu) != 0) return kNotFound;
  *device = &gpu;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void* device, int kind, int counter, unsigned long long* count) {
  if (device != &gpu || !fake.has_ecc) return kNotSupported;
  *count = fake.errors[counter][kind];
  return 0;
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected,
                              unsigned* is_pending, unsigned* failed) {
  if (device != &gpu || !fake.has_ecc) return kNotSupported;
  *corrected = *uncorrected = 0;
  *is_pending = fake.remap_pending ? 1 : 0;
  *failed = 0;
  return 0;
}
int nvmlEventSetCreate(void** set) {
  *set = &events;
  return 0;
}
int nvmlEventSetFree(void* set) { return set == &events ? 0 : kNotFound; }
int nvmlDeviceRegisterEvents(void* device, unsigned long long types, void* set) {
  return device == &gpu && set == &events && types == 8 && fake.has_events ? 0 : kNotSupported;
}
int nvmlEventSetWait_v2(void* set, EventData* data, unsigned milliseconds) {
  if (set != &events || milliseconds != 0 || fake.xids == 0) return kTimeout;
  --fake.xids;
  *data = {&gpu, 8, fake.xid, 0, 0};
  return 0;
}
// NOLINTEND(readability-identifier-naming)

}  // extern "C"
