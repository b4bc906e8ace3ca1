#include "worker/api/vllm/kv_block_index.h"

namespace orcd {

void KvBlockIndex::Store(const FindableBlock& block, std::vector<Change>& changes) {
  Node& node = nodes_[block.content];
  node.block = std::make_shared<const KvBlock>(
      KvBlock{block.content, block.parent, {block.tokens.begin(), block.tokens.end()}});
  node.parent = block.parent ? &nodes_[*block.parent] : nullptr;
  (node.parent != nullptr ? node.parent->children : first_).insert(&node);
  if (node.parent == nullptr || node.parent->reachable) Reach(node, changes);
}

void KvBlockIndex::Remove(const BlockHash& content, std::vector<Change>& changes) {
  const auto found = nodes_.find(content);
  if (found == nodes_.end() || found->second.block == nullptr) return;
  Node& node = found->second;
  if (node.reachable) Lose(node, changes);
  const std::shared_ptr<const KvBlock> block = std::move(node.block);
  node.block = nullptr;
  (node.parent != nullptr ? node.parent->children : first_).erase(&node);
  EraseIfEmpty(content);
  if (block->parent) EraseIfEmpty(*block->parent);
}

std::vector<std::shared_ptr<const KvBlock>> KvBlockIndex::List() const {
  std::vector<std::shared_ptr<const KvBlock>> blocks;
  blocks.reserve(nodes_.size());
  std::vector<const Node*> next(first_.begin(), first_.end());
  while (!next.empty()) {
    const Node& node = *next.back();
    next.pop_back();
    blocks.push_back(node.block);
    next.insert(next.end(), node.children.begin(), node.children.end());
  }
  return blocks;
}

void KvBlockIndex::Reach(Node& first, std::vector<Change>& changes) {
  std::vector<Node*> next = {&first};
  while (!next.empty()) {
    Node& node = *next.back();
    next.pop_back();
    node.reachable = true;
    changes.push_back({node.block, true});
    next.insert(next.end(), node.children.begin(), node.children.end());
  }
}

void KvBlockIndex::Lose(Node& first, std::vector<Change>& changes) {
  std::vector<Node*> next = {&first};
  while (!next.empty()) {
    Node& node = *next.back();
    next.pop_back();
    node.reachable = false;
    changes.push_back({node.block, false});
    next.insert(next.end(), node.children.begin(), node.children.end());
  }
}

void KvBlockIndex::EraseIfEmpty(const BlockHash& content) {
  const auto found = nodes_.find(content);
  if (found == nodes_.end() || found->second.block != nullptr) return;
  if (found->second.children.empty()) nodes_.erase(found);
}

}  // namespace orcd
