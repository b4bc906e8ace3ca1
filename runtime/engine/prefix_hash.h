// Hashes that name the contents of KV blocks, so that requests with a common prefix can share
// blocks.
#ifndef ORCD_RUNTIME_ENGINE_PREFIX_HASH_H_
#define ORCD_RUNTIME_ENGINE_PREFIX_HASH_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace orcd {

// Half of a SHA-256 sum: blocks of the same name hold the same keys and values, even if an
// adversary tries to make names collide.
struct BlockHash {
  uint64_t high = 0;
  uint64_t low = 0;

  friend bool operator==(const BlockHash&, const BlockHash&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const BlockHash& hash) {
    return H::combine(std::move(state), hash.high, hash.low);
  }
};

// The root of all block names of one model (by its digest) and one tenant (by its salt).
BlockHash PrefixRoot(std::string_view model_digest, std::string_view salt);

// The name of the block that holds `tokens` and follows the block (or root) named `parent`.
BlockHash NextBlockHash(const BlockHash& parent, std::span<const int32_t> tokens);

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_PREFIX_HASH_H_
