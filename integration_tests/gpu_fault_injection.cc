// Breaks a process's GPU context while it runs, as a hardware fault would: every later CUDA call of
// the process fails. The CUDA driver loads this library into a process whose CUDA_INJECTION64_PATH
// names it. The fault happens once the file named by ORCD_GPU_FAULT_FILE exists.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

// The types of the CUDA driver API that are needed here, as cuda.h defines them.
using Result = int;
using Device = int;
using Context = void*;
using Module = void*;
using Function = void*;

constexpr char kTrap[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry fault() { trap; }\n";

template <typename Signature>
Signature* Find(void* driver, const char* name) {
  return reinterpret_cast<Signature*>(dlsym(driver, name));
}

void Break() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  Device device = 0;
  Context context = nullptr;
  Module module = nullptr;
  Function function = nullptr;
  const bool done =
      driver != nullptr && Find<Result(Device*, int)>(driver, "cuDeviceGet")(&device, 0) == 0 &&
      Find<Result(Context*, Device)>(driver, "cuDevicePrimaryCtxRetain")(&context, device) == 0 &&
      Find<Result(Context)>(driver, "cuCtxSetCurrent")(context) == 0 &&
      Find<Result(Module*, const void*)>(driver, "cuModuleLoadData")(&module, kTrap) == 0 &&
      Find<Result(Function*, Module, const char*)>(driver, "cuModuleGetFunction")(&function, module,
                                                                                  "fault") == 0 &&
      Find<Result(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void*, void**, void**)>(driver, "cuLaunchKernel")(function, 1, 1, 1, 1, 1, 1, 0,
                                                                    nullptr, nullptr, nullptr) == 0;
  std::fprintf(stderr, "gpu_fault_injection: %s\n", done ? "broken" : "could not break");
}

}  // namespace

// The CUDA driver calls this function.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  const char* const file = std::getenv("ORCD_GPU_FAULT_FILE");
  if (file == nullptr) return 1;
  std::thread([path = std::string(file)] {
    while (access(path.c_str(), F_OK) != 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    Break();
  }).detach();
  return 1;
}
