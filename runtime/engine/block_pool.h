// Who holds which block of the KV cache.
#ifndef ORCD_RUNTIME_ENGINE_BLOCK_POOL_H_
#define ORCD_RUNTIME_ENGINE_BLOCK_POOL_H_

#include <cstdint>
#include <span>
#include <vector>

namespace orcd {

class BlockPool;

// A sequence's blocks, in order of position. Move-only; gives its blocks back when it goes.
class BlockList {
 public:
  BlockList() = default;
  BlockList(BlockList&& other) noexcept;
  BlockList& operator=(BlockList&& other) noexcept;
  ~BlockList();

  std::span<const int32_t> ids() const { return ids_; }
  int size() const { return static_cast<int>(ids_.size()); }

 private:
  friend class BlockPool;
  BlockPool* pool_ = nullptr;
  std::vector<int32_t> ids_;
};

// Owns the ids of `num_blocks` blocks; the backend owns their memory. One thread (the engine's).
// Must outlive its lists.
class BlockPool {
 public:
  explicit BlockPool(int num_blocks);

  int total() const { return total_; }
  int free() const { return static_cast<int>(free_.size()); }

  // Grows `list` to `size` blocks, or leaves it as it is and returns false where too few are free.
  [[nodiscard]] bool Grow(BlockList& list, int size);
  // Gives every block of `list` back.
  void Release(BlockList& list);

 private:
  const int total_;
  // A stack; the block freed last is reused first, while it may still be in a cache.
  std::vector<int32_t> free_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_BLOCK_POOL_H_
