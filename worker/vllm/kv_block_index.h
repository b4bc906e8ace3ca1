// Which blocks of the KV cache a prompt can begin with.
#ifndef ORCD_WORKER_VLLM_KV_BLOCK_INDEX_H_
#define ORCD_WORKER_VLLM_KV_BLOCK_INDEX_H_

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
  // Nothing where prompts begin with it.
  std::optional<BlockHash> parent;
  std::vector<int32_t> tokens;
};

// Follows a block pool. A block that is there while one before it is not helps nobody: it is told
// of when the one before it comes, and taken back when that goes. So what was told is at any time
// what prompts can share, and parents come before their children. One thread at a time.
class KvBlockIndex {
 public:
  struct Change {
    std::shared_ptr<const KvBlock> block;
    // Else removed.
    bool stored = false;
  };

  // What the pool says; appends what follows from it to `changes`.
  void Store(const FindableBlock& block, std::vector<Change>& changes);
  void Remove(const BlockHash& content, std::vector<Change>& changes);

  // All that prompts can share, each block after the one before it in a prompt.
  std::vector<std::shared_ptr<const KvBlock>> List() const;

 private:
  // Of a block that is there, or that one which is there comes after. Never moves.
  struct Node {
    // Null where it is not there.
    std::shared_ptr<const KvBlock> block;
    // Null where prompts begin with it.
    Node* parent = nullptr;
    bool reachable = false;
    absl::flat_hash_set<Node*> children;
  };

  // Tells of the blocks from `first` on.
  static void Reach(Node& first, std::vector<Change>& changes);
  static void Lose(Node& first, std::vector<Change>& changes);
  void EraseIfEmpty(const BlockHash& content);

  absl::node_hash_map<BlockHash, Node> nodes_;
  // Those that prompts begin with.
  absl::flat_hash_set<Node*> first_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_VLLM_KV_BLOCK_INDEX_H_
