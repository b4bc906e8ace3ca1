// Names for what KV blocks hold, so that requests with the same beginning can share them.
#ifndef ORCD_RUNTIME_ENGINE_PREFIX_HASH_H_
#define ORCD_RUNTIME_ENGINE_PREFIX_HASH_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace orcd {

// Half of a SHA-256: blocks of the same name hold the same keys and values, also where somebody
// tries to make it otherwise.
struct BlockHash {
  uint64_t high = 0;
  uint64_t low = 0;

  friend bool operator==(const BlockHash&, const BlockHash&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const BlockHash& hash) {
    return H::combine(std::move(state), hash.high, hash.low);
  }
};

// Where every name begins that a model (by its digest) and a tenant (by its salt) may share.
BlockHash PrefixRoot(std::string_view model_digest, std::string_view salt);

// The name of the block that holds `tokens` after everything that `parent` stands for.
BlockHash NextBlockHash(const BlockHash& parent, std::span<const int32_t> tokens);

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_PREFIX_HASH_H_
