#include "testing/random_model/block_factors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "runtime/gguf/blocks.h"
#include "runtime/gguf/dequantize.h"

namespace orcd {
namespace {

template <TensorType kType>
void Put(Block<kType>, int which, float value, std::byte* block) {
  const uint16_t half = FloatToHalf(value);
  std::memcpy(block + Block<kType>::kFloatsAt + 2 * which, &half, sizeof(half));
}

void Put(Block<TensorType::kF32>, int, float value, std::byte* block) {
  std::memcpy(block, &value, sizeof(value));
}

void Put(Block<TensorType::kBF16>, int, float value, std::byte* block) {
  const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  std::memcpy(block, &bits, sizeof(bits));
}

void Put(Block<TensorType::kIQ1_M>, int, float value, std::byte* block) {
  const uint32_t half = FloatToHalf(value);
  for (int k = 0; k < 4; ++k) {
    std::byte& top = block[49 + 2 * k];
    top = (top & std::byte{0x0f}) | static_cast<std::byte>((half >> (4 * k) & 15) << 4);
  }
}

void Put(Block<TensorType::kMXFP4>, int, float value, std::byte* block) {
  const int exponent = value == 0 ? 0 : 128 + std::ilogb(value);
  block[0] = static_cast<std::byte>(std::clamp(exponent, 0, 252));
}

void Put(Block<TensorType::kNVFP4>, int, float value, std::byte* block) {
  const int exponent = value == 0 ? 1 : std::clamp(8 + std::ilogb(value), 1, 14);
  for (int k = 0; k < 4; ++k) {
    block[k] = (block[k] & std::byte{7}) | static_cast<std::byte>(exponent << 3);
  }
}

}  // namespace

int FactorCount(TensorType type) {
  int count = 1;
  VisitType(type, [&]<typename B>(B) { count = B::kHasMin ? 2 : 1; });
  return count;
}

void PutFactor(TensorType type, int which, float value, std::byte* block) {
  VisitType(type, [&](auto definition) { Put(definition, which, value, block); });
}

}  // namespace orcd
