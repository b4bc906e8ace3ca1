// Who holds which block of the KV cache, and what the blocks that nobody holds are still good for.
#ifndef ORCD_RUNTIME_ENGINE_BLOCK_POOL_H_
#define ORCD_RUNTIME_ENGINE_BLOCK_POOL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/engine/prefix_hash.h"

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

// Owns the ids of `num_blocks` blocks; the backend owns their memory. A block is held by as many
// lists as share it. One that nobody holds any more but whose content has a name stays findable
// until its memory is needed: the one unused for longest goes first. One thread (the engine's).
// Must outlive its lists.
class BlockPool {
 public:
  explicit BlockPool(int num_blocks);

  int total() const { return static_cast<int>(blocks_.size()); }
  // That no list holds, the findable ones included.
  int free() const { return free_count_; }
  // That can be found by their content, held or not.
  int named() const { return static_cast<int>(by_content_.size()); }

  // Grows `list` to `size` blocks, or leaves it as it is and returns false where too few are free.
  // What the new blocks hold means nothing.
  [[nodiscard]] bool Grow(BlockList& list, int size);
  // Appends the block that holds `content` to `list`; false where there is none.
  [[nodiscard]] bool Share(BlockList& list, const BlockHash& content);
  bool Contains(const BlockHash& content) const { return by_content_.contains(content); }
  // Says what the full block list.ids()[index] holds from now on. It must not be written to any
  // more, but with what it holds. Where another block that is held holds the same, that one stays
  // the one to be found; one that nobody holds gives way, since it might be gone the sooner.
  void Name(const BlockList& list, int index, const BlockHash& content);
  // What the blocks of `list` hold is worth nothing to others: it cannot be found any more.
  void Unname(const BlockList& list);
  // Gives every block of `list` back. Of the findable ones, those at the end of the list go first.
  void Release(BlockList& list);

 private:
  struct Block {
    // Lists that hold it.
    int holders = 0;
    bool named = false;
    BlockHash content;
    // Neighbours among the findable blocks that nobody holds; -1: none.
    int32_t older = -1;
    int32_t newer = -1;
  };

  int32_t TakeFree();
  void Forget(Block& block);
  void Unlink(int32_t id);
  void LinkNewest(int32_t id);

  std::vector<Block> blocks_;
  // Without a name. A stack; the block freed last is reused first, while it may still be in a
  // processor's cache.
  std::vector<int32_t> nameless_;
  // Ends of the list of findable blocks that nobody holds; -1: empty.
  int32_t oldest_ = -1;
  int32_t newest_ = -1;
  int free_count_ = 0;
  absl::flat_hash_map<BlockHash, int32_t> by_content_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_BLOCK_POOL_H_
