// The two KV caches of a model.
#ifndef ORCD_RUNTIME_CPU_KV_CACHES_H_
#define ORCD_RUNTIME_CPU_KV_CACHES_H_

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "runtime/backend/kv_plan.h"
#include "runtime/cpu/kv_cache.h"
#include "runtime/model/spec.h"

namespace orcd::cpu {

struct KvCaches {
  KvCache whole;
  // Holds the layers with a window; absent if the model has none.
  std::optional<KvCache> windows;

  // `window_blocks` means nothing if no layer has a window.
  static absl::StatusOr<KvCaches> Create(const ModelSpec& spec, int block_tokens, KvType type,
                                         int64_t blocks, int64_t window_blocks);

  static KvBlockBytes BlockBytes(const ModelSpec& spec, int block_tokens, KvType type);

  // The cache in which a layer's keys and values are.
  KvCache& of(const LayerSpec& layer) { return layer.window == 0 ? whole : *windows; }
  const KvCache& of(const LayerSpec& layer) const { return layer.window == 0 ? whole : *windows; }

  int64_t window_blocks() const { return windows.has_value() ? windows->blocks() : 0; }
  uint64_t bytes() const {
    return whole.bytes() + (windows.has_value() ? windows->bytes() : uint64_t{0});
  }
};

// KV blocks of a sequence; see StepSequence::blocks and window_blocks.
struct KvBlocks {
  std::span<const int32_t> whole;
  std::span<const int32_t> windows;

  std::span<const int32_t> of(const LayerSpec& layer) const {
    return layer.window == 0 ? whole : windows;
  }
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_KV_CACHES_H_
