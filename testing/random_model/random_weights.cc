#include "testing/random_model/random_weights.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/gguf/blocks.h"
#include "runtime/gguf/dequantize.h"
#include "testing/random_model/block_factors.h"

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

// Mean and variance of the levels of uniform quants.
struct Spread {
  double mean = 0;
  double variance = 0;
};
template <typename B>
constexpr Spread SpreadOf() {
  constexpr int kQuants = 1 << B::kBits;
  Spread spread;
  for (int q = 0; q < kQuants; ++q) spread.mean += static_cast<double>(B::Level(q)) / kQuants;
  for (int q = 0; q < kQuants; ++q) {
    const double level = B::Level(q) - spread.mean;
    spread.variance += level * level / kQuants;
  }
  return spread;
}

// Each of these makes the random scales of a block large, with every minimum equal to its scale,
// and returns the mean of their magnitudes.
float MakeScalesLarge(Block<TensorType::kQ2_K>, std::byte* block) {
  for (int k = 0; k < 16; ++k) {
    // 8 to 15.
    const uint32_t scale = (static_cast<uint32_t>(block[k]) & 7) + 8;
    block[k] = static_cast<std::byte>(scale | scale << 4);
  }
  return 11.5f;
}

float MakeScalesLarge(Block<TensorType::kQ3_K>, std::byte* block) {
  std::byte* sc = block + 96;
  for (int k = 8; k < 12; ++k) {
    // The two high bits of each scale become 0 or 3, which gives scales of -32 to -17 and 16 to 31.
    const uint32_t bits = static_cast<uint32_t>(sc[k]) & 0x55;
    sc[k] = static_cast<std::byte>(bits | bits << 1);
  }
  return 24;
}

template <int kQuantBits>
float MakeScalesLarge(SixBitScales<kQuantBits>, std::byte* block) {
  std::byte* sc = block + 4;
  uint32_t scales[8];  // 32 to 63
  for (int j = 0; j < 8; ++j) scales[j] = (static_cast<uint32_t>(sc[j]) & 31) + 32;
  for (int j = 0; j < 4; ++j) {
    const uint32_t low = scales[j + 4] & 15;
    const uint32_t high = scales[j + 4] >> 4;
    sc[j] = static_cast<std::byte>(scales[j] | high << 6);
    sc[j + 4] = static_cast<std::byte>(scales[j] | high << 6);
    sc[j + 8] = static_cast<std::byte>(low | low << 4);
  }
  return 47.5f;
}

float MakeScalesLarge(Block<TensorType::kQ6_K>, std::byte* block) {
  for (int k = 0; k < 16; ++k) {
    // 64 to 127, with either sign.
    const int random = static_cast<int>(block[192 + k]);
    const int scale = 64 + (random & 63);
    block[192 + k] = static_cast<std::byte>((random & 64) != 0 ? -scale : scale);
  }
  return 95.5f;
}

// Types whose quants are uniform in a block of random bytes.
template <typename B>
concept HasUniformQuants = requires(std::byte* block) { MakeScalesLarge(B(), block); } ||
                           (B::kWeights == 32 && B::kHalves > 0);

// Gets a block of random bytes. Writes scales that centre the weights and give them the standard
// deviation.
template <TensorType kType>
  requires HasUniformQuants<Block<kType>>
void FinishBlock(Block<kType> definition, float sigma, Random& random, std::byte* block) {
  using B = Block<kType>;
  constexpr Spread kSpread = SpreadOf<B>();
  float scale = sigma / std::sqrt(static_cast<float>(kSpread.variance));
  if constexpr (B::kParts > 1) {
    scale /= MakeScalesLarge(definition, block);
  } else {
    scale *= random.Uniform(0.75f, 1.25f);
    // Without a minimum, levels may be off centre; a random sign balances this over many blocks.
    if (!B::kHasMin && random.Next() >> 63 != 0) scale = -scale;
  }
  PutFactor(kType, 0, scale, block);
  // A K-quant's minimum is subtracted.
  const float mean = static_cast<float>(kSpread.mean);
  if (B::kHasMin) PutFactor(kType, 1, scale * (B::kParts > 1 ? mean : -mean), block);
}

