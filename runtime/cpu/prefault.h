// Brings a model's files into memory before the first step reads them.
#ifndef ORCD_RUNTIME_CPU_PREFAULT_H_
#define ORCD_RUNTIME_CPU_PREFAULT_H_

#include "absl/status/status.h"
#include "runtime/base/load_observer.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/gguf/gguf_reader.h"

namespace orcd::cpu {

// Touches every page of the model's files, on all threads, and reports LoadStage::kPlace.
// kCancelled if the observer says so. The caller must check that the files have not changed.
absl::Status Prefault(const GgufReader& gguf, ThreadPool& pool, LoadObserver& observer);

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_PREFAULT_H_
