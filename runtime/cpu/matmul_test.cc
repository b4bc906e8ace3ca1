#include "runtime/cpu/matmul.h"

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/cpu/matrix_for_test.h"
#include "testing/same_bits.h"

namespace orcd::cpu {
namespace {

std::vector<float> Multiply(const KernelTable& kernels, int threads, const Matrix& weights,
                            Vector bias, std::span<const float> x) {
  ThreadPool pool(threads);
  MatMul matmul(kernels, pool);
  const int64_t rows = static_cast<int64_t>(x.size()) / weights.cols;
  std::vector<float> y(rows * weights.rows, std::numeric_limits<float>::quiet_NaN());
  const Product product = {&weights, bias, x.data(), rows, y.data()};
  matmul.Run({&product, 1});
  return y;
}

class MatMulTest : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  // Compares with sums in double; the bound follows from F32 sums of `cols` products.
  void ExpectRight(TensorType type, int64_t rows, int64_t cols, int64_t x_rows) {
    const TestMatrix weights(type, rows, cols, 7);
    const std::vector<float> w = weights.Dequantized();
    const std::vector<float> x = RandomFloats(x_rows * cols, 11);
    const std::vector<float> bias = RandomFloats(rows, 13);
    const std::vector<float> y = Multiply(*GetParam(), 2, weights.matrix(), bias, x);
    for (int64_t i = 0; i < x_rows; ++i) {
      for (int64_t r = 0; r < rows; ++r) {
        double sum = bias[r];
        double magnitude = std::abs(bias[r]);
        for (int64_t c = 0; c < cols; ++c) {
          const double product = double{w[r * cols + c]} * double{x[i * cols + c]};
          sum += product;
          magnitude += std::abs(product);
        }
        ASSERT_NEAR(y[i * rows + r], sum, 1e-6 * magnitude)
            << GetTensorTypeInfo(type).name << " [" << rows << ", " << cols << "] x " << x_rows
            << " at row " << r << " of token " << i;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(All, MatMulTest,
                         ::testing::ValuesIn(SupportedKernels().begin(), SupportedKernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST_P(MatMulTest, EveryTypeAgreesWithDoublePrecision) {
  for (const TensorTypeInfo& type : AllTensorTypes()) {
    // 1280 columns are more than a panel, and not a whole number of panels.
    for (int64_t x_rows : {1, 3, 8}) ExpectRight(type.type, 37, 1280, x_rows);
  }
}

TEST_P(MatMulTest, OddShapes) {
  for (TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16}) {
    for (int64_t cols : {1, 15, 24, 1023, 1025}) {
      for (int64_t rows : {1, 3, 33}) ExpectRight(type, rows, cols, 5);
    }
  }
}

TEST_P(MatMulTest, ASumIsTheSameForAnyRowsBesideItAndAnyThreads) {
  for (const TensorTypeInfo& type : AllTensorTypes()) {
    constexpr int64_t kCols = 1280;
    constexpr int64_t kRows = 37;
    constexpr int64_t kTokens = 41;
    const TestMatrix weights(type.type, kRows, kCols, 17);
    const std::vector<float> x = RandomFloats(kTokens * kCols, 19);
    const std::vector<float> together = Multiply(*GetParam(), 1, weights.matrix(), {}, x);
    for (int threads : {2, 5}) {
      EXPECT_TRUE(SameBits(Multiply(*GetParam(), threads, weights.matrix(), {}, x), together));
    }
    for (int64_t size : {1, 2, 3, 4, 5, 6, 7, 16}) {
      for (int64_t first = 0; first + size <= kTokens; first += size) {
        const std::vector<float> part = Multiply(*GetParam(), 1, weights.matrix(), {},
                                                 std::span(x).subspan(first * kCols, size * kCols));
        ASSERT_TRUE(SameBits(part, std::span(together).subspan(first * kRows, size * kRows)))
            << type.name << ": " << size << " tokens from " << first;
      }
    }
  }
}

// The products of a layer's experts: each has activation rows of its own, and some have none.
TEST_P(MatMulTest, ProductsBesideOneAnother) {
  const TestMatrix a(TensorType::kQ5_0, 100, 64, 1);
  const TestMatrix b(TensorType::kQ8_0, 3, 64, 2);
  const TestMatrix c(TensorType::kF32, 33, 1100, 3);
  const TestMatrix d(TensorType::kQ8_0, 257, 64, 4);
  const std::vector<float> bias = RandomFloats(3, 5);
  const std::vector<float> x = RandomFloats(2 * 64, 6);
  const std::vector<float> x_of_c = RandomFloats(7 * 1100, 7);
  const std::vector<float> x_of_d = RandomFloats(64, 8);
  for (const int threads : {1, 3}) {
    std::vector<float> ya(200), yb(6), yc(7 * 33), yd(257);
    float none = 5;
    ThreadPool pool(threads);
    MatMul matmul(*GetParam(), pool);
    const Product products[] = {{&b.matrix(), {}, nullptr, 0, &none},
                                {&a.matrix(), {}, x.data(), 2, ya.data()},
                                {&b.matrix(), bias, x.data(), 2, yb.data()},
                                {&a.matrix(), {}, nullptr, 0, &none},
                                {&c.matrix(), {}, x_of_c.data(), 7, yc.data()},
                                {&d.matrix(), {}, x_of_d.data(), 1, yd.data()},
                                {&d.matrix(), {}, nullptr, 0, &none}};
    matmul.Run(products);
    EXPECT_TRUE(SameBits(ya, Multiply(*GetParam(), 1, a.matrix(), {}, x)));
    EXPECT_TRUE(SameBits(yb, Multiply(*GetParam(), 1, b.matrix(), bias, x)));
    EXPECT_TRUE(SameBits(yc, Multiply(*GetParam(), 1, c.matrix(), {}, x_of_c)));
    EXPECT_TRUE(SameBits(yd, Multiply(*GetParam(), 1, d.matrix(), {}, x_of_d)));
    EXPECT_EQ(none, 5);
  }
}

TEST_P(MatMulTest, NoProductsAndNoTokensWriteNothing) {
  const TestMatrix weights(TensorType::kF32, 4, 16, 1);
  float y = 5;
  ThreadPool pool(2);
  MatMul matmul(*GetParam(), pool);
  const Product product = {&weights.matrix(), {}, nullptr, 0, &y};
  matmul.Run({&product, 1});
  matmul.Run({});
  EXPECT_EQ(y, 5);
}

}  // namespace
}  // namespace orcd::cpu
