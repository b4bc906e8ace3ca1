#include "runtime/engine/state_pool.h"

#include <utility>

namespace orcd {

StateCell::StateCell(StateCell&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), id_(std::exchange(other.id_, -1)) {}

StateCell& StateCell::operator=(StateCell&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::exchange(other.pool_, nullptr);
    id_ = std::exchange(other.id_, -1);
  }
  return *this;
}

StateCell::~StateCell() { Release(); }

void StateCell::Release() {
  if (pool_ != nullptr) pool_->Release(id_);
  pool_ = nullptr;
  id_ = -1;
}

StatePool::StatePool(int num_cells) : cells_(num_cells) {
  for (int id = 0; id < num_cells; ++id) LinkNewest(id);
}

StateCell StatePool::Find(const BlockHash& name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? StateCell() : Hold(found->second);
}

StateCell StatePool::Take() {
  const int32_t id = oldest_;
  if (id < 0) return {};
  StateCell taken = Hold(id);
  Cell& cell = cells_[id];
  if (cell.named) by_name_.erase(cell.name);
  cell.named = false;
  return taken;
}

bool StatePool::Name(const StateCell& cell, const BlockHash& name) {
  Cell& named = cells_[cell.id()];
  if (!by_name_.try_emplace(name, cell.id()).second) return false;
  named.named = true;
  named.name = name;
  return true;
}

StateCell StatePool::Hold(int32_t id) {
  if (cells_[id].holds++ == 0) {
    Unlink(id);
    ++held_;
    if (cells_[id].named) --cached_;
  }
  return {this, id};
}

void StatePool::Release(int32_t id) {
  Cell& cell = cells_[id];
  if (--cell.holds > 0) return;
  --held_;
  if (cell.named) {
    ++cached_;
    LinkNewest(id);
  } else {
    LinkOldest(id);
  }
}

void StatePool::Unlink(int32_t id) {
  Cell& cell = cells_[id];
  (cell.older >= 0 ? cells_[cell.older].newer : oldest_) = cell.newer;
  (cell.newer >= 0 ? cells_[cell.newer].older : newest_) = cell.older;
  cell.older = -1;
  cell.newer = -1;
}

void StatePool::LinkNewest(int32_t id) {
  Cell& cell = cells_[id];
  cell.older = newest_;
  (newest_ >= 0 ? cells_[newest_].newer : oldest_) = id;
  newest_ = id;
}

void StatePool::LinkOldest(int32_t id) {
  Cell& cell = cells_[id];
  cell.newer = oldest_;
  (oldest_ >= 0 ? cells_[oldest_].older : newest_) = id;
  oldest_ = id;
}

}  // namespace orcd
