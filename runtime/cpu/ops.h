// The small operations of a layer, each on one row. No state, any thread.
#ifndef ORCD_RUNTIME_CPU_OPS_H_
#define ORCD_RUNTIME_CPU_OPS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/spec.h"

namespace orcd::cpu {

// y = x * weight / sqrt(mean(x^2) + eps), the mean in F64; all [n], and y may be x. Zhang and
// Sennrich, "Root mean square layer normalization", 2019.
void RmsNorm(std::span<const float> x, std::span<const float> weight, float eps,
             std::span<float> y);

// y = (x - mean(x)) * weight / sqrt(variance(x) + eps), mean and variance in F64; all [n], and y
// may be x. Ba, Kiros and Hinton, "Layer normalization", 2016, without a bias.
void LayerNorm(std::span<const float> x, std::span<const float> weight, float eps,
               std::span<float> y);

// RmsNorm of each part of `x` that is as long as `weight`, in place.
void RmsNormParts(std::span<const float> weight, float eps, std::span<float> x);

// Multiplies each part of `x` of `size` by scale / sqrt(sum(x^2) + eps), the sum in F64, in place.
void NormalizeParts(int64_t size, float eps, float scale, std::span<float> x);

// x += scale * y.
void AddScaled(std::span<const float> y, float scale, std::span<float> x);

// x *= scale.
void Scale(float scale, std::span<float> x);

// x = cap * tanh(x / cap), the tanh in F64. `cap` is above 0.
void SoftCap(float cap, std::span<float> x);

// The factor of a query at `position`; see LayerSpec::temperature.
float QueryScale(const LayerSpec& layer, int64_t position);

// True if no value is a NaN or an infinity.
bool AllFinite(std::span<const float> values);

// Rotary position embedding, with angles computed in F64. Su et al., "RoFormer", 2021.
class Rope {
 public:
  // `frequencies` are those of rope.h, [spec.dims / 2]; empty if there is no RoPE.
  Rope(const RopeSpec& spec, std::vector<double> frequencies);

  // Cosines [dims / 2], then sines [dims / 2], times RopeSpec::magnitude.
  void Angles(int64_t position, std::span<float> cos_sin) const;

  // Rotates the first `dims` dimensions of each of the heads in `heads`, [n, head_dim].
  void Rotate(std::span<const float> cos_sin, int head_dim, std::span<float> heads) const;

 private:
  RopeKind kind_;
  double magnitude_;
  std::vector<double> frequencies_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_OPS_H_
