#include "worker/vllm/kv_block_index.h"

namespace orcd {

void KvBlockIndex::Store(const FindableBlock& block, std::vector<Change>& changes) {
  Node& node = nodes_[block.content];
  node.block = std::make_shared<const KvBlock>(
      KvBlock{block.content, block.parent, {block.tokens.begin(), block.tokens.end()}});
  if (!block.parent) {
    first_.insert(block.content);
  } else {
    nodes_[*block.parent].children.insert(block.content);
  }
  if (!block.parent || IsReachable(*block.parent)) Reach(block.content, changes);
}

void KvBlockIndex::Remove(const BlockHash& content, std::vector<Change>& changes) {
  const auto found = nodes_.find(content);
  if (found == nodes_.end() || found->second.block == nullptr) return;
  if (found->second.reachable) Lose(content, changes);
  const std::shared_ptr<const KvBlock> block = std::move(found->second.block);
  found->second.block = nullptr;
  EraseIfEmpty(content);
  if (!block->parent) {
    first_.erase(content);
  } else {
    nodes_[*block->parent].children.erase(content);
    EraseIfEmpty(*block->parent);
  }
}

std::vector<std::shared_ptr<const KvBlock>> KvBlockIndex::List() const {
  std::vector<std::shared_ptr<const KvBlock>> blocks;
  blocks.reserve(nodes_.size());
  std::vector<BlockHash> next(first_.begin(), first_.end());
  while (!next.empty()) {
    const Node& node = nodes_.at(next.back());
    next.pop_back();
    if (node.block == nullptr) continue;
    blocks.push_back(node.block);
    next.insert(next.end(), node.children.begin(), node.children.end());
  }
  return blocks;
}

bool KvBlockIndex::IsReachable(const BlockHash& content) const {
  const auto found = nodes_.find(content);
  return found != nodes_.end() && found->second.reachable;
}

void KvBlockIndex::Reach(const BlockHash& content, std::vector<Change>& changes) {
  std::vector<BlockHash> next = {content};
  while (!next.empty()) {
    Node& node = nodes_.at(next.back());
    next.pop_back();
    if (node.block == nullptr || node.reachable) continue;
    node.reachable = true;
    changes.push_back({node.block, true});
    next.insert(next.end(), node.children.begin(), node.children.end());
  }
}

void KvBlockIndex::Lose(const BlockHash& content, std::vector<Change>& changes) {
  std::vector<BlockHash> next = {content};
  while (!next.empty()) {
    Node& node = nodes_.at(next.back());
    next.pop_back();
    if (!node.reachable) continue;
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
