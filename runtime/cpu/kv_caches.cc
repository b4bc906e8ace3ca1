#include "runtime/cpu/kv_caches.h"

#include "runtime/base/error.h"

namespace orcd::cpu {

absl::StatusOr<KvCaches> KvCaches::Create(const ModelSpec& spec, int block_tokens, KvType type,
                                          int64_t blocks, int64_t window_blocks) {
  KvCaches caches;
  KvShape shape = {KvLayout(spec.layers), block_tokens, type};
  ORCD_ASSIGN_OR_RETURN(caches.whole, KvCache::Create(shape, blocks));
  if (spec.window() > 0) {
    shape.windows = true;
    ORCD_ASSIGN_OR_RETURN(caches.windows, KvCache::Create(shape, window_blocks));
  }
  return caches;
}

KvBlockBytes KvCaches::BlockBytes(const ModelSpec& spec, int block_tokens, KvType type) {
  const KvLayout layout(spec.layers);
  return {.whole = KvShape{layout, block_tokens, type}.block_bytes(),
          .window = KvShape{layout, block_tokens, type, /*windows=*/true}.block_bytes()};
}

}  // namespace orcd::cpu
