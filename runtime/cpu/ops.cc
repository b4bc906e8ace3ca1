#include "runtime/cpu/ops.h"

#include <cmath>
#include <cstring>

namespace orcd::cpu {

void RmsNorm(std::span<const float> x, std::span<const float> weight, float eps,
             std::span<float> y) {
  // Several sums, so that the additions do not wait for each other.
  constexpr size_t kSums = 8;
  double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= x.size(); i += kSums) {
    for (size_t j = 0; j < kSums; ++j) sums[j] += double{x[i + j]} * double{x[i + j]};
  }
  for (; i < x.size(); ++i) sums[i % kSums] += double{x[i]} * double{x[i]};
  double total = 0;
  for (double sum : sums) total += sum;
  const double mean = total / static_cast<double>(x.size());
  const float scale = static_cast<float>(1.0 / std::sqrt(mean + double{eps}));
  for (i = 0; i < x.size(); ++i) y[i] = x[i] * scale * weight[i];
}

void Add(std::span<const float> y, std::span<float> x) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

bool AllFinite(std::span<const float> values) {
  // The exponent of a NaN or an infinity is all ones.
  constexpr uint32_t kExponent = 0x7F800000;
  uint32_t any = 0;
  for (float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    any |= static_cast<uint32_t>((bits & kExponent) == kExponent);
  }
  return any == 0;
}

Rope::Rope(int head_dim, const RopeSpec& spec, std::span<const float> factors)
    : kind_(spec.kind), frequencies_(head_dim / 2) {
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    frequencies_[i] = std::pow(double{spec.base}, -2.0 * static_cast<double>(i) / head_dim);
    if (!factors.empty()) frequencies_[i] /= double{factors[i]};
  }
}

void Rope::Angles(int64_t position, std::span<float> cos_sin) const {
  const size_t half = frequencies_.size();
  for (size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    cos_sin[i] = static_cast<float>(std::cos(angle));
    cos_sin[half + i] = static_cast<float>(std::sin(angle));
  }
}

void Rope::Rotate(std::span<const float> cos_sin, std::span<float> heads) const {
  const size_t head_dim = cos_sin.size();
  const size_t half = head_dim / 2;
  const float* cos = cos_sin.data();
  const float* sin = cos + half;
  const auto rotate = [&](size_t i, float& first, float& second) {
    const float a = first;
    const float b = second;
    first = a * cos[i] - b * sin[i];
    second = a * sin[i] + b * cos[i];
  };
  for (size_t start = 0; start < heads.size(); start += head_dim) {
    float* head = heads.data() + start;
    // Two loops, each with a stride that the compiler knows.
    if (kind_ == RopeKind::kNeox) {
      for (size_t i = 0; i < half; ++i) rotate(i, head[i], head[i + half]);
    } else {
      for (size_t i = 0; i < half; ++i) rotate(i, head[2 * i], head[2 * i + 1]);
    }
  }
}

}  // namespace orcd::cpu
