// The rule by which a model treats a QKV product, with random weights and angles, for tests.
#ifndef ORCD_CUDA_KERNELS_COMMON_QKV_RULE_FOR_TEST_H_
#define ORCD_CUDA_KERNELS_COMMON_QKV_RULE_FOR_TEST_H_

#include <cstddef>
#include <ostream>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "cuda/kernels/common/step.h"
#include "runtime/cpu/matrix_for_test.h"

namespace orcd::cuda {

struct QkvRule {
  enum Norm { kNoNorm, kHeadNorm, kProjectionNorm };
  static constexpr int kWholeHead = -1;

  bool bias = true;
  RopePairs pairs = RopePairs::kHalves;
  int rope_dims = kWholeHead;
  Norm norm = kNoNorm;
  float temperature = 0;
};

inline void PrintTo(const QkvRule& rule, std::ostream* out) {
  *out << (rule.bias ? "bias, " : "") << "RoPE of " << rule.rope_dims << " dimensions, "
       << (rule.pairs == RopePairs::kHalves ? "halves" : "neighbours") << ", norm " << rule.norm
       << ", temperature " << rule.temperature;
}

// The tables of a rule, on the host and in VRAM.
class QkvTables {
 public:
  // `shape` has the heads; `positions`: those that have angles.
  QkvTables(const QkvProduct& shape, const QkvRule& rule, int positions) : rule_(rule) {
    using cpu::RandomFloats;
    const int q_size = shape.heads * shape.head_dim;
    const int kv_size = shape.kv_heads * shape.head_dim;
    rope_dims = rule.rope_dims == QkvRule::kWholeHead ? shape.head_dim : rule.rope_dims;
    bias = RandomFloats(q_size + 2 * kv_size, 9, 3.0f);
    angles = RandomFloats(size_t{1} * positions * rope_dims, 10, 0.5f);
    const bool projection = rule.norm == QkvRule::kProjectionNorm;
    q_norm = RandomFloats(projection ? q_size : shape.head_dim, 11);
    k_norm = RandomFloats(projection ? kv_size : shape.head_dim, 12);
    device_bias_ = DeviceArray<float>(bias);
    device_angles_ = DeviceArray<float>(angles);
    device_q_norm_ = DeviceArray<float>(q_norm);
    device_k_norm_ = DeviceArray<float>(k_norm);
  }

  // Sets all of `qkv` but the partials, the shape and query_split.
  void Apply(QkvProduct& qkv) const {
    qkv.bias = rule_.bias ? device_bias_.data() : nullptr;
    qkv.angles = rope_dims == 0 ? nullptr : device_angles_.data();
    qkv.rope_dims = rope_dims;
    qkv.rope_pairs = rule_.pairs;
    if (rule_.norm != QkvRule::kNoNorm) {
      qkv.q_norm = device_q_norm_.data();
      qkv.k_norm = device_k_norm_.data();
      qkv.norm_eps = kNormEps;
      qkv.norm_projection = rule_.norm == QkvRule::kProjectionNorm;
    }
    qkv.temperature = rule_.temperature;
    qkv.temperature_length = kTemperatureLength;
  }

  static constexpr float kNormEps = 1e-5f;
  static constexpr int kTemperatureLength = 16;
  int rope_dims;
  std::vector<float> bias;
  std::vector<float> angles;
  std::vector<float> q_norm;
  std::vector<float> k_norm;

 private:
  QkvRule rule_;
  DeviceArray<float> device_bias_;
  DeviceArray<float> device_angles_;
  DeviceArray<float> device_q_norm_;
  DeviceArray<float> device_k_norm_;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_QKV_RULE_FOR_TEST_H_