template <TensorType kType>
void RemoveUnusedQuants(Block<kType>, std::byte*) {}

// ggml writes no quant 3; 1, which is 0, takes its place.
void RemoveUnusedQuants(Block<TensorType::kTQ2_0>, std::byte* block) {
  for (int i = 0; i < 64; ++i) {
    const auto bits = static_cast<uint32_t>(block[i]);
    block[i] = static_cast<std::byte>(bits & ~((bits & bits >> 1 & 0x55) << 1));
  }
}

// The standard deviation of weights of random blocks with d = 1.
template <TensorType kType>
float SigmaOfRandomBlocks(Block<kType> definition) {
  constexpr int kBlocks = 1000;
  Random random(1, definition.kName, 0);
  std::byte block[definition.kBytes];
  float weights[definition.kWeights];
  double squares = 0;
  for (int i = 0; i < kBlocks; ++i) {
    random.Fill(block);
    RemoveUnusedQuants(definition, block);
    PutFactor(kType, 0, 1, block);
    Dequantize(kType, block, definition.kWeights, weights);
    for (const float weight : weights) squares += double{weight} * weight;
  }
  return static_cast<float>(std::sqrt(squares / (kBlocks * definition.kWeights)));
}

// As above, for types whose quants and scales have distributions of their own.
template <TensorType kType>
void FinishBlock(Block<kType> definition, float sigma, Random& random, std::byte* block) {
  static const float kSigma = SigmaOfRandomBlocks(definition);
  RemoveUnusedQuants(definition, block);
  const float scale = sigma / kSigma * random.Uniform(0.75f, 1.25f);
  PutFactor(kType, 0, random.Next() >> 63 != 0 ? -scale : scale, block);
}

// One of the two neighbouring bytes whose values have `scale` between them, such that the square of
// the value is right on average. `value` rises with the byte, from 0 to `last`.
template <typename Value>
std::byte RoundedAtRandom(float scale, int last, Random& random, const Value& value) {
  int byte = 0;
  for (int step = 128; step > 0; step /= 2) {
    if (byte + step < last && value(byte + step) <= scale) byte += step;
  }
  const float lower = value(byte);
  const float upper = value(byte + 1);
  const float share = (scale * scale - lower * lower) / (upper * upper - lower * lower);
  return static_cast<std::byte>(byte + (random.Uniform(0, 1) < share ? 1 : 0));
}

// The standard deviation of the levels of FP4.
float SigmaOfFp4() {
  static const float kSigma = std::sqrt(static_cast<float>(SpreadOf<Fp4Block>().variance));
  return kSigma;
}

// Scales of FP4 are too coarse to be rounded to the nearest.
void FinishBlock(Block<TensorType::kMXFP4> definition, float sigma, Random& random,
                 std::byte* block) {
  block[0] = RoundedAtRandom(sigma / SigmaOfFp4(), 252, random, [&](int e) {
    const auto byte = static_cast<uint8_t>(e);
    return std::bit_cast<float>(definition.SingleBits(&byte));
  });
}

void FinishBlock(Block<TensorType::kNVFP4> definition, float sigma, Random& random,
                 std::byte* block) {
  for (int part = 0; part < definition.kParts; ++part) {
    block[part] = RoundedAtRandom(sigma / SigmaOfFp4(), 0x7e, random, [&](int bits) {
      const auto byte = static_cast<uint8_t>(bits);
      return static_cast<float>(definition.Scale(&byte, 0)) * definition.kUnit;
    });
  }
}

template <typename Convert>
void FillPlain(float sigma, Random& random, std::span<std::byte> row, Convert convert) {
  using Value = decltype(convert(0.0f));
  for (size_t at = 0; at < row.size(); at += sizeof(Value)) {
    const Value value = convert(sigma * random.Normal());
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

float Random::Normal() {
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
  VisitType(type, [&](auto definition) {
    if constexpr (definition.kWeights > 1) {
      for (size_t at = 0; at < row.size(); at += definition.kBytes) {
        FinishBlock(definition, sigma, random, row.data() + at);
      }
    }
  });
}

}  // namespace orcd
