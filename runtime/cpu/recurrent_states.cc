#include "runtime/cpu/recurrent_states.h"

#include <algorithm>
#include <cstddef>

#include "runtime/base/error.h"

namespace orcd::cpu {

absl::StatusOr<RecurrentStates> RecurrentStates::Create(int64_t floats, int slots, int cells) {
  RecurrentStates states;
  states.floats_ = floats;
  states.slots_ = slots;
  states.cells_ = cells;
  if (floats == 0) return states;
  const uint64_t count = static_cast<uint64_t>(slots) + static_cast<uint64_t>(cells);
  ORCD_ASSIGN_OR_RETURN(states.memory_,
                        MappedMemory::Create(count * states.cell_bytes(), "recurrent states"));
  return states;
}

std::span<float> RecurrentStates::State(int64_t index) const {
  if (floats_ == 0) return {};
  return {reinterpret_cast<float*>(memory_.bytes().data()) + index * floats_,
          static_cast<size_t>(floats_)};
}

void CopyState(ThreadPool& pool, std::span<const float> from, std::span<float> to) {
  constexpr size_t kPart = 1 << 16;
  const size_t parts = (from.size() + kPart - 1) / kPart;
  pool.ParallelFor(static_cast<int64_t>(parts), [&](int64_t part, int) {
    const size_t begin = static_cast<size_t>(part) * kPart;
    std::copy_n(from.begin() + begin, std::min(kPart, from.size() - begin), to.begin() + begin);
  });
}

}  // namespace orcd::cpu
