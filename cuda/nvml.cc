#include "cuda/nvml.h"

#include <dlfcn.h>

#include <array>
#include <utility>

namespace orcd::cuda {
namespace {

// From NVML's API reference. Handles are pointers to structures that only the library knows.
using Device = void*;
using EventSet = void*;

constexpr int kSuccess = 0;
constexpr int kCorrected = 0;
constexpr int kUncorrected = 1;
constexpr int kVolatile = 0;
constexpr int kAggregate = 1;
// nvmlEventTypeXidCriticalError.
constexpr unsigned long long kXidEvents = 0x8;

// Most Xids that are taken at once, so that a flood of them does not hold the caller.
constexpr int kMaxXids = 1000;

}  // namespace

// Pointers to optional functions may be null.
struct Nvml::Functions {
  // nvmlEventData_t.
  struct EventData {
    Device device;
    unsigned long long type;
    // The Xid.
    unsigned long long data;
    unsigned gpu_instance;
    unsigned compute_instance;
  };

  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*driver_version)(char* text, unsigned size) = nullptr;
  int (*by_uuid)(const char* uuid, Device* device) = nullptr;
  int (*total_ecc_errors)(Device device, int kind, int counter,
                          unsigned long long* count) = nullptr;
  int (*remapped_rows)(Device device, unsigned* corrected, unsigned* uncorrected,
                       unsigned* is_pending, unsigned* failed) = nullptr;
  int (*event_set_create)(EventSet* set) = nullptr;
  int (*event_set_free)(EventSet set) = nullptr;
  int (*register_events)(Device device, unsigned long long types, EventSet set) = nullptr;
  int (*event_set_wait)(EventSet set, EventData* data, unsigned milliseconds) = nullptr;

  // Looks the functions up. False if one that everything needs is missing.
  bool Resolve() {
    const auto find = [this](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    find("nvmlSystemGetDriverVersion", driver_version);
    find("nvmlDeviceGetTotalEccErrors", total_ecc_errors);
    find("nvmlDeviceGetRemappedRows", remapped_rows);
    find("nvmlEventSetCreate", event_set_create);
    find("nvmlEventSetFree", event_set_free);
    find("nvmlDeviceRegisterEvents", register_events);
    find("nvmlEventSetWait_v2", event_set_wait);
    return find("nvmlInit_v2", init) && find("nvmlShutdown", shutdown) &&
           find("nvmlDeviceGetHandleByUUID", by_uuid);
  }
};

std::unique_ptr<Nvml> Nvml::Load(const std::string& library) {
  auto functions = std::make_unique<Functions>();
  functions->library = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (functions->library == nullptr) return nullptr;
  if (!functions->Resolve() || functions->init() != kSuccess) {
    dlclose(functions->library);
    return nullptr;
  }
  return std::unique_ptr<Nvml>(new Nvml(std::move(functions)));
}

Nvml::Nvml(std::unique_ptr<const Functions> functions) : functions_(std::move(functions)) {}

Nvml::~Nvml() {
  static_cast<void>(functions_->shutdown());
  dlclose(functions_->library);
}

std::string Nvml::DriverVersion() const {
  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE.
  std::array<char, 80> text = {};
  if (functions_->driver_version == nullptr ||
      functions_->driver_version(text.data(), text.size() - 1) != kSuccess) {
    return "";
  }
  return text.data();
}

std::unique_ptr<NvmlGpu> Nvml::Find(const std::string& uuid) const {
  Device device = nullptr;
  if (functions_->by_uuid(uuid.c_str(), &device) != kSuccess) return nullptr;
  return std::unique_ptr<NvmlGpu>(new NvmlGpu(*functions_, device));
}

NvmlGpu::NvmlGpu(const Nvml::Functions& nvml, void* device) : nvml_(nvml), device_(device) {
  if (nvml.event_set_create == nullptr || nvml.event_set_free == nullptr ||
      nvml.register_events == nullptr || nvml.event_set_wait == nullptr) {
    return;
  }
  EventSet set = nullptr;
  if (nvml.event_set_create(&set) != kSuccess) return;
  if (nvml.register_events(device, kXidEvents, set) == kSuccess) {
    events_ = set;
  } else {
    static_cast<void>(nvml.event_set_free(set));
  }
}

NvmlGpu::~NvmlGpu() {
  if (events_ != nullptr) static_cast<void>(nvml_.event_set_free(events_));
}

GpuMemoryErrors NvmlGpu::MemoryErrors() const {
  const auto count = [this](int kind, int counter) -> std::optional<uint64_t> {
    unsigned long long errors = 0;
    if (nvml_.total_ecc_errors == nullptr ||
        nvml_.total_ecc_errors(device_, kind, counter, &errors) != kSuccess) {
      return std::nullopt;
    }
    return errors;
  };
  GpuMemoryErrors errors = {.corrected = count(kCorrected, kVolatile),
                            .uncorrected = count(kUncorrected, kVolatile),
                            .lifetime_corrected = count(kCorrected, kAggregate),
                            .lifetime_uncorrected = count(kUncorrected, kAggregate)};
  unsigned rows[2] = {};
  unsigned is_pending = 0;
  unsigned failed = 0;
  if (nvml_.remapped_rows != nullptr &&
      nvml_.remapped_rows(device_, &rows[0], &rows[1], &is_pending, &failed) == kSuccess) {
    errors.remap_pending = is_pending != 0;
    errors.remap_failed = failed != 0;
  }
  return errors;
}

std::vector<uint64_t> NvmlGpu::TakeXids() {
  std::vector<uint64_t> xids;
  Nvml::Functions::EventData event = {};
  for (int i = 0; i < kMaxXids && events_ != nullptr; ++i) {
    if (nvml_.event_set_wait(events_, &event, 0) != kSuccess) break;
    if (event.type == kXidEvents) xids.push_back(event.data);
  }
  return xids;
}

}  // namespace orcd::cuda
