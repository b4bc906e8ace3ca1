// The recurrent states of a backend's slots, and those that its cells keep.
#ifndef ORCD_RUNTIME_CPU_RECURRENT_STATES_H_
#define ORCD_RUNTIME_CPU_RECURRENT_STATES_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "runtime/cpu/mapped_memory.h"
#include "runtime/cpu/thread_pool.h"

namespace orcd::cpu {

// The state after the first `tokens` tokens of a sequence's part of a step goes to `state`.
struct SavedState {
  int64_t tokens = 0;
  std::span<float> state;
};

// Owns the memory; a state is `floats` of them. A state that was never written holds zeros.
class RecurrentStates {
 public:
  static absl::StatusOr<RecurrentStates> Create(int64_t floats, int slots, int cells);

  int cells() const { return cells_; }
  uint64_t bytes() const { return memory_.bytes().size(); }
  uint64_t cell_bytes() const { return floats_ * sizeof(float); }

  std::span<float> slot(int32_t index) const { return State(index); }
  std::span<float> cell(int32_t index) const { return State(slots_ + index); }

 private:
  std::span<float> State(int64_t index) const;

  int64_t floats_ = 0;
  int64_t slots_ = 0;
  int cells_ = 0;
  MappedMemory memory_;
};

// Copies a state, on all threads.
void CopyState(ThreadPool& pool, std::span<const float> from, std::span<float> to);

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_RECURRENT_STATES_H_
