// Allocates the cells that keep recurrent states, and finds the states by the prefix they follow.
#ifndef ORCD_RUNTIME_ENGINE_STATE_POOL_H_
#define ORCD_RUNTIME_ENGINE_STATE_POOL_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/engine/prefix_hash.h"

namespace orcd {

class StatePool;

// A hold on a cell, which may be empty. Move-only; the destructor releases the cell.
class StateCell {
 public:
  StateCell() = default;
  StateCell(StateCell&& other) noexcept;
  StateCell& operator=(StateCell&& other) noexcept;
  ~StateCell();

  bool held() const { return pool_ != nullptr; }
  // As StepSequence::restore_state: -1 if no cell is held.
  int32_t id() const { return id_; }
  void Release();

 private:
  friend class StatePool;
  StateCell(StatePool* pool, int32_t id) : pool_(pool), id_(id) {}

  StatePool* pool_ = nullptr;
  int32_t id_ = -1;
};

// Owns the ids of `num_cells` cells; the backend owns their memory. A cell with a name holds the
// state after the prefix that the name stands for: it is the name of the KV block that ends there.
// Each cell counts its holds: sequences hold cells that they are about to begin from, and steps in
// flight those that they read or write. A named cell that nobody holds stays findable until another
// state needs it; the one that was released first is reclaimed first. Used by one thread (the
// engine's). Must outlive its holds.
class StatePool {
 public:
  explicit StatePool(int num_cells);
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  int total() const { return static_cast<int>(cells_.size()); }
  // Numbers of cells that are held; of those whose state can be found; and of these the ones that
  // nobody holds.
  int held() const { return held_; }
  int named() const { return static_cast<int>(by_name_.size()); }
  int cached() const { return cached_; }

  bool Contains(const BlockHash& name) const { return by_name_.contains(name); }
  // Holds the cell of that name; an empty hold if there is none.
  StateCell Find(const BlockHash& name);
  // Holds a cell whose contents are no longer needed, which loses its name; an empty hold if all
  // cells are held.
  StateCell Take();
  // Records that a held cell without a name has the state after this prefix. From now on nothing
  // else may be written to it. False if another cell has the name, which keeps it.
  bool Name(const StateCell& cell, const BlockHash& name);

 private:
  friend class StateCell;
  struct Cell {
    int holds = 0;
    bool named = false;
    BlockHash name;
    // Neighbours in the list of cells that nobody holds; -1 if none.
    int32_t older = -1;
    int32_t newer = -1;
  };

  StateCell Hold(int32_t id);
  void Release(int32_t id);
  void Unlink(int32_t id);
  void LinkNewest(int32_t id);
  void LinkOldest(int32_t id);

  std::vector<Cell> cells_;
  // Ends of the list of cells that nobody holds, in the order in which they are reclaimed; -1 if
  // the list is empty. Those without a name come first.
  int32_t oldest_ = -1;
  int32_t newest_ = -1;
  int held_ = 0;
  int cached_ = 0;
  absl::flat_hash_map<BlockHash, int32_t> by_name_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_STATE_POOL_H_
