#include "runtime/engine/block_pool.h"

#include <utility>

namespace orcd {

BlockList::BlockList(BlockList&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), ids_(std::exchange(other.ids_, {})) {}

BlockList& BlockList::operator=(BlockList&& other) noexcept {
  if (this != &other) {
    if (pool_ != nullptr) pool_->Release(*this);
    pool_ = std::exchange(other.pool_, nullptr);
    ids_ = std::exchange(other.ids_, {});
  }
  return *this;
}

BlockList::~BlockList() {
  if (pool_ != nullptr) pool_->Release(*this);
}

BlockPool::BlockPool(int num_blocks) : total_(num_blocks) {
  free_.reserve(num_blocks);
  for (int id = num_blocks - 1; id >= 0; --id) free_.push_back(id);
}

bool BlockPool::Grow(BlockList& list, int size) {
  const int more = size - list.size();
  if (more <= 0) return true;
  if (more > free()) return false;
  list.pool_ = this;
  for (int i = 0; i < more; ++i) {
    list.ids_.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void BlockPool::Release(BlockList& list) {
  free_.insert(free_.end(), list.ids_.rbegin(), list.ids_.rend());
  list.ids_.clear();
  list.pool_ = nullptr;
}

}  // namespace orcd
