// Tests of products: correct, and bit-equal however many tokens share a launch.
#include "cuda/kernels/common/matmul.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "cuda/kernels/common/repack.h"
#include "cuda/kernels/common/step.h"
#include "cuda/weight_exponent.h"
#include "runtime/cpu/matrix_for_test.h"
#include "runtime/gguf/block_formats.h"

namespace orcd::cuda {
namespace {

using cpu::RandomFloats;
using cpu::TestMatrix;

// Numbers like activations, as F16; every run of them is equally random.
const std::vector<uint16_t>& RandomHalves() {
  static const std::vector<uint16_t> halves = [] {
    std::vector<uint16_t> values;
    // The list's length is prime, so that rows of inputs are not alike.
    for (const float value : RandomFloats(1'048'573, 3)) values.push_back(FloatToHalf(value));
    return values;
  }();
  return halves;
}
// Rows [first_token, first_token + tokens) of the inputs, of `cols` columns.
std::vector<uint16_t> InputRows(int first_token, int tokens, int cols) {
  const std::vector<uint16_t>& pool = RandomHalves();
  std::vector<uint16_t> rows(size_t{1} * tokens * cols);
  size_t at = (size_t{1} * first_token * cols) % pool.size();
  for (uint16_t& half : rows) {
    half = pool[at];
    if (++at == pool.size()) at = 0;
  }
  return rows;
}

// A matrix of random blocks in VRAM.
struct DeviceMatrix {
  DeviceMatrix(TensorType type, int rows, int cols, uint32_t seed, cudaStream_t stream,
               float scale = 1)
      : source(type, rows, cols, seed, scale),
        tiles{.format = FormatFor(type), .rows = rows, .cols = cols},
        memory(tiles.bytes()) {
    tiles.data = memory.data();
    Repack(source, nullptr, stream);
  }
  // Interleaves rows of a gate with rows of up, 8 above 8.
  DeviceMatrix(const TestMatrix& gate, const TestMatrix& up, cudaStream_t stream)
      : source(gate),
        tiles{.format = FormatFor(gate.matrix().type),
              .rows = static_cast<int>(gate.matrix().rows + 7) / 8 * kTileRows,
              .cols = static_cast<int>(gate.matrix().cols)},
        memory(tiles.bytes()) {
    tiles.data = memory.data();
    Repack(gate, &up, stream);
  }

