#include "testing/random_model/random_weights.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/gguf/dequantize.h"

namespace orcd {
namespace {

uint64_t SplitMix64(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// FNV-1a.
uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

void PutHalf(std::byte* at, float value) {
  const uint16_t half = FloatToHalf(value);
  std::memcpy(at, &half, sizeof(half));
}

// The standard deviation of uniform integers of `bits` bits.
float SpreadOfBits(int bits) {
  const float count = static_cast<float>(1 << bits);
  return std::sqrt((count * count - 1) / 12);
}

// Each function below gets blocks of random bytes, so that quants are uniform. It writes scales
// that centre the weights and give them the standard deviation.

// For types with only a signed scale d. Quants of n bits are off centre by half a step; a random
// sign of the scale balances this over many blocks.
void ScaleSigned(int bits, float sigma, Random& random, std::byte* d) {
  const float scale = sigma / SpreadOfBits(bits) * random.Uniform(0.75f, 1.25f);
  PutHalf(d, random.Next() >> 63 != 0 ? -scale : scale);
}

// For types with a scale d and a minimum m that is added.
void ScaleAndMin(int bits, float sigma, Random& random, std::byte* d, std::byte* m) {
  const float scale = sigma / SpreadOfBits(bits) * random.Uniform(0.75f, 1.25f);
  PutHalf(d, scale);
  PutHalf(m, -scale * static_cast<float>((1 << bits) - 1) / 2);
}

// Writes d for types whose blocks have scales of their own, with mean `mean_scale`; and dmin,
// unless null, for minima as large as the scales.
void SuperScale(int bits, float mean_scale, float sigma, std::byte* d, std::byte* dmin) {
  const float scale = sigma / SpreadOfBits(bits) / mean_scale;
  PutHalf(d, scale);
  if (dmin != nullptr) PutHalf(dmin, scale * static_cast<float>((1 << bits) - 1) / 2);
}

void FinishQ2_K(float sigma, std::byte* block) {
  for (int k = 0; k < 16; ++k) {
    // Scales are 8 to 15, and each minimum equals its scale.
    const uint32_t scale = (static_cast<uint32_t>(block[k]) & 7) + 8;
    block[k] = static_cast<std::byte>(scale | scale << 4);
  }
  SuperScale(2, 11.5f, sigma, block + 80, block + 82);
}

void FinishQ3_K(float sigma, std::byte* block) {
  std::byte* sc = block + 96;
  for (int k = 8; k < 12; ++k) {
    // The two high bits of each scale become 0 or 3, which gives scales of -32 to -17 and 16 to 31.
    const uint32_t bits = static_cast<uint32_t>(sc[k]) & 0x55;
    sc[k] = static_cast<std::byte>(bits | bits << 1);
  }
  SuperScale(3, 24, sigma, block + 108, nullptr);
}

// Writes the scales of Q4_K and Q5_K, 32 to 63; each minimum equals its scale.
void FinishScalesAndMins(std::byte* sc) {
  uint32_t scales[8];
  for (int j = 0; j < 8; ++j) scales[j] = (static_cast<uint32_t>(sc[j]) & 31) + 32;
  for (int j = 0; j < 4; ++j) {
    const uint32_t low = scales[j + 4] & 15;
    const uint32_t high = scales[j + 4] >> 4;
    sc[j] = static_cast<std::byte>(scales[j] | high << 6);
    sc[j + 4] = static_cast<std::byte>(scales[j] | high << 6);
    sc[j + 8] = static_cast<std::byte>(low | low << 4);
  }
}

void FinishQ6_K(float sigma, std::byte* block) {
  for (int k = 0; k < 16; ++k) {
    // Scales are 64 to 127 with either sign.
    const int random = static_cast<int>(block[192 + k]);
    const int scale = 64 + (random & 63);
    block[192 + k] = static_cast<std::byte>((random & 64) != 0 ? -scale : scale);
  }
  SuperScale(6, 95.5f, sigma, block + 208, nullptr);
}

void FinishBlock(TensorType type, float sigma, Random& random, std::byte* block) {
  switch (type) {
    case TensorType::kQ4_0:
      return ScaleSigned(4, sigma, random, block);
    case TensorType::kQ4_1:
      return ScaleAndMin(4, sigma, random, block, block + 2);
    case TensorType::kQ5_0:
      return ScaleSigned(5, sigma, random, block);
    case TensorType::kQ5_1:
      return ScaleAndMin(5, sigma, random, block, block + 2);
    case TensorType::kQ8_0:
      return ScaleSigned(8, sigma, random, block);
    case TensorType::kQ2_K:
      return FinishQ2_K(sigma, block);
    case TensorType::kQ3_K:
      return FinishQ3_K(sigma, block);
    case TensorType::kQ4_K:
      FinishScalesAndMins(block + 4);
      return SuperScale(4, 47.5f, sigma, block, block + 2);
    case TensorType::kQ5_K:
      FinishScalesAndMins(block + 4);
      return SuperScale(5, 47.5f, sigma, block, block + 2);
    case TensorType::kQ6_K:
      return FinishQ6_K(sigma, block);
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
      return;
  }
}

template <typename Convert>
void FillPlain(float sigma, Random& random, std::span<std::byte> row, Convert convert) {
  using Value = decltype(convert(0.0f));
  for (size_t at = 0; at < row.size(); at += sizeof(Value)) {
    const Value value = convert(sigma * random.Bell());
    std::memcpy(row.data() + at, &value, sizeof(value));
  }
}

}  // namespace

Random::Random(uint64_t seed, std::string_view name, uint64_t index) {
  uint64_t mix = seed;
  mix = SplitMix64(mix) ^ HashName(name);
  mix = SplitMix64(mix) ^ index;
  for (uint64_t& word : state_) word = SplitMix64(mix);
}

uint64_t Random::Next() {
  const uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
  const uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

void Random::Fill(std::span<std::byte> bytes) {
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    const uint64_t word = Next();
    std::memcpy(bytes.data() + at, &word, 8);
  }
  const uint64_t word = Next();
  std::memcpy(bytes.data() + at, &word, bytes.size() - at);
}

float Random::Uniform(float low, float high) {
  return low + (high - low) * static_cast<float>(Next() >> 40) * 0x1p-24f;
}

float Random::Bell() {
  // The sum of four uniform 16-bit numbers, whose variance is 4 (2^32 - 1) / 12.
  const uint64_t word = Next();
  const int64_t sum = static_cast<int64_t>((word & 0xffff) + ((word >> 16) & 0xffff) +
                                           ((word >> 32) & 0xffff) + (word >> 48));
  return static_cast<float>(sum - 2 * 65'535) * (1.0f / 37'837.0f);
}

void FillRandomWeights(TensorType type, float sigma, Random& random, std::span<std::byte> row) {
  switch (type) {
    case TensorType::kF32:
      return FillPlain(sigma, random, row, [](float value) { return value; });
    case TensorType::kF16:
      return FillPlain(sigma, random, row, FloatToHalf);
    case TensorType::kBF16:
      return FillPlain(sigma, random, row, [](float value) {
        return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      });
    default:
      break;
  }
  random.Fill(row);
  const size_t block_bytes = GetTensorTypeInfo(type).block_bytes;
  for (size_t at = 0; at < row.size(); at += block_bytes) {
    FinishBlock(type, sigma, random, row.data() + at);
  }
}

}  // namespace orcd
