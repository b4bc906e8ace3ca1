// Brings a model's files into memory before the first step reads them.
#ifndef ORCD_RUNTIME_CPU_PREFAULT_H_
#define ORCD_RUNTIME_CPU_PREFAULT_H_

#include "absl/status/status.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/load_observer.h"

namespace orcd::cpu {

// Touches every page of the model's files, on all threads, and reports LoadStage::kPlace.
// kCancelled where the observer says so. Whether the files are still what they were is for the
// caller to ask.
absl::Status Prefault(const GgufReader& gguf, ThreadPool& pool, LoadObserver& observer);

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_PREFAULT_H_
