#include "runtime/cpu/prefault.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/error.h"

namespace orcd::cpu {
namespace {

constexpr size_t kChunkBytes = size_t{8} << 20;
// The smallest page of any machine this runs on.
constexpr size_t kPageBytes = 4096;

void TouchPages(std::span<const std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); i += kPageBytes) {
    const volatile std::byte* page = bytes.data() + i;
    static_cast<void>(*page);
  }
}

}  // namespace

absl::Status Prefault(const GgufReader& gguf, ThreadPool& pool, LoadObserver& observer) {
  std::atomic<uint64_t> done = 0;
  const uint64_t total = gguf.total_bytes();
  observer.OnProgress(LoadStage::kPlace, 0, total);
  for (const MappedFile& file : gguf.files()) {
    const std::span<const std::byte> bytes = file.bytes();
    const int64_t chunks = static_cast<int64_t>((bytes.size() + kChunkBytes - 1) / kChunkBytes);
    pool.ParallelFor(chunks, [&](int64_t chunk, int) {
      if (observer.cancelled()) return;
      const size_t start = static_cast<size_t>(chunk) * kChunkBytes;
      const size_t size = std::min(kChunkBytes, bytes.size() - start);
      TouchPages(bytes.subspan(start, size));
      observer.OnProgress(LoadStage::kPlace, done.fetch_add(size) + size, total);
    });
    if (observer.cancelled()) {
      return MakeError(absl::StatusCode::kCancelled, "the load was cancelled",
                       {.reason = "LOAD_CANCELLED"});
    }
  }
  return absl::OkStatus();
}

}  // namespace orcd::cpu
