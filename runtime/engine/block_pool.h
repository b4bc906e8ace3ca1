// Who holds which block of the KV cache, and what the blocks that nobody holds are still good for.
#ifndef ORCD_RUNTIME_ENGINE_BLOCK_POOL_H_
#define ORCD_RUNTIME_ENGINE_BLOCK_POOL_H_

#include <cstdint>
#include <memory>
#include <optional>
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

// What a block that can be found holds, and after what.
struct FindableBlock {
  BlockHash content;
  // Content of the block before it; nothing where sequences begin with it.
  std::optional<BlockHash> parent;
  // As long as a block. The view lives until the pool changes.
  std::span<const int32_t> tokens;
};

// Hears which blocks can be found, of those that anybody may hear of. Called on the engine's thread
// and must not block.
class BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  // It can be found from now on.
  virtual void OnStored(const FindableBlock& block) = 0;
  // It cannot be found any more.
  virtual void OnRemoved(const BlockHash& content) = 0;
  // All that could be found when the observing began were told, in no order.
  virtual void OnListed() = 0;
  // The pool goes, and all blocks with it; or another observes it from now on.
  virtual void OnGone() = 0;
};

// Owns the ids of `num_blocks` blocks; the backend owns their memory. A block is held by as many
// lists as share it. One that nobody holds any more but whose content has a name stays findable
// until its memory is needed: the one unused for longest goes first. One thread (the engine's).
// Must outlive its lists.
//
// It keeps the tokens of the blocks that others may hear of, so that whoever begins to observe it
// hears of all of them: four bytes a token, beside the thousands that keys and values take.
class BlockPool {
 public:
  // Of a block that others may hear of.
  struct Origin {
    // As FindableBlock has it.
    std::optional<BlockHash> parent;
    // `block_tokens` of them.
    std::span<const int32_t> tokens;
  };

  // `block_tokens`: of a block that has an origin.
  explicit BlockPool(int num_blocks, int block_tokens = 0);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

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
  // Observers hear of it where it has an origin.
  void Name(const BlockList& list, int index, const BlockHash& content,
            const Origin* origin = nullptr);
  // What the blocks of `list` hold is worth nothing to others: it cannot be found any more.
  void Unname(const BlockList& list);
  // Gives every block of `list` back. Of the findable ones, those at the end of the list go first.
  void Release(BlockList& list);

  // Tells `observer` of the blocks that can be found, then of each change, for as long as it lives
  // and no other comes.
  void Observe(std::weak_ptr<BlockObserver> observer);

 private:
  struct Block {
    // Lists that hold it.
    int holders = 0;
    bool named = false;
    // Others may hear of it; with a parent where it has one.
    bool has_origin = false;
    bool has_parent = false;
    BlockHash content;
    BlockHash parent;
    // Neighbours among the findable blocks that nobody holds; -1: none.
    int32_t older = -1;
    int32_t newer = -1;
  };

  int32_t TakeFree();
  void Forget(Block& block);
  void Unlink(int32_t id);
  void LinkNewest(int32_t id);
  void SetOrigin(int32_t id, const Origin* origin);
  FindableBlock Describe(int32_t id) const;
  // Null where nobody listens.
  std::shared_ptr<BlockObserver> Listener();

  const size_t block_tokens_;
  std::vector<Block> blocks_;
  // Of block i from i * block_tokens_ on. Not initialized: memory that no block has used costs
  // nothing.
  std::unique_ptr<int32_t[]> tokens_;
  // Without a name. A stack; the block freed last is reused first, while it may still be in a
  // processor's cache.
  std::vector<int32_t> nameless_;
  // Ends of the list of findable blocks that nobody holds; -1: empty.
  int32_t oldest_ = -1;
  int32_t newest_ = -1;
  int free_count_ = 0;
  absl::flat_hash_map<BlockHash, int32_t> by_content_;
  bool observed_ = false;
  std::weak_ptr<BlockObserver> observer_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_BLOCK_POOL_H_
