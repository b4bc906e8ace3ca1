#include "runtime/engine/block_pool.h"

#include <algorithm>
#include <utility>

namespace orcd {

BlockList::BlockList(BlockList&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      ids_(std::exchange(other.ids_, {})),
      returned_(std::exchange(other.returned_, 0)) {}

BlockList& BlockList::operator=(BlockList&& other) noexcept {
  if (this != &other) {
    if (pool_ != nullptr) pool_->Release(*this);
    pool_ = std::exchange(other.pool_, nullptr);
    ids_ = std::exchange(other.ids_, {});
    returned_ = std::exchange(other.returned_, 0);
  }
  return *this;
}

BlockList::~BlockList() {
  if (pool_ != nullptr) pool_->Release(*this);
}

BlockPool::BlockPool(int num_blocks, int block_tokens)
    : block_tokens_(block_tokens),
      blocks_(num_blocks),
      tokens_(new int32_t[num_blocks * block_tokens_]),
      free_count_(num_blocks) {
  nameless_.reserve(num_blocks);
  for (int id = num_blocks - 1; id >= 0; --id) nameless_.push_back(id);
}

BlockPool::~BlockPool() {
  if (const auto listener = Listener()) listener->OnEnded();
}

bool BlockPool::Grow(BlockList& list, int size) {
  const int more = size - list.size();
  if (more <= 0) return true;
  if (more > free()) return false;
  list.pool_ = this;
  for (int i = 0; i < more; ++i) {
    const int32_t id = TakeFree();
    blocks_[id].holders = 1;
    list.ids_.push_back(id);
  }
  return true;
}

bool BlockPool::Share(BlockList& list, const BlockHash& content) {
  const auto found = by_content_.find(content);
  if (found == by_content_.end()) return false;
  const int32_t id = found->second;
  if (blocks_[id].holders++ == 0) {
    Unlink(id);
    --free_count_;
  }
  list.pool_ = this;
  list.ids_.push_back(id);
  return true;
}

void BlockPool::Name(const BlockList& list, int index, const BlockHash& content,
                     const Origin* origin) {
  const int32_t id = list.ids_[index];
  Block& block = blocks_[id];
  if (block.named) return;
  const auto [found, is_new] = by_content_.try_emplace(content, id);
  if (!is_new) {
    const int32_t other = found->second;
    if (blocks_[other].holders > 0) return;
    Unlink(other);
    blocks_[other].named = false;
    nameless_.push_back(other);
    found->second = id;
  }
  block.named = true;
  block.content = content;
  SetOrigin(id, origin);
  if (!is_new || !block.has_origin) return;
  if (const auto listener = Listener()) listener->OnStored(Describe(id));
}

void BlockPool::Release(BlockList& list) {
  for (int i = list.size() - 1; i >= list.returned_; --i) ReleaseBlock(list.ids_[i]);
  list.ids_.clear();
  list.returned_ = 0;
  list.pool_ = nullptr;
}

void BlockPool::ReturnBefore(BlockList& list, int index) {
  if (list.size() < index) list.ids_.resize(index, kNoBlock);
  for (int& i = list.returned_; i < index; ++i) {
    const int32_t id = std::exchange(list.ids_[i], kNoBlock);
    if (id != kNoBlock) ReleaseBlock(id);
  }
}

void BlockPool::Shrink(BlockList& list, int size) {
  while (list.size() > size) {
    const int32_t id = list.ids_.back();
    list.ids_.pop_back();
    if (id != kNoBlock) ReleaseBlock(id);
  }
  list.returned_ = std::min(list.returned_, list.size());
}

void BlockPool::ReleaseBlock(int32_t id) {
  Block& block = blocks_[id];
  if (--block.holders > 0) return;
  ++free_count_;
  if (block.named) {
    LinkNewest(id);
  } else {
    nameless_.push_back(id);
  }
}

int32_t BlockPool::TakeFree() {
  --free_count_;
  if (!nameless_.empty()) {
    const int32_t id = nameless_.back();
    nameless_.pop_back();
    return id;
  }
  const int32_t id = oldest_;
  Unlink(id);
  Block& block = blocks_[id];
  by_content_.erase(block.content);
  block.named = false;
  if (!block.has_origin) return id;
  if (const auto listener = Listener()) listener->OnRemoved(block.content);
  return id;
}

void BlockPool::SetOrigin(int32_t id, const Origin* origin) {
  Block& block = blocks_[id];
  block.has_origin = origin != nullptr;
  if (origin == nullptr) return;
  block.has_parent = origin->parent.has_value();
  if (origin->parent) block.parent = *origin->parent;
  std::copy(origin->tokens.begin(), origin->tokens.end(), &tokens_[id * block_tokens_]);
}

FindableBlock BlockPool::Describe(int32_t id) const {
  const Block& block = blocks_[id];
  FindableBlock described = {
      .content = block.content,
      .parent = std::nullopt,
      .tokens = std::span<const int32_t>(&tokens_[id * block_tokens_], block_tokens_)};
  if (block.has_parent) described.parent = block.parent;
  return described;
}

void BlockPool::Observe(std::weak_ptr<BlockObserver> observer) {
  if (const auto before = Listener()) before->OnEnded();
  observer_ = std::move(observer);
  observed_ = true;
  const auto listener = Listener();
  if (listener == nullptr) return;
  for (const auto& [content, id] : by_content_) {
    if (blocks_[id].has_origin) listener->OnStored(Describe(id));
  }
  listener->OnListed();
}

std::shared_ptr<BlockObserver> BlockPool::Listener() {
  if (!observed_) return nullptr;
  auto listener = observer_.lock();
  if (listener == nullptr) observed_ = false;
  return listener;
}

void BlockPool::Unlink(int32_t id) {
  Block& block = blocks_[id];
  (block.older >= 0 ? blocks_[block.older].newer : oldest_) = block.newer;
  (block.newer >= 0 ? blocks_[block.newer].older : newest_) = block.older;
  block.older = -1;
  block.newer = -1;
}

void BlockPool::LinkNewest(int32_t id) {
  Block& block = blocks_[id];
  block.older = newest_;
  (newest_ >= 0 ? blocks_[newest_].newer : oldest_) = id;
  newest_ = id;
}

}  // namespace orcd
