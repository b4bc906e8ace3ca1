#include "runtime/cpu/ops.h"

#include <cmath>
#include <cstring>
#include <utility>

namespace orcd::cpu {
namespace {

// The sum of x - centre squared.
double SumOfSquares(std::span<const float> x, double centre) {
  // Several sums, so that the additions do not wait for each other.
  constexpr size_t kSums = 8;
  double sums[kSums] = {};
  const auto square = [&](size_t i) {
    const double distance = double{x[i]} - centre;
    return distance * distance;
  };
  size_t i = 0;
  for (; i + kSums <= x.size(); i += kSums) {
    for (size_t j = 0; j < kSums; ++j) sums[j] += square(i + j);
  }
  for (; i < x.size(); ++i) sums[i % kSums] += square(i);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

// The mean of x - centre squared.
double MeanSquare(std::span<const float> x, double centre) {
  return SumOfSquares(x, centre) / static_cast<double>(x.size());
}

}  // namespace

void RmsNorm(std::span<const float> x, std::span<const float> weight, float eps,
             std::span<float> y) {
  const float scale = static_cast<float>(1.0 / std::sqrt(MeanSquare(x, 0) + double{eps}));
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * weight[i];
}

void LayerNorm(std::span<const float> x, std::span<const float> weight, float eps,
               std::span<float> y) {
  double mean = 0;
  for (const float value : x) mean += double{value};
  mean /= static_cast<double>(x.size());
  const double scale = 1.0 / std::sqrt(MeanSquare(x, mean) + double{eps});
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = static_cast<float>((double{x[i]} - mean) * scale) * weight[i];
  }
}

void RmsNormParts(std::span<const float> weight, float eps, std::span<float> x) {
  for (size_t start = 0; start < x.size(); start += weight.size()) {
    const auto part = x.subspan(start, weight.size());
    RmsNorm(part, weight, eps, part);
  }
}

void NormalizeParts(int64_t size, float eps, float scale, std::span<float> x) {
  for (size_t start = 0; start < x.size(); start += size) {
    const auto part = x.subspan(start, size);
    Scale(static_cast<float>(double{scale} / std::sqrt(SumOfSquares(part, 0) + double{eps})), part);
  }
}

void AddScaled(std::span<const float> y, float scale, std::span<float> x) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += scale * y[i];
}

void Scale(float scale, std::span<float> x) {
  for (float& value : x) value *= scale;
}

void SoftCap(float cap, std::span<float> x) {
  for (float& value : x)
    value = static_cast<float>(double{cap} * std::tanh(double{value} / double{cap}));
}

float QueryScale(const LayerSpec& layer, int64_t position) {
  if (!(layer.temperature > 0)) return 1;
  const int64_t periods = position / layer.temperature_length;
  return static_cast<float>(1 +
                            double{layer.temperature} * std::log(static_cast<double>(periods + 1)));
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

Rope::Rope(const RopeSpec& spec, std::vector<double> frequencies)
    : kind_(spec.kind), magnitude_(spec.magnitude), frequencies_(std::move(frequencies)) {}

void Rope::Angles(int64_t position, std::span<float> cos_sin) const {
  const size_t half = frequencies_.size();
  for (size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    cos_sin[i] = static_cast<float>(std::cos(angle) * magnitude_);
    cos_sin[half + i] = static_cast<float>(std::sin(angle) * magnitude_);
  }
}

void Rope::Rotate(std::span<const float> cos_sin, int head_dim, std::span<float> heads) const {
  const size_t half = frequencies_.size();
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
    if (kind_ == RopeKind::kNorm) {
      for (size_t i = 0; i < half; ++i) rotate(i, head[2 * i], head[2 * i + 1]);
    } else {
      for (size_t i = 0; i < half; ++i) rotate(i, head[i], head[i + half]);
    }
  }
}

}  // namespace orcd::cpu
