#include "runtime/model/non_finite.h"

#include <algorithm>
#include <cstring>

namespace orcd {
namespace {

// A number is finite unless every bit of its exponent is set. Groups of this size are tested
// without a branch, so that plain types can be tested with vector instructions.
constexpr int64_t kGroup = 256;

// Index of the first block of `kStride` bytes with a non-finite `Word` at one of `kOffsets`; -1 if
// none.
template <typename Word, Word kExponent, int64_t kStride, int64_t... kOffsets>
int64_t Find(const std::byte* blocks, int64_t count) {
  const auto is_bad = [](const std::byte* block) {
    const auto bad_at = [block](int64_t offset) {
      Word word;
      std::memcpy(&word, block + offset, sizeof(word));
      return static_cast<unsigned>((word & kExponent) == kExponent);
    };
    return (bad_at(kOffsets) | ...) != 0;
  };
  for (int64_t begin = 0; begin < count; begin += kGroup) {
    const int64_t end = std::min(begin + kGroup, count);
    bool bad = false;
    for (int64_t i = begin; i < end; ++i) bad |= is_bad(blocks + i * kStride);
    if (!bad) continue;
    int64_t i = begin;
    while (!is_bad(blocks + i * kStride)) ++i;
    return i;
  }
  return -1;
}

// For blocks of kStride bytes with F16 scales at kOffsets.
template <int64_t kStride, int64_t... kOffsets>
constexpr auto kFindInScales = Find<uint16_t, 0x7c00, kStride, kOffsets...>;

}  // namespace

int64_t FindNonFinite(TensorType type, const std::byte* blocks, int64_t count) {
  switch (type) {
    case TensorType::kF32:
      return Find<uint32_t, 0x7f800000, 4, 0>(blocks, count);
    case TensorType::kF16:
      return Find<uint16_t, 0x7c00, 2, 0>(blocks, count);
    case TensorType::kBF16:
      return Find<uint16_t, 0x7f80, 2, 0>(blocks, count);
    case TensorType::kQ4_0:
      return kFindInScales<18, 0>(blocks, count);
    case TensorType::kQ4_1:
      return kFindInScales<20, 0, 2>(blocks, count);
    case TensorType::kQ5_0:
      return kFindInScales<22, 0>(blocks, count);
    case TensorType::kQ5_1:
      return kFindInScales<24, 0, 2>(blocks, count);
    case TensorType::kQ8_0:
      return kFindInScales<34, 0>(blocks, count);
    case TensorType::kQ2_K:
      return kFindInScales<84, 80, 82>(blocks, count);
    case TensorType::kQ3_K:
      return kFindInScales<110, 108>(blocks, count);
    case TensorType::kQ4_K:
      return kFindInScales<144, 0, 2>(blocks, count);
    case TensorType::kQ5_K:
      return kFindInScales<176, 0, 2>(blocks, count);
    case TensorType::kQ6_K:
      return kFindInScales<210, 208>(blocks, count);
  }
  return -1;
}

}  // namespace orcd
