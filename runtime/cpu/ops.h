// The small operations of a layer, each on one row. No state, any thread.
#ifndef ORCD_RUNTIME_CPU_OPS_H_
#define ORCD_RUNTIME_CPU_OPS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/spec.h"

namespace orcd::cpu {

// y = x * weight / sqrt(mean(x^2) + eps), the mean in F64; all [n]. Zhang and Sennrich, "Root mean
// square layer normalization", 2019.
void RmsNorm(std::span<const float> x, std::span<const float> weight, float eps,
             std::span<float> y);

// x += y.
void Add(std::span<const float> y, std::span<float> x);

// True if no value is a NaN or an infinity.
bool AllFinite(std::span<const float> values);

// Rotary position embedding, with angles computed in F64. Su et al., "RoFormer", 2021.
class Rope {
 public:
  // `factors`, [head_dim / 2], divide the angles; empty: they are 1.
  Rope(int head_dim, const RopeSpec& spec, std::span<const float> factors);

  // Cosines [head_dim / 2], then sines [head_dim / 2].
  void Angles(int64_t position, std::span<float> cos_sin) const;

  // Rotates each of the heads in `heads`, [n, head_dim].
  void Rotate(std::span<const float> cos_sin, std::span<float> heads) const;

 private:
  RopeKind kind_;
  std::vector<double> frequencies_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_OPS_H_
