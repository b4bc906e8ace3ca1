// Allocates the blocks of the KV cache to sequences, and keeps released blocks findable by content.
#ifndef ORCD_RUNTIME_ENGINE_BLOCK_POOL_H_
#define ORCD_RUNTIME_ENGINE_BLOCK_POOL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/backend/backend.h"
#include "runtime/engine/prefix_hash.h"

namespace orcd {

class BlockPool;

// The blocks of one sequence, in order of position. The first entries are kNoBlock if they were
// returned to the pool. Move-only; the destructor releases the blocks.
class BlockList {
 public:
  BlockList() = default;
  BlockList(BlockList&& other) noexcept;
  BlockList& operator=(BlockList&& other) noexcept;
  ~BlockList();

  std::span<const int32_t> ids() const { return ids_; }
  int size() const { return static_cast<int>(ids_.size()); }
  // Number of blocks that the list holds, and of entries before them that are kNoBlock.
  int held() const { return size() - returned_; }
  int returned() const { return returned_; }

 private:
  friend class BlockPool;
  BlockPool* pool_ = nullptr;
  std::vector<int32_t> ids_;
  int returned_ = 0;
};

// A block that can be found by its content, as reported to an observer.
struct FindableBlock {
  BlockHash content;
  // Content of the preceding block; nullopt if this block is the first of a sequence.
  std::optional<BlockHash> parent;
  // One block's worth of tokens. The view is valid until the pool changes.
  std::span<const int32_t> tokens;
};

// Is notified of the shareable blocks (those named with an Origin) that can be found. Called on the
// engine thread; must not block.
class BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  // The block can be found from now on.
  virtual void OnStored(const FindableBlock& block) = 0;
  // The block can no longer be found.
  virtual void OnRemoved(const BlockHash& content) = 0;
  // All blocks that could be found when observation began have been reported, in no particular
  // order.
  virtual void OnListed() = 0;
  // The pool and all its blocks are destroyed, or another observer has replaced this one.
  virtual void OnEnded() = 0;
};

// Owns the ids of `num_blocks` blocks; the backend owns their memory. Each block counts the lists
// that hold it. A named block that no list holds stays findable until its memory is needed; the
// least recently used one is reclaimed first. Used by one thread (the engine's). Must outlive its
// lists.
//
// The pool keeps the tokens of shareable blocks so that it can report them to a new observer.
// This takes four bytes a token, against thousands for the keys and values.
class BlockPool {
 public:
  // The parent and the tokens of a shareable block, reported to observers.
  struct Origin {
    // See FindableBlock::parent.
    std::optional<BlockHash> parent;
    // `block_tokens` token ids.
    std::span<const int32_t> tokens;
  };

  // `block_tokens` is the number of tokens in a block that has an Origin.
  explicit BlockPool(int num_blocks, int block_tokens = 0);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int total() const { return static_cast<int>(blocks_.size()); }
  // Number of blocks that no list holds, findable ones included.
  int free() const { return free_count_; }
  // Number of blocks that can be found by content, held or not.
  int named() const { return static_cast<int>(by_content_.size()); }

  // Grows `list` to `size` blocks. Returns false, with `list` unchanged, if too few blocks are
  // free. The contents of the new blocks are unspecified.
  [[nodiscard]] bool Grow(BlockList& list, int size);
  // Appends the block that holds `content` to `list`; false if no block holds it.
  bool Share(BlockList& list, const BlockHash& content);
  bool Contains(const BlockHash& content) const { return by_content_.contains(content); }
  // Releases the blocks of entries before `index`, which become kNoBlock; a shorter list gets as
  // many entries. Among the findable ones, those at the beginning are reclaimed first.
  void ReturnBefore(BlockList& list, int index);
  // Releases the blocks of entries from `size` on; a list that is no longer stays as it is.
  void Shrink(BlockList& list, int size);
  // Records that the full block list.ids()[index] holds `content`. From now on only the same
  // content may be written to the block. If another block already has this name, a held one keeps
  // the name; an unheld one loses it to this block, since it may be reclaimed sooner. A block with
  // an Origin is reported to the observer.
  void Name(const BlockList& list, int index, const BlockHash& content,
            const Origin* origin = nullptr);
  // Releases every block of `list`. Among the findable ones, those at the end of the list are
  // reclaimed first.
  void Release(BlockList& list);

  // Reports the findable blocks to `observer`, then each change, until `observer` expires or
  // another one replaces it.
  void Observe(std::weak_ptr<BlockObserver> observer);

 private:
  struct Block {
    // Number of lists that hold the block.
    int holders = 0;
    bool named = false;
    // The block is shareable and reported to observers; has_parent says if it has a parent.
    bool has_origin = false;
    bool has_parent = false;
    BlockHash content;
    BlockHash parent;
    // Neighbours in the list of findable blocks that no list holds; -1 if none.
    int32_t older = -1;
    int32_t newer = -1;
  };

  int32_t TakeFree();
  void ReleaseBlock(int32_t id);
  void Unlink(int32_t id);
  void LinkNewest(int32_t id);
  void SetOrigin(int32_t id, const Origin* origin);
  FindableBlock Describe(int32_t id) const;
  // Null if there is no observer.
  std::shared_ptr<BlockObserver> Listener();

  const size_t block_tokens_;
  std::vector<Block> blocks_;
  // Tokens of block i start at i * block_tokens_. Uninitialised, so the pages of blocks that were
  // never used cost nothing.
  std::unique_ptr<int32_t[]> tokens_;
  // Free blocks without a name. A stack: the block freed last is reused first, while its contents
  // may still be in a cache.
  std::vector<int32_t> nameless_;
  // Ends of the list of findable blocks that no list holds; -1 if the list is empty.
  int32_t oldest_ = -1;
  int32_t newest_ = -1;
  int free_count_ = 0;
  absl::flat_hash_map<BlockHash, int32_t> by_content_;
  bool observed_ = false;
  std::weak_ptr<BlockObserver> observer_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_BLOCK_POOL_H_
