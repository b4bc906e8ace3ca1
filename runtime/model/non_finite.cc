#include "runtime/model/non_finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "runtime/gguf/blocks.h"

namespace orcd {
namespace {

// A number is finite unless every bit of its exponent is set. Groups of this size are tested
// without a branch, so that plain types can be tested with vector instructions.
constexpr int64_t kGroup = 256;

// Index of the first block of B with a number that is not finite; -1 if none.
template <typename B>
int64_t Find(const std::byte* blocks, int64_t count) {
  const auto is_bad = [](const std::byte* block) {
    if constexpr (B::kFloats == 0) {
      return !B::IsFinite(reinterpret_cast<const uint8_t*>(block));
    } else {
      unsigned bad = 0;
      for (int i = 0; i < B::kFloats; ++i) {
        typename B::Float word;
        std::memcpy(&word, block + B::kFloatsAt + i * sizeof(word), sizeof(word));
        bad |= static_cast<unsigned>((word & B::kExponent) == B::kExponent);
      }
      return bad != 0;
    }
  };
  for (int64_t begin = 0; begin < count; begin += kGroup) {
    const int64_t end = std::min(begin + kGroup, count);
    bool bad = false;
    for (int64_t i = begin; i < end; ++i) bad |= is_bad(blocks + i * B::kBytes);
    if (!bad) continue;
    int64_t i = begin;
    while (!is_bad(blocks + i * B::kBytes)) ++i;
    return i;
  }
  return -1;
}

}  // namespace

int64_t FindNonFinite(TensorType type, const std::byte* blocks, int64_t count) {
  int64_t found = -1;
  VisitType(type, [&]<typename B>(B) { found = Find<B>(blocks, count); });
  return found;
}

}  // namespace orcd
