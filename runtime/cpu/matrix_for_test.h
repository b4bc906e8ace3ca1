// Matrices of any tensor type, for tests.
#ifndef ORCD_RUNTIME_CPU_MATRIX_FOR_TEST_H_
#define ORCD_RUNTIME_CPU_MATRIX_FOR_TEST_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "runtime/gguf/block_formats.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/model/weights.h"
#include "testing/random_model/block_factors.h"

namespace orcd::cpu {

// Owns a matrix whose blocks are random bits and whose factors are random numbers in (-1, 1).
class TestMatrix {
 public:
  // `scale` multiplies the blocks' factors (PutFactor), which are up to 1 without it.
  TestMatrix(TensorType type, int64_t rows, int64_t cols, uint32_t seed, float scale = 1) {
    const TensorTypeInfo& info = GetTensorTypeInfo(type);
    const int64_t row_bytes = cols / info.block_weights * info.block_bytes;
    bytes_.resize(rows * row_bytes);
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> number(-1, 1);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(rng());
    for (size_t block = 0; block < bytes_.size(); block += info.block_bytes) {
      std::byte* at = bytes_.data() + block;
      for (int which = 0; which < FactorCount(type); ++which) {
        PutFactor(type, which, scale * number(rng), at);
      }
    }
    matrix_ = {type, rows, cols, bytes_.data(), row_bytes};
  }

  const Matrix& matrix() const { return matrix_; }

  std::vector<float> Dequantized() const {
    std::vector<float> values(matrix_.rows * matrix_.cols);
    for (int64_t r = 0; r < matrix_.rows; ++r) {
      Dequantize(matrix_.type, matrix_.row(r), matrix_.cols, values.data() + r * matrix_.cols);
    }
    return values;
  }

 private:
  std::vector<std::byte> bytes_;
  Matrix matrix_;
};

inline std::vector<float> RandomFloats(size_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(rng);
  return values;
}

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_MATRIX_FOR_TEST_H_