  void Repack(const TestMatrix& upper, const TestMatrix* lower, cudaStream_t stream) {
    const auto bytes = [](const TestMatrix& m) {
      return DeviceArray<uint8_t>(
          std::span(reinterpret_cast<const uint8_t*>(m.matrix().data), m.matrix().bytes()));
    };
    const DeviceArray<uint8_t> upper_bytes = bytes(upper);
    const DeviceArray<uint8_t> lower_bytes =
        lower == nullptr ? DeviceArray<uint8_t>() : bytes(*lower);
    EXPECT_EQ(LaunchRepack({.type = upper.matrix().type,
                            .data = upper_bytes.data(),
                            .lower = lower == nullptr ? nullptr : lower_bytes.data(),
                            .rows = static_cast<int>(upper.matrix().rows),
                            .row_bytes = upper.matrix().row_bytes},
                           tiles, 0, stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    for (const TestMatrix* part : {&upper, lower}) {
      if (part == nullptr) continue;
      const Matrix& m = part->matrix();
      const auto* const blocks = reinterpret_cast<const uint8_t*>(m.data);
      tiles.exponent = std::max(tiles.exponent, WeightExponent(m.type, blocks, m.bytes()));
    }
  }

  TestMatrix source;
  TiledMatrix tiles;
  DeviceArray<uint8_t> memory;
};

struct Shape {
  int rows;
  int cols;
};

// Stride of results with `rows` rows: a multiple of 4, with a gap behind them.
constexpr int Stride(int rows) { return (rows + 8) / 4 * 4; }
// A product's result in the kernels' layout: [splits][y_tokens][Stride(rows)], the gap untouched.
struct Result {
  int tokens;
  int y_tokens;
  // 1 if the kernel has summed the partials.
  int partials;
  int rows;
  std::vector<float> values;

  std::span<const float> Row(int partial, int token) const {
    return std::span(values).subspan(
        (static_cast<size_t>(partial) * y_tokens + token) * Stride(rows), rows);
  }
  // Adds the partials in order.
  std::vector<float> Sum(int token) const {
    const auto first = Row(0, token);
    std::vector<float> sum(first.begin(), first.end());
    for (int s = 1; s < partials; ++s) {
      for (int r = 0; r < rows; ++r) sum[r] += Row(s, token)[r];
    }
    return sum;
  }
};

class ProductTest : public GpuTest {
 protected:
  // The GPU as kernels see it, with `sms` SMs.
  DeviceTraits WithSms(int sms) const {
    DeviceTraits device = traits();
    device.sms = sms;
    return device;
  }

  // Launches the kernel that a step of the model uses.
  cudaError_t Launch(const MatmulArgs& args, int sms) { return Launch(args, WithSms(sms)); }
  cudaError_t Launch(MatmulArgs args, const DeviceTraits& device) {
    Product& product = args.product;
    if (kernels().matvec_takes(product)) return kernels().matvec(args, device, stream());
    if (product.tokens > kMaxPartialsTokens) args.stream_k = StreamK();
    if (kernels().gemm_takes(product.matrices[0].format, product.tokens)) {
      return kernels().gemm(args, device, stream());
    }
    product.weights_are_new = true;
    int64_t bytes = 0;
    for (int i = 0; i < product.num_matrices; ++i) bytes += F16Bytes(product.matrices[i]);
    const DeviceArray<uint8_t> dequantised(bytes);
    uint8_t* to = dequantised.data();
    cudaError_t error = kernels().dequantise(product, 0, RowTiles(product), to, stream());
    if (error != cudaSuccess) return error;
    for (int i = 0; i < product.num_matrices; ++i) {
      TiledMatrix& matrix = product.matrices[i];
      matrix.data = to;
      matrix.format = TileFormat::kF16;
      to += matrix.bytes();
    }
    error = kernels().gemm(args, device, stream());
    return error == cudaSuccess ? cudaStreamSynchronize(stream()) : error;
  }

  void TearDown() override {
    GpuTest::TearDown();
    if (ready_.size() > 0) {
      EXPECT_EQ(ready_.Read(), std::vector<int32_t>(ready_.size(), 0));
    }
  }

  StreamKWorkspace StreamK() {
    if (ready_.size() == 0) {
      sums_ = DeviceArray<uint8_t>(StreamKWorkspace::kSumsBytes);
      ready_ = DeviceArray<int32_t>(std::vector<int32_t>(StreamKWorkspace::kReady, 0));
    }
    return {.sums = sums_.data(), .ready = ready_.data()};
  }

  static int64_t F16Bytes(const TiledMatrix& matrix) {
    return int64_t{matrix.row_tiles()} * kTileRows * RoundUpTo(matrix.cols, kActivationCols) * 2;
  }

  // Multiplies by tokens [first_token, first_token + tokens) of InputRows. The kernel adds the
  // partials up if `sum` or if there are so many tokens.
  Result Multiply(const MatmulArgs& args, int first_token, int tokens, int sms, bool sum = false) {
    return Multiply(args, first_token, tokens, WithSms(sms), sum);
  }
  Result Multiply(MatmulArgs args, int first_token, int tokens, const DeviceTraits& device,
                  bool sum = false) {
    Product& product = args.product;
    const int cols = product.matrices[0].cols;
    const DeviceActivations x(InputRows(first_token, tokens, cols), tokens, cols);
    sum = sum || tokens > kMaxPartialsTokens;
    Result result = {.tokens = tokens,
                     .y_tokens = PartialsTokens(tokens),
                     .partials = sum ? 1 : product.splits,
                     .rows = Rows(product),
                     .values = {}};
    const int stride = Stride(result.rows);
    const DeviceArray<float> y(size_t{1} * product.splits * result.y_tokens * stride);
    product.tokens = tokens;
    args.prologue = x.view();
    args.epilogue = StoreF32{y.data(), stride, sum};
    EXPECT_EQ(Launch(args, device), cudaSuccess);
    result.values = y.Read();
    ExpectOnlyItsOwnWritten(result, product.splits);
    return result;
  }

  // Expects the product of all tokens together, launched as for `available` SMs, to be the products
  // of eight tokens each. No split-K.
  void ExpectAsByEights(const MatmulArgs& args, int tokens, int available) {
    const Result together = Multiply(args, 0, tokens, available);
    for (int first = 0; first < tokens; first += kMatvecTokens) {
      const int some = std::min(kMatvecTokens, tokens - first);
      const Result eight = Multiply(args, first, some, sms());
      for (int t = 0; t < some; ++t) {
        ASSERT_TRUE(SameBits(together.Row(0, first + t), eight.Row(0, t)))
            << "token " << first + t << " of " << tokens;
      }
    }
  }

  // Expects every result to be written, and all other memory to hold what it held before.
  static void ExpectOnlyItsOwnWritten(const Result& result, int splits) {
    int64_t missing = 0;
    int64_t beyond = 0;
    const int stride = Stride(result.rows);
    for (int s = 0; s < splits; ++s) {
      for (int t = 0; t < result.y_tokens; ++t) {
        const float* const row =
            &result.values[(static_cast<size_t>(s) * result.y_tokens + t) * stride];
        const bool mine = s < result.partials && t < result.tokens;
        for (int i = 0; i < stride; ++i) {
          const bool poison = IsPoison(row[i]);
          missing += mine && i < result.rows && poison ? 1 : 0;
          beyond += !(mine && i < result.rows) && !poison ? 1 : 0;
        }
      }
    }
    EXPECT_EQ(missing, 0) << "results not written, of " << result.tokens << " tokens";
    EXPECT_EQ(beyond, 0) << "writes beside the result, of " << result.tokens << " tokens";
  }

  // The weights by which kernels multiply: F16 values by dequantise.cuh's rule, times 2^exponent.
  std::vector<float> MultipliedWeights(const TiledMatrix& matrix) {
    const DeviceArray<uint8_t> dequantised(F16Bytes(matrix));
    EXPECT_EQ(kernels().dequantise({.matrices = {matrix}, .num_matrices = 1}, 0, matrix.row_tiles(),
                                   dequantised.data(), stream()),
              cudaSuccess);
    const TiledMatrix f16 = {.data = dequantised.data(),
                             .format = TileFormat::kF16,
                             .rows = matrix.rows,
                             .cols = matrix.cols};
    DeviceArray<float> values(size_t{1} * matrix.rows * matrix.cols);
    EXPECT_EQ(LaunchWeightValues(f16, 0, matrix.rows, values.data(), stream()), cudaSuccess);
    std::vector<float> weights = values.Read();
    for (float& weight : weights) weight = std::ldexp(weight, matrix.exponent);
    return weights;
  }

 private:
  DeviceArray<uint8_t> sums_;
  DeviceArray<int32_t> ready_;
};

class ProductTypeTest : public ProductTest, public ::testing::WithParamInterface<TensorType> {
 protected:
  int block_weights() const {
    return static_cast<int>(GetTensorTypeInfo(GetParam()).block_weights);
  }
  // True if a kernel multiplies the type's tiles without dequantising them first.
  bool fused() const { return kernels().gemm_takes(FormatFor(GetParam()), 9); }

  std::vector<Shape> Shapes() const {
    std::vector<Shape> shapes = {{37, 320}, {1, 64}, {20, 2048}, {1000, 96}, {5, 256}, {130, 768}};
    if (GetParam() != TensorType::kF32 && GetParam() != TensorType::kBF16) {
      shapes.insert(shapes.end(), {{1152, 896}, {384, 8960}});
    }
    // Shapes of the models; the largest have fewer rows.
    if (fused() && GetParam() != TensorType::kF32 && GetParam() != TensorType::kBF16) {
      shapes.insert(shapes.end(), {{896, 4864}, {2048, 1536}, {512, 3584}, {208, 18944}});
    }
    std::erase_if(shapes, [&](const Shape& s) { return s.cols % block_weights() != 0; });
    return shapes;
  }
};

INSTANTIATE_TEST_SUITE_P(
    All, ProductTypeTest, ::testing::ValuesIn([] {
      // Other types than these are held as F16 (RepackTest).
      std::vector<TensorType> types = {TensorType::kF32, TensorType::kBF16, TensorType::kQ3_K};
      types.insert(types.end(), std::begin(kFormatTypes), std::end(kFormatTypes));
      return types;
    }()),
    [](const auto& info) { return std::string(GetTensorTypeInfo(info.param).name); });

// A weight is rounded to F16 once. If its scale is a product (d * scale), the scale is rounded as
// well, and so is a min: an error of at most 2^-11 of each of the three parts, whose norms add up
// to no more than 1 + sqrt(2) times the norm of the weights if the parts have random signs.
TEST_P(ProductTypeTest, WeightsAreRoundedAsTheRuleSays) {
  int roundings = 1;
  switch (FormatFor(GetParam())) {
    case TileFormat::kQ2_K:
    case TileFormat::kQ4_K:
    case TileFormat::kQ5_K:
      roundings = 3;
      break;
    case TileFormat::kQ6_K:
    case TileFormat::kIQ4_XS:
    case TileFormat::kIQ2_XXS:
    case TileFormat::kIQ2_XS:
    case TileFormat::kIQ2_S:
    case TileFormat::kIQ3_XXS:
    case TileFormat::kIQ3_S:
      roundings = 2;
      break;
    default:
      break;
  }
  std::vector<float> scales = {1};
  if (GetParam() == TensorType::kMXFP4) scales = {1, 0x1p20f};
  // Scales for which kernels multiply by weights times another power of two.
  if (HasSuperBlocks(FormatFor(GetParam()))) scales = {1, 32, 0x1p-6, 0x1p-12};
  for (const float scale : scales) {
    SCOPED_TRACE(scale);
    const DeviceMatrix matrix(GetParam(), 37, 2048, 11, stream(), scale);
    const std::vector<float> exact = matrix.source.Dequantized();
    const std::vector<float> used = MultipliedWeights(matrix.tiles);
    double squared = 0;
    double reference = 0;
    float largest = 0;
    for (const float w : exact) largest = std::max(largest, std::abs(w));
    for (size_t i = 0; i < exact.size(); ++i) {
      ASSERT_NEAR(used[i], exact[i], roundings * 0x1p-11 * largest) << i;
      // Weights that F16 can hold.
      if (GetParam() == TensorType::kF16 || GetParam() == TensorType::kMXFP4 ||
          GetParam() == TensorType::kNVFP4) {
        ASSERT_EQ(used[i], exact[i]);
      }
      squared += std::pow(double{used[i]} - double{exact[i]}, 2);
      reference += std::pow(double{exact[i]}, 2);
    }
    EXPECT_LE(std::sqrt(squared / reference), (roundings == 3 ? 2.5 : roundings) * 0x1p-11);
  }
}

// One token alone against sums in double precision. Tensor cores truncate below the last bit of
// their sum in each of cols / 16 steps.
TEST_P(ProductTypeTest, AgreesWithDoublePrecision) {
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.cols);
    const DeviceMatrix matrix(GetParam(), shape.rows, shape.cols, 7, stream());
    const MatmulArgs args = {.product = {.matrices = {matrix.tiles},
                                         .num_matrices = 1,
                                         .splits = Splits(matrix.tiles.row_tiles(), shape.cols)}};
    const std::vector<float> w = MultipliedWeights(matrix.tiles);
    const double steps = shape.cols / 16.0 + 16;
    for (const int token : {0, 5, 700}) {
      const Result result = Multiply(args, token, 1, sms());
      const std::vector<float> y = result.Sum(0);
      const std::vector<float> x = ToFloats(InputRows(token, 1, shape.cols));
      double squared = 0;
      double reference = 0;
      for (int r = 0; r < shape.rows; ++r) {
        double sum = 0;
        double magnitude = 0;
        for (int c = 0; c < shape.cols; ++c) {
          const double product = double{w[size_t{1} * r * shape.cols + c]} * double{x[c]};
          sum += product;
          magnitude += std::abs(product);
        }
        ASSERT_NEAR(y[r], sum, steps * 0x1p-22 * magnitude) << "row " << r << " token " << token;
        squared += std::pow(double{y[r]} - sum, 2);
        reference += sum * sum;
      }
      if (shape.rows > 1) {
        EXPECT_LE(std::sqrt(squared / reference), steps * 0x1p-22) << "token " << token;
      }
    }
  }
}

// The claim of matmul.h: a token's result does not depend on the other tokens of the launch, nor on
// the kernel.
TEST_P(ProductTypeTest, ATokensResultIsTheSameInAnyLaunch) {
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.cols);
    const DeviceMatrix matrix(GetParam(), shape.rows, shape.cols, 7, stream());
    const MatmulArgs args = {.product = {.matrices = {matrix.tiles},
                                         .num_matrices = 1,
                                         .splits = Splits(matrix.tiles.row_tiles(), shape.cols)}};
    const int most = int64_t{shape.rows} * shape.cols > 1'500'000 ? 513 : 1024;
    // Reference results: tokens by eights, the last of 513 alone.
    std::vector<Result> eights;
    for (int t = 0; t < most; t += kMatvecTokens) {
      eights.push_back(Multiply(args, t, std::min(kMatvecTokens, most - t), sms()));
    }
    const auto expect_same = [&](const Result& result, int first_token) {
      for (int t = 0; t < result.tokens; ++t) {
        const Result& eight = eights[(first_token + t) / kMatvecTokens];
        const int in_eight = (first_token + t) % kMatvecTokens;
        if (result.partials < eight.partials) {
          const std::vector<float> sum = eight.Sum(in_eight);
          ASSERT_TRUE(SameBits(result.Row(0, t), std::span<const float>(sum)))
              << "sum of token " << first_token + t << " of " << result.tokens;
          continue;
        }
        for (int s = 0; s < result.partials; ++s) {
          ASSERT_TRUE(SameBits(result.Row(s, t), eight.Row(s, in_eight)))
              << "partial " << s << " of token " << first_token + t << " of " << result.tokens;
        }
      }
    };
    for (int tokens = 1; tokens <= kMatvecTokens; ++tokens) {
      expect_same(Multiply(args, 3, tokens, sms()), 3);
      if (HasFatalFailure()) return;
    }
    expect_same(Multiply(args, 9, 1, 17), 9);
    expect_same(Multiply(args, 9, 4, 17), 9);
    // Also with the kernels of models that have other formats.
    MatmulArgs in_model = args;
    for (const uint32_t others :
         {FormatBit(TileFormat::kQ6_K), FormatBit(TileFormat::kQ4_K) | FormatBit(TileFormat::kQ8_0),
          FormatBit(TileFormat::kF16) | FormatBit(TileFormat::kQ2_K)}) {
      in_model.model_formats = others;
      for (const int tokens : {1, 8}) {
        expect_same(Multiply(in_model, 3, tokens, sms()), 3);
        if (HasFatalFailure()) return;
      }
    }
    for (const int tokens : {9, 16, 64, 65, 127, 128, 256, 512, 513, 1024}) {
      if (tokens > most) continue;
      expect_same(Multiply(args, 0, tokens, sms()), 0);
      if (HasFatalFailure()) return;
    }
    if (GetParam() == TensorType::kF16) {
      for (const int tokens : {9, 130, 193, 256, 300}) {
        for (const int fewer : {17, 40, sms()}) {
          expect_same(Multiply(args, 0, tokens, fewer, /*sum=*/true), 0);
          if (HasFatalFailure()) return;
        }
      }
    }
    // With fewer SMs the launches are divided otherwise.
    for (const int tokens : {9, 100, 200, 513}) {
      for (const int fewer : {17, 18, 40}) {
        expect_same(Multiply(args, 0, tokens, fewer), 0);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(ProductTypeTest, TheGateIsTheSameFusedOrNot) {
  for (const Shape& shape :
       {Shape{200, 256}, Shape{608, 896}, Shape{1216, 1536}, Shape{2448, 2048}}) {
    if (shape.cols % block_weights() != 0) continue;
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.cols);
    const int ffn = shape.rows;
    // Gates of a typical size.
    const TestMatrix gate(GetParam(), ffn, shape.cols, 21);
    const TestMatrix up(GetParam(), ffn, shape.cols, 22);
    const DeviceMatrix both(gate, up, stream());
    double squares = 0;
    for (const float w : gate.Dequantized()) squares += double{w} * double{w};
    const float scale = static_cast<float>(4 / std::sqrt(squares / ffn));
    const auto input = [&](int tokens) {
      std::vector<float> x = ToFloats(InputRows(0, tokens, shape.cols));
      for (float& value : x) value *= scale;
      return x;
    };
    MatmulArgs args = {.product = {.matrices = {both.tiles}, .num_matrices = 1}};
    constexpr int kMost = 600;
    // Each token's result by the separate gate kernel, from products of eight tokens at a time.
    std::vector<uint16_t> expected;
    std::vector<uint16_t> expected_gelu;
    std::vector<uint16_t> expected_clamped;
    const std::vector<float> all = input(kMost);
    for (int t = 0; t < kMost; t += kMatvecTokens) {
      const DeviceActivations x(
          std::span<const float>(all).subspan(size_t{1} * t * shape.cols, size_t{8} * shape.cols),
          8, shape.cols);
      const DeviceArray<float> y(size_t{8} * both.tiles.rows);
      MatmulArgs plain = args;
      plain.prologue = x.view();
      plain.product.tokens = 8;
      plain.epilogue = StoreF32{y.data(), both.tiles.rows};
      ASSERT_EQ(Launch(plain, sms()), cudaSuccess);
      const DeviceActivations out(8, ffn);
      SwiGluArgs gate_args = {.products = y.data(), .ffn = ffn, .tokens = 8, .out = out.view()};
      gate_args.activation = Activation::kGeluTanh;
      ASSERT_EQ(LaunchSwiGlu(gate_args, stream()), cudaSuccess);
      const std::vector<uint16_t> gelu_rows = out.Read();
      expected_gelu.insert(expected_gelu.end(), gelu_rows.begin(), gelu_rows.end());
      gate_args.activation = Activation::kClampedSwiglu;
      ASSERT_EQ(LaunchSwiGlu(gate_args, stream()), cudaSuccess);
      const std::vector<uint16_t> clamped_rows = out.Read();
      expected_clamped.insert(expected_clamped.end(), clamped_rows.begin(), clamped_rows.end());
      gate_args.activation = Activation::kSilu;
      ASSERT_EQ(LaunchSwiGlu(gate_args, stream()), cudaSuccess);
      const std::vector<uint16_t> rows = out.Read();
      expected.insert(expected.end(), rows.begin(), rows.end());
      if (t > 0) continue;
      const std::vector<float> products = y.Read();
      for (int i = 0; i < 8 * ffn; ++i) {
        const int row = i % ffn / 8 * kTileRows + i % 8;
        const double g = products[size_t{1} * (i / ffn) * both.tiles.rows + row];
        const double u = products[size_t{1} * (i / ffn) * both.tiles.rows + row + 8];
        const double value = g / (1 + std::exp(-g)) * u * double{kSwiGluScale};
        // Rounding of F16, of the fast exponential and of the division.
        const double tolerance = 0x1p-11 + (8 + 2 * std::abs(g)) * 0x1p-23;
        ASSERT_NEAR(HalfToFloat(rows[i]), value, tolerance * std::abs(value) + 0x1p-24)
            << "gate " << g << " up " << u;
      }
    }
    for (const int tokens : {1, 2, 7, 8, 9, 64, 65, 130, 193, 256, 300, 512, 513, 600}) {
      const DeviceActivations x(std::span<const float>(all).first(size_t{1} * tokens * shape.cols),
                                tokens, shape.cols);
      const DeviceActivations out(tokens, ffn);
      MatmulArgs fused = args;
      fused.prologue = x.view();
      fused.product.tokens = tokens;
      fused.epilogue = SwiGlu{out.view()};
      // With fewer SMs a block has more rows; of 306 row tiles 34 SMs get nine each.
      for (const int available : {sms(), 34, 17}) {
        ASSERT_EQ(Launch(fused, available), cudaSuccess);
        ASSERT_TRUE(SameBits(std::span<const uint16_t>(out.Read()),
                             std::span<const uint16_t>(expected).first(size_t{1} * tokens * ffn)))
            << tokens << " tokens";
        EXPECT_EQ(out.WrittenOutside(), 0) << tokens << " tokens";
      }
      fused.epilogue = SwiGlu{out.view(), Activation::kGeluTanh};
      ASSERT_EQ(Launch(fused, sms()), cudaSuccess);
      ASSERT_TRUE(
          SameBits(std::span<const uint16_t>(out.Read()),
                   std::span<const uint16_t>(expected_gelu).first(size_t{1} * tokens * ffn)))
          << tokens << " tokens, GELU";
      fused.epilogue = SwiGlu{out.view(), Activation::kClampedSwiglu};
      ASSERT_EQ(Launch(fused, sms()), cudaSuccess);
      ASSERT_TRUE(
          SameBits(std::span<const uint16_t>(out.Read()),
                   std::span<const uint16_t>(expected_clamped).first(size_t{1} * tokens * ffn)))
          << tokens << " tokens, clamped";
    }
  }
}

// Like the product of the head: no split-K, by blocks of many rows if tokens are few and weights
// quantised.
TEST_F(ProductTest, ManyRowsWithoutSplitK) {
  constexpr int kCols = 2048;
  for (const TensorType type : {TensorType::kF16, TensorType::kQ8_0, TensorType::kQ5_0,
                                TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K}) {
    for (const int rows : {2454, 2453}) {
      SCOPED_TRACE(::testing::Message() << GetTensorTypeInfo(type).name << ", " << rows);
      const DeviceMatrix matrix(type, rows, kCols, 61, stream());
      const MatmulArgs args = {.product = {.matrices = {matrix.tiles}, .num_matrices = 1}};
      for (const int tokens : {9, 31, 64}) {
        ExpectAsByEights(args, tokens, 17);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Like the product of q, k and v of 256 tokens: clusters of blocks that share weights.
TEST_F(ProductTest, PartialsAreSummedWhereAskedFor) {
  constexpr int kCols = 1536;
  const DeviceMatrix q(TensorType::kF16, 512, kCols, 71, stream());
  const DeviceMatrix k(TensorType::kF16, 64, kCols, 72, stream());
  const DeviceMatrix v(TensorType::kF16, 72, kCols, 73, stream());
  const int tiles = q.tiles.row_tiles() + k.tiles.row_tiles() + v.tiles.row_tiles();
  const MatmulArgs args = {.product = {.matrices = {q.tiles, k.tiles, v.tiles},
                                       .num_matrices = 3,
                                       .splits = Splits(tiles, kCols)}};
  ASSERT_GT(args.product.splits, 1);
  for (const int tokens : {9, 201, 256}) {
    const Result apart = Multiply(args, 0, tokens, sms());
    ASSERT_EQ(apart.partials, args.product.splits);
    // With fewer SMs a block has more rows.
    for (const int available : {sms(), 17}) {
      const Result sums = Multiply(args, 0, tokens, available, /*sum=*/true);
      for (int t = 0; t < tokens; ++t) {
        const std::vector<float> expected = apart.Sum(t);
        ASSERT_TRUE(SameBits(sums.Row(0, t), std::span<const float>(expected)))
            << "token " << t << " of " << tokens;
      }
    }
  }
}

// Like the product of gate and up of 256 tokens: clusters of two that share activations.
TEST_F(ProductTest, TwoBlocksSharingActivationsAreWhatOneIs) {
  constexpr int kRows = 2453;
  constexpr int kCols = 2048;
  const DeviceMatrix matrix(TensorType::kF16, kRows, kCols, 74, stream());
  const MatmulArgs args = {.product = {.matrices = {matrix.tiles}, .num_matrices = 1}};
  const Result twos = Multiply(args, 0, 250, sms());
  // An odd number of SMs uses no clusters.
  const Result ones = Multiply(args, 0, 250, 17);
  for (int t = 0; t < twos.tokens; ++t) {
    ASSERT_TRUE(SameBits(twos.Row(0, t), ones.Row(0, t))) << "token " << t;
  }
}

// Like the product of gate and up of 256 tokens if nine row tiles a block make whole waves: tokens
// are the M rows of wgmma.
TEST_F(ProductTest, TokensAsRowsAreWhatColumnsAre) {
  // So few SMs that one wave of such blocks takes the matrix.
  constexpr int kSms = 18;
  constexpr int kRows = kSms * 9 * kTileRows - 6;
  // 2,048 columns: in clusters of two; 1,536: without clusters.
  for (const int cols : {2048, 1536}) {
    SCOPED_TRACE(cols);
    const DeviceMatrix matrix(TensorType::kF16, kRows, cols, 75, stream());
    const MatmulArgs args = {.product = {.matrices = {matrix.tiles}, .num_matrices = 1}};
    for (const int tokens : {193, 250, 256}) {
      ExpectAsByEights(args, tokens, kSms);
      if (HasFatalFailure()) return;
    }
  }
}

// Queries, keys and values in one launch, of different types.
TEST_F(ProductTest, SeveralMatricesAreWhatEachIsAlone) {
  constexpr int kCols = 1536;
  using Types = std::array<TensorType, 3>;
  constexpr auto kF16 = TensorType::kF16;
  constexpr auto kQ8_0 = TensorType::kQ8_0;
  constexpr auto kQ5_0 = TensorType::kQ5_0;
  constexpr auto kQ4_K = TensorType::kQ4_K;
  constexpr auto kQ5_K = TensorType::kQ5_K;
  constexpr auto kQ6_K = TensorType::kQ6_K;
  constexpr auto kIQ4_XS = TensorType::kIQ4_XS;
  for (const Types& types : {Types{kQ4_K, kQ4_K, kQ4_K},
                             Types{kQ4_K, kQ4_K, kQ6_K},
                             Types{kQ5_0, kQ5_0, kQ8_0},
                             Types{kQ4_K, kQ4_K, kF16},
                             Types{kQ5_K, kQ5_K, kQ5_K},
                             Types{kQ5_K, kQ5_K, kQ6_K},
                             Types{kQ5_K, kQ4_K, kQ8_0},
                             Types{kQ6_K, kQ4_K, kQ6_K},
                             Types{kQ8_0, kQ5_K, kQ4_K},
                             Types{kF16, kQ6_K, kQ5_K},
                             Types{kQ4_K, kF16, kF16},
                             Types{kQ8_0, kF16, kQ8_0},
                             Types{kQ5_0, kQ8_0, kQ4_K},
                             Types{kF16, kQ5_0, kQ5_0},
                             Types{kIQ4_XS, kIQ4_XS, kQ5_K},
                             Types{kQ5_K, kIQ4_XS, kQ6_K},
                             Types{kQ8_0, kIQ4_XS, kF16},
                             Types{kIQ4_XS, kQ6_K, kIQ4_XS},
                             Types{kIQ4_XS, TensorType::kIQ3_S, kIQ4_XS},
                             Types{TensorType::kMXFP4, TensorType::kMXFP4, TensorType::kNVFP4},
                             Types{TensorType::kIQ3_S, TensorType::kIQ3_S, kQ4_K},
                             Types{TensorType::kIQ2_S, TensorType::kIQ2_S, TensorType::kIQ3_XXS}}) {
    SCOPED_TRACE(::testing::Message()
                 << GetTensorTypeInfo(types[0]).name << ", " << GetTensorTypeInfo(types[1]).name
                 << " and " << GetTensorTypeInfo(types[2]).name);
    const DeviceMatrix q(types[0], 512, kCols, 31, stream());
    const DeviceMatrix k(types[1], 64, kCols, 32, stream());
    const DeviceMatrix v(types[2], 72, kCols, 33, stream());
    const std::vector<const DeviceMatrix*> parts = {&q, &k, &v};
    const int tiles = q.tiles.row_tiles() + k.tiles.row_tiles() + v.tiles.row_tiles();
    const MatmulArgs all = {.product = {.matrices = {q.tiles, k.tiles, v.tiles},
                                        .num_matrices = 3,
                                        .splits = Splits(tiles, kCols)}};
    ASSERT_GT(all.product.splits, 1);
    const bool alike = types[0] == types[1] && types[1] == types[2];
    const bool taken = kernels().gemm_takes_behind(q.tiles.format, k.tiles.format) &&
                       kernels().gemm_takes_behind(k.tiles.format, v.tiles.format);
    for (const int tokens : {1, 3, 8, 9, 32, 33, 64, 100, 200, 512, 513}) {
      if (tokens > kMatvecTokens && !taken) break;
      // When dequantised, each format has a launch of its own.
      if (tokens > kMaxPartialsTokens && !alike) break;
      std::vector<Result> alone;
      for (const DeviceMatrix* part : parts) {
        alone.push_back(Multiply({.product = {.matrices = {part->tiles},
                                              .num_matrices = 1,
                                              .splits = all.product.splits}},
                                 0, tokens, sms()));
      }
      // With fewer SMs, two blocks share one.
      for (const int available : {sms(), 17}) {
        const Result together = Multiply(all, 0, tokens, available);
        int first_row = 0;
        for (const Result& expected : alone) {
          for (int s = 0; s < together.partials; ++s) {
            for (int t = 0; t < tokens; ++t) {
              ASSERT_TRUE(SameBits(together.Row(s, t).subspan(first_row, expected.rows),
                                   expected.Row(s, t)))
                  << "rows from " << first_row << ", token " << t << " of " << tokens << ", "
                  << available << " SMs";
            }
          }
          first_row += expected.rows;
        }
      }
    }
  }
}

// So many tokens that the kernel sums the partials. Sets that do not fuse refuse.
TEST_F(ProductTest, ManyTokensAddToTheResidual) {
  constexpr float kScale = 16;
  // With few SMs, blocks share the last tiles of the largest matrix.
  for (const Shape& shape : {Shape{896, 4864}, Shape{100, 512}, Shape{3584, 3584}}) {
    const DeviceMatrix matrix(TensorType::kF16, shape.rows, shape.cols, 61, stream());
    const MatmulArgs args = {.product = {.matrices = {matrix.tiles},
                                         .num_matrices = 1,
                                         .splits = Splits(matrix.tiles.row_tiles(), shape.cols)}};
    const int stride = Stride(shape.rows);
    for (const int tokens : {513, 700}) {
      SCOPED_TRACE(::testing::Message() << shape.rows << " rows, " << tokens << " tokens");
      const Result product = Multiply(args, 0, tokens, sms());
      const std::vector<float> before = RandomFloats(tokens * stride, 62, 10.0f);
      std::vector<float> expected = before;
      for (int t = 0; t < tokens; ++t) {
        for (int r = 0; r < shape.rows; ++r) {
          float& value = expected[static_cast<size_t>(t) * stride + r];
          value = std::fma(product.Row(0, t)[r], kScale, value);
        }
      }
      const DeviceActivations x(InputRows(0, tokens, shape.cols), tokens, shape.cols);
      MatmulArgs adding = args;
      adding.prologue = x.view();
      adding.product.tokens = tokens;
      for (const int some : {sms(), 17, 18}) {
        const DeviceArray<float> residual(before);
        adding.epilogue = AddToResidual{residual.data(), stride, kScale};
        if (!kernels().fuses) {
          EXPECT_EQ(Launch(adding, some), cudaErrorInvalidValue);
          EXPECT_TRUE(SameBits(residual.Read(), before));
          continue;
        }
        ASSERT_EQ(Launch(adding, some), cudaSuccess);
        EXPECT_TRUE(SameBits(residual.Read(), expected)) << some << " SMs";
      }
    }
  }
}

// For so many tokens the RoPE epilogue makes queries, keys and values: the same as LaunchRope. Sets
// that do not fuse refuse.
TEST_F(ProductTest, ManyTokensBecomeQueriesKeysAndValues) {
  struct Case {
    int heads;
    int kv_heads;
    int head_dim;
    int block_tokens;
    int cols;
    TensorType type;
  };
  for (const Case& shape :
       {Case{28, 4, 128, 16, 3584, TensorType::kF16}, Case{14, 2, 64, 16, 896, TensorType::kQ8_0},
        Case{3, 1, 64, 8, 128, TensorType::kF16}, Case{2, 1, 128, 64, 2048, TensorType::kQ4_K}}) {
    const int heads = shape.heads;
    const int kv_heads = shape.kv_heads;
    const int head_dim = shape.head_dim;
    const int block_tokens = shape.block_tokens;
    const int cols = shape.cols;
    const TensorType type = shape.type;
    const int q_rows = heads * head_dim;
    const int kv_rows = kv_heads * head_dim;
    const int rows = q_rows + 2 * kv_rows;
    const DeviceMatrix q_weights(type, q_rows, cols, 71, stream(), 0.1f);
    const DeviceMatrix k_weights(type, kv_rows, cols, 72, stream(), 0.1f);
    const DeviceMatrix v_weights(type, kv_rows, cols, 73, stream(), 0.1f);
    MatmulArgs args = {.product = {.matrices = {q_weights.tiles, k_weights.tiles, v_weights.tiles},
                                   .num_matrices = 3}};
    args.product.splits = Splits(RowTiles(args.product), cols);
    const DeviceArray<float> bias(RandomFloats(rows, 74, 3.0f));
    const DeviceArray<float> q_norm(RandomFloats(head_dim, 76));
    const DeviceArray<float> k_norm(RandomFloats(head_dim, 77));
    struct Form {
      int tokens;
      bool bias;
      bool norms;
    };
    for (const Form& form :
         {Form{513, true, false}, Form{700, true, false}, Form{1100, true, false},
          Form{700, false, false}, Form{513, false, true}, Form{1100, false, true}}) {
      const int tokens = form.tokens;
      const bool has_bias = form.bias;
      const bool norms = form.norms;
      SCOPED_TRACE(::testing::Message()
                   << heads << "/" << kv_heads << " heads of " << head_dim << ", " << tokens
                   << " tokens" << (has_bias ? ", bias" : "") << (norms ? ", norms" : ""));
      // Three sequences, and a last token that pads a bucket.
      const int lengths[] = {37, tokens - 37 - 2, 1};
      const int first_positions[] = {5, 0, 90};
      std::vector<SequenceEntry> sequences;
      std::vector<TokenEntry> entries;
      std::vector<int32_t> blocks;
      for (int s = 0; s < 3; ++s) {
        sequences.push_back({.slot = 2 - s,
                             .starts = 0,
                             .first_token = static_cast<int32_t>(entries.size()),
                             .tokens = lengths[s],
                             .first_position = first_positions[s],
                             .first_block = static_cast<int32_t>(blocks.size()),
                             .first_query_tile = 0,
                             .first_key_tile = 0});
        for (int i = 0; i < lengths[s]; ++i) {
          entries.push_back({.id = 0, .sequence = s, .position = first_positions[s] + i});
        }
        const int used = (first_positions[s] + lengths[s] + block_tokens - 1) / block_tokens;
        for (int b = 0; b < used; ++b) blocks.push_back(static_cast<int32_t>(blocks.size()));
      }
      entries.push_back({.id = 0, .sequence = -1, .position = 0});
      std::reverse(blocks.begin(), blocks.end());
      const DeviceArray<SequenceEntry> device_sequences(sequences);
      const DeviceArray<TokenEntry> device_entries(entries);
      const DeviceArray<int32_t> device_blocks(blocks);
      const DeviceArray<float> angles(RandomFloats(tokens * head_dim, 75));
      std::vector<int32_t> parts;
      for (int h = 0; h < kv_heads; ++h) parts.push_back(2 - h % 2);
      const DeviceArray<int32_t> query_split(parts);
      std::vector<uint16_t> halves = InputRows(0, tokens, cols);
      // A NaN in one token of the first sequence.
      halves[size_t{20} * cols + 7] = 0x7E00;
      const DeviceActivations x(halves, tokens, cols);
      args.prologue = x.view();
      args.product.tokens = tokens;

      KvCacheView view = {.blocks = static_cast<int>(blocks.size()),
                          .block_tokens = block_tokens,
                          .kv_heads = kv_heads,
                          .head_dim = head_dim};
      constexpr int kLayers = 2;
      struct Made {
        DeviceArray<uint16_t> q;
        DeviceArray<uint16_t> q_lo;
        DeviceArray<uint16_t> cache;
        DeviceArray<int32_t> not_finite;
      };
      const auto rope = [&](Made& to) {
        to.q = DeviceArray<uint16_t>(size_t{1} * tokens * q_rows);
        to.q_lo = DeviceArray<uint16_t>(to.q.size());
        to.cache = DeviceArray<uint16_t>(kLayers * view.blocks * view.block_size());
        to.not_finite = DeviceArray<int32_t>(std::vector<int32_t>{0, 0, 0});
        view.data = reinterpret_cast<__half*>(to.cache.data());
        return RopeArgs{.step = {.tokens = device_entries.data(),
                                 .sequences = device_sequences.data(),
                                 .blocks = device_blocks.data()},
                        .qkv = {.bias = has_bias ? bias.data() : nullptr,
                                .angles = angles.data(),
                                .rope_dims = head_dim,
                                .q_norm = norms ? q_norm.data() : nullptr,
                                .k_norm = norms ? k_norm.data() : nullptr,
                                .norm_eps = 1e-5f,
                                .query_split = has_bias ? query_split.data() : nullptr,
                                .heads = heads,
                                .kv_heads = kv_heads,
                                .head_dim = head_dim},
                        .q = reinterpret_cast<__half*>(to.q.data()),
                        .q_lo = reinterpret_cast<__half*>(to.q_lo.data()),
                        .kv = view,
                        .not_finite = to.not_finite.data(),
                        .layer = 1,
                        .tokens = tokens};
      };
      Made expected;
      {
        const DeviceArray<float> y(size_t{1} * tokens * rows);
        args.epilogue = StoreF32{y.data(), rows, /*sum=*/true};
        ASSERT_EQ(Launch(args, sms()), cudaSuccess);
        RopeArgs apart = rope(expected);
        apart.qkv.partials = y.data();
        apart.qkv.splits = 1;
        apart.qkv.partials_tokens = tokens;
        ASSERT_EQ(LaunchRope(apart, stream()), cudaSuccess);
        EXPECT_EQ(expected.not_finite.Read(), (std::vector<int32_t>{0, 0, 1}));
      }
      for (const int some : {sms(), 17, 18}) {
        Made made;
        args.epilogue = StoreQkv{rope(made)};
        if (!kernels().fuses) {
          EXPECT_EQ(Launch(args, some), cudaErrorInvalidValue);
          continue;
        }
        ASSERT_EQ(Launch(args, some), cudaSuccess);
        EXPECT_TRUE(SameBits(made.q.Read(), expected.q.Read())) << some << " SMs";
        EXPECT_TRUE(SameBits(made.q_lo.Read(), expected.q_lo.Read()));
        EXPECT_TRUE(SameBits(made.cache.Read(), expected.cache.Read()));
        EXPECT_EQ(made.not_finite.Read(), expected.not_finite.Read());
      }
    }
  }
}

// Dequantises a part of a matrix's rows, as for the head.
TEST_F(ProductTest, DequantisingSomeTilesIsAPartOfDequantisingAll) {
  for (const TensorType type : {TensorType::kQ6_K, TensorType::kIQ3_S}) {
    const DeviceMatrix matrix(type, 200, 2560, 41, stream());
    const Product product = {.matrices = {matrix.tiles}, .num_matrices = 1};
    const int tiles = matrix.tiles.row_tiles();
    const DeviceArray<uint8_t> all(F16Bytes(matrix.tiles));
    ASSERT_EQ(kernels().dequantise(product, 0, tiles, all.data(), stream()), cudaSuccess);
    const size_t tile_bytes = all.size() / tiles;
    const DeviceArray<uint8_t> part(5 * tile_bytes);
    ASSERT_EQ(kernels().dequantise(product, 4, 5, part.data(), stream()), cudaSuccess);
    EXPECT_TRUE(
        SameBits(std::span<const uint8_t>(part.Read()),
                 std::span<const uint8_t>(all.Read()).subspan(4 * tile_bytes, 5 * tile_bytes)));
  }
}

// So many columns of eight tokens that the rings of twenty warps and three group books do not fit
// beside x.
TEST_F(ProductTest, FewerWarpsShareABlockWithLargeInputs) {
  constexpr int kCols = 5120;
  const DeviceMatrix q(TensorType::kIQ3_S, 496, kCols, 81, stream());
  const DeviceMatrix k(TensorType::kIQ2_S, 64, kCols, 82, stream());
  const DeviceMatrix v(TensorType::kIQ3_XXS, 72, kCols, 83, stream());
  const MatmulArgs together = {
      .product = {.matrices = {q.tiles, k.tiles, v.tiles}, .num_matrices = 3}};
  // All row tiles in two blocks.
  const Result few = Multiply(together, 0, 8, 2);
  int first_row = 0;
  for (const DeviceMatrix* part : {&q, &k, &v}) {
    const Result alone =
        Multiply({.product = {.matrices = {part->tiles}, .num_matrices = 1}}, 0, 8, sms());
    for (int t = 0; t < 8; ++t) {
      ASSERT_TRUE(SameBits(few.Row(0, t).subspan(first_row, part->tiles.rows), alone.Row(0, t)))
          << "rows from " << first_row << ", token " << t;
    }
    first_row += part->tiles.rows;
  }
}

// So many columns that there is no room for the input of eight tokens: sm90's matvec leaves it to
// the launches for more.
TEST_F(ProductTest, InputsBeyondSharedMemoryChangeNoBit) {
  constexpr int kCols = 16384;
  for (const TensorType type : {TensorType::kF16, TensorType::kQ4_K, TensorType::kIQ4_XS,
                                TensorType::kQ4_0, TensorType::kIQ3_S}) {
    SCOPED_TRACE(GetTensorTypeInfo(type).name);
    const DeviceMatrix matrix(type, 72, kCols, 84, stream());
    MatmulArgs args = {.product = {.matrices = {matrix.tiles}, .num_matrices = 1}};
    for (const int tokens : {2, 3, 8}) {
      args.product.tokens = tokens;
      EXPECT_EQ(kernels().matvec_takes(args.product), !kernels().fuses);
      const Result together = Multiply(args, 0, tokens, sms());
      for (int t = 0; t < tokens; ++t) {
        ASSERT_TRUE(SameBits(together.Row(0, t), Multiply(args, t, 1, sms()).Row(0, 0)))
            << "token " << t << " of " << tokens;
      }
    }
  }
}

// The least shared memory of GPUs since compute capability 8.0 changes no bit. Eight tokens do not
// fit it with so many columns.
TEST_F(ProductTest, SmallSharedMemoryChangesNoBit) {
  constexpr int kRows = 1240;
  constexpr int kCols = 8192;
  for (const TensorType type : {TensorType::kF16, TensorType::kQ8_0, TensorType::kQ5_1,
                                TensorType::kQ4_K, TensorType::kQ6_K, TensorType::kIQ3_S}) {
    SCOPED_TRACE(GetTensorTypeInfo(type).name);
    const DeviceMatrix matrix(type, kRows, kCols, 84, stream());
    for (const int splits : {1, 5}) {
      const MatmulArgs args = {
          .product = {.matrices = {matrix.tiles}, .num_matrices = 1, .splits = splits}};
      for (const int tokens : {1, 3, 5, 8, 40, 130, 600}) {
        const Result expected = Multiply(args, 0, tokens, sms());
        // With few SMs a block has several rounds of tiles.
        for (const int some : {sms(), 2 * splits}) {
          DeviceTraits device = WithSms(some);
          device.smem_block = 99 * 1024;
          device.smem_sm = 100 * 1024;
          const Result small = Multiply(args, 0, tokens, device);
          ASSERT_TRUE(SameBits(small.values, expected.values))
              << tokens << " tokens, " << splits << " splits, " << some << " SMs";
        }
      }
    }
  }
}

// The norm that a product of one token makes in its prologue is LaunchNorm's. Sets that do not fuse
// refuse.
TEST_F(ProductTest, ANormedInputIsTheNormsOutput) {
  for (const int cols : {256, 896, 2048, 3584, 5120, 8192}) {
    for (const int splits : {0, 1, 3, 8}) {
      SCOPED_TRACE(::testing::Message() << cols << " columns, " << splits << " splits");
      // One of them has a book in shared memory.
      const TensorType type = splits == 3 && cols != 896 ? TensorType::kIQ2_XS : TensorType::kQ8_0;
      const DeviceMatrix matrix(type, 100, cols, 51, stream());
      const DeviceArray<float> weight(RandomFloats(cols, 52));
      const std::vector<float> residual_values = RandomFloats(cols, 53, 10.0f);
      constexpr int kPartialsTokens = kMatvecTokens;
      const DeviceArray<float> partials(
          RandomFloats(size_t{1} * std::max(splits, 1) * kPartialsTokens * cols, 54));
      MatmulArgs args = {.product = {.matrices = {matrix.tiles},
                                     .num_matrices = 1,
                                     .splits = Splits(matrix.tiles.row_tiles(), cols),
                                     .tokens = 1}};
      const size_t floats = size_t{1} * args.product.splits * kMatvecTokens * 100;

      const DeviceArray<float> residual(residual_values);
      const DeviceActivations normed(1, cols);
      ASSERT_EQ(LaunchNorm({.residual = residual.data(),
                            .partials = splits == 0 ? nullptr : partials.data(),
                            .splits = splits,
                            .partials_tokens = kPartialsTokens,
                            .scale = 16,
                            .weight = weight.data(),
                            .eps = 1e-6f,
                            .hidden = cols,
                            .tokens = 1,
                            .out = normed.view()},
                           stream()),
                cudaSuccess);
      const DeviceArray<float> expected(floats);
      args.prologue = normed.view();
      args.epilogue = StoreF32{expected.data(), 100};
      ASSERT_EQ(kernels().matvec(args, traits(), stream()), cudaSuccess);

      const DeviceArray<float> old_residual(residual_values);
      const DeviceArray<float> new_residual(cols);
      const DeviceArray<float> actual(floats);
      args.epilogue = StoreF32{actual.data(), 100};
      args.prologue = NormArgs{.residual = old_residual.data(),
                               .new_residual = new_residual.data(),
                               .partials = splits == 0 ? nullptr : partials.data(),
                               .splits = splits,
                               .partials_tokens = kPartialsTokens,
                               .scale = 16,
                               .weight = weight.data(),
                               .eps = 1e-6f};
      if (!kernels().fuses) {
        EXPECT_EQ(kernels().matvec(args, traits(), stream()), cudaErrorInvalidValue);
        continue;
      }
      ASSERT_EQ(kernels().matvec(args, traits(), stream()), cudaSuccess);
      EXPECT_TRUE(SameBits(actual.Read(), expected.Read()));
      EXPECT_TRUE(SameBits(new_residual.Read(), residual.Read()));
      EXPECT_TRUE(SameBits(old_residual.Read(), residual_values));
      EXPECT_FALSE(IsPoison(expected.Read()[0]));
    }
  }
}

// A NaN in one token's input shows in its result and in no other's.
TEST_F(ProductTest, NanStaysWithItsToken) {
  constexpr int kCols = 512;
  const DeviceMatrix matrix(TensorType::kF16, 64, kCols, 61, stream());
  for (const int tokens : {3, 8, 20, 130}) {
    std::vector<float> values = RandomFloats(size_t{1} * tokens * kCols, 62);
    const int bad = tokens - 2;
    const std::vector<float> good = values;
    values[size_t{1} * bad * kCols + 77] = std::nanf("");
    MatmulArgs args = {
        .product = {.matrices = {matrix.tiles}, .num_matrices = 1, .tokens = tokens}};
    const auto multiply = [&](const std::vector<float>& input) {
      const DeviceActivations x(std::span<const float>(input), tokens, kCols);
      const DeviceArray<float> y(size_t{1} * PartialsTokens(tokens) * 64);
      args.prologue = x.view();
      args.epilogue = StoreF32{y.data(), 64};
      EXPECT_EQ(Launch(args, sms()), cudaSuccess);
      return y.Read();
    };
    const std::vector<float> with_nan = multiply(values);
    const std::vector<float> without = multiply(good);
    for (int t = 0; t < tokens; ++t) {
      for (int r = 0; r < 64; ++r) {
        const float value = with_nan[t * 64 + r];
        if (t == bad) {
          ASSERT_TRUE(std::isnan(value)) << "row " << r;
        } else {
          ASSERT_EQ(value, without[t * 64 + r]) << "token " << t << " row " << r;
        }
      }
    }
  }
}

}  // namespace
}  // namespace orcd::cuda
