// An index of the KV-cache blocks that a prompt can begin with.
#ifndef ORCD_WORKER_API_VLLM_KV_BLOCK_INDEX_H_
#define ORCD_WORKER_API_VLLM_KV_BLOCK_INDEX_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "runtime/engine/block_pool.h"

namespace orcd {

struct KvBlock {
  BlockHash content;
  // Nothing if prompts begin with the block.
  std::optional<BlockHash> parent;
  std::vector<int32_t> tokens;
};

// Follows a block pool. A block whose predecessor is missing cannot be shared: it is reported as
// stored when the predecessor arrives, and as removed when the predecessor goes. So the blocks
// reported as stored and not as removed are at any time those that prompts can share, and parents
// are reported before their children. For one thread at a time.
class KvBlockIndex {
 public:
  struct Change {
    std::shared_ptr<const KvBlock> block;
    // False: removed.
    bool stored = false;
  };

  // Record an event of the pool and append the resulting changes to `changes`.
  void Store(const FindableBlock& block, std::vector<Change>& changes);
  void Remove(const BlockHash& content, std::vector<Change>& changes);

  // All blocks that prompts can share, each one after its predecessor in a prompt.
  std::vector<std::shared_ptr<const KvBlock>> List() const;

 private:
  // The node of a block that is present, or of a missing one that has a successor present. Its
  // address never changes.
  struct Node {
    // Null if the block is missing.
    std::shared_ptr<const KvBlock> block;
    // Null if prompts begin with the block.
    Node* parent = nullptr;
    bool reachable = false;
    absl::flat_hash_set<Node*> children;
  };

  // Append a change for `first` and for each block that comes after it.
  static void Reach(Node& first, std::vector<Change>& changes);
  static void Lose(Node& first, std::vector<Change>& changes);
  void EraseIfEmpty(const BlockHash& content);

  absl::node_hash_map<BlockHash, Node> nodes_;
  // The nodes of blocks that prompts begin with.
  absl::flat_hash_set<Node*> first_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_VLLM_KV_BLOCK_INDEX_H_
