// Tests of the products of experts: bit-equal to dense products, whatever the tiles, and correct
// with a bias.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/repack.h"
#include "cuda/weight_exponent.h"
#include "runtime/cpu/matrix_for_test.h"
#include "runtime/gguf/block_formats.h"

namespace orcd::cuda {
namespace {

using cpu::RandomFloats;
using cpu::TestMatrix;

// The experts' matrices of one shape, of random blocks, in VRAM.
struct Experts {
  Experts(TensorType type, int expert_count, int rows_of_each, int cols, float scale,
          cudaStream_t stream)
      : count(expert_count),
        rows(RoundUpTo(rows_of_each, kTileRows)),
        source(type, int64_t{count} * rows, cols, 5, scale),
        tiles{.format = FormatFor(type), .rows = count * rows, .cols = cols},
        memory(tiles.bytes()) {
    tiles.data = memory.data();
    const Matrix& m = source.matrix();
    const DeviceArray<uint8_t> bytes(
        std::span<const uint8_t>(reinterpret_cast<const uint8_t*>(m.data), m.bytes()));
    EXPECT_EQ(LaunchRepack({.type = type,
                            .data = bytes.data(),
                            .rows = static_cast<int>(m.rows),
                            .row_bytes = m.row_bytes},
                           tiles, 0, stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    tiles.exponent = WeightExponent(type, reinterpret_cast<const uint8_t*>(m.data), m.bytes());
    double squares = 0;
    for (const float w : source.Dequantized()) squares += double{w} * double{w};
    norm = std::sqrt(squares / (double{1} * count * rows));
  }

  // The first `some` rows of one.
  TiledMatrix Of(int expert, int some) const {
    TiledMatrix matrix = tiles;
    matrix.rows = rows;
    matrix.data += expert * matrix.bytes();
    matrix.rows = some;
    return matrix;
  }

  int count;
  // Padded rows of each.
  int rows;
  TestMatrix source;
  TiledMatrix tiles;
  DeviceArray<uint8_t> memory;
  // Typical norm of a row.
  double norm;
};

// Tiles of experts that have `counts` rows each, as a step's choices are sorted, and room for more.
std::vector<ExpertTile> TilesOf(const std::vector<int>& counts, int tile_rows) {
  constexpr int kRoom = 3;
  std::vector<ExpertTile> tiles;
  int first_row = 0;
  for (int e = 0; e < static_cast<int>(counts.size()); ++e) {
    for (int at = 0; at < counts[e]; at += tile_rows) {
      tiles.push_back(
          {.expert = e, .first_row = first_row + at, .rows = std::min(tile_rows, counts[e] - at)});
    }
    first_row += RoundUpTo(counts[e], kExpertRowAlign);
  }
  tiles.insert(tiles.end(), kRoom, {.expert = -1, .first_row = -1, .rows = 0});
  return tiles;
}

int SortedRows(const std::vector<int>& counts) {
  int rows = 0;
  for (const int count : counts) rows += RoundUpTo(count, kExpertRowAlign);
  // Rows behind the last expert's.
  return rows + 2 * kExpertRowAlign;
}

class ExpertProductTest : public GpuTest {
 protected:
  // Bits of the rows that experts with `counts` rows multiply; those that no expert has are NaN.
  // `scale`: their typical size.
  static std::vector<uint16_t> Inputs(const std::vector<int>& counts, int cols, double scale) {
    const int rows = SortedRows(counts);
    const std::vector<float> numbers =
        RandomFloats(size_t{1} * rows * cols, 3, static_cast<float>(scale));
    std::vector<uint16_t> inputs(numbers.size(), 0xFFFF);
    for (const ExpertTile& tile : TilesOf(counts, /*tile_rows=*/1)) {
      const size_t first = size_t{1} * std::max(tile.first_row, 0) * cols;
      for (size_t i = first; i < first + size_t{1} * tile.rows * cols; ++i) {
        inputs[i] = FloatToHalf(numbers[i]);
      }
    }
    return inputs;
  }

  // Calls multiply(args, first row) for the dense products of all rows, eight at a time, without
  // the epilogues.
  template <typename Multiply>
  static void ByEights(const Experts& experts, const std::vector<int>& counts,
                       const std::vector<uint16_t>& inputs, int stored_rows,
                       const Multiply& multiply) {
    const int cols = experts.tiles.cols;
    for (const ExpertTile& tile : TilesOf(counts, kMatvecTokens)) {
      if (tile.rows == 0) continue;
      const DeviceActivations x(
          std::span<const uint16_t>(inputs).subspan(size_t{1} * tile.first_row * cols,
                                                    size_t{1} * tile.rows * cols),
          tile.rows, cols);
      multiply(MatmulArgs{.prologue = x.view(),
                          .product = {.matrices = {experts.Of(tile.expert, stored_rows)},
                                      .num_matrices = 1,
                                      .tokens = tile.rows}},
               tile.first_row);
    }
  }

  // Makes what StoreF32 of stride `stride` leaves in poisoned memory.
  std::vector<float> DenseF32(const Experts& experts, const std::vector<int>& counts,
                              const std::vector<uint16_t>& inputs, int stored_rows, int stride) {
    std::vector<float> expected =
        DeviceArray<float>(size_t{1} * SortedRows(counts) * stride).Read();
    ByEights(experts, counts, inputs, stored_rows, [&](MatmulArgs args, int first_row) {
      const DeviceArray<float> y(size_t{1} * kMatvecTokens * stride);
      args.epilogue = StoreF32{y.data(), stride};
      ASSERT_EQ(kernels().matvec(args, traits(), stream()), cudaSuccess);
      const std::vector<float> rows = y.Read();
      std::copy_n(rows.begin(), size_t{1} * args.product.tokens * stride,
                  expected.begin() + static_cast<int64_t>(first_row) * stride);
    });
    return expected;
  }

  // The same of SwiGlu: bits of [rows, experts.rows / 2].
  std::vector<uint16_t> DenseUnits(const Experts& experts, const std::vector<int>& counts,
                                   const std::vector<uint16_t>& inputs, Activation activation) {
    const int units = experts.rows / 2;
    std::vector<uint16_t> expected(size_t{1} * SortedRows(counts) * units, 0xFFFF);
    ByEights(experts, counts, inputs, experts.rows, [&](MatmulArgs args, int first_row) {
      const DeviceActivations out(args.product.tokens, units);
      args.epilogue = SwiGlu{out.view(), activation};
      ASSERT_EQ(kernels().matvec(args, traits(), stream()), cudaSuccess);
      const std::vector<uint16_t> rows = out.Read();
      std::copy(rows.begin(), rows.end(),
                expected.begin() + static_cast<int64_t>(first_row) * units);
    });
    return expected;
  }

  // The GPU as kernels see it, with `sms` SMs; with the least shared memory of GPUs since compute
  // capability 8.0 if small_memory_.
  DeviceTraits WithSms(int sms) const {
    DeviceTraits device = traits();
    device.sms = sms;
    if (small_memory_) {
      device.smem_block = 99 * 1024;
      device.smem_sm = 100 * 1024;
    }
    return device;
  }

  // Launches the products of `args`, whose x, tiles and matrices it adds, as for `sms` SMs.
  void Multiply(const Experts& experts, const std::vector<int>& counts,
                const std::vector<uint16_t>& inputs, int tile_rows, int sms,
                ExpertMatmulArgs args) {
    const DeviceActivations x(inputs, SortedRows(counts), experts.tiles.cols);
    const std::vector<ExpertTile> tiles = TilesOf(counts, tile_rows);
    const DeviceArray<ExpertTile> list(tiles);
    args.x = x.view();
    args.experts = experts.tiles;
    args.expert_rows = experts.rows;
    args.tiles = list.data();
    args.max_tiles = static_cast<int>(tiles.size());
    args.tile_rows = tile_rows;
    ASSERT_EQ(kernels().expert_gemm(args, WithSms(sms), stream()), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
  }

  std::vector<float> MultiplyF32(const Experts& experts, const std::vector<int>& counts,
                                 const std::vector<uint16_t>& inputs, int tile_rows, int sms,
                                 int stored_rows, int stride) {
    const DeviceArray<float> y(size_t{1} * SortedRows(counts) * stride);
    Multiply(experts, counts, inputs, tile_rows, sms,
             {.epilogue = StoreF32{y.data(), stride}, .stored_rows = stored_rows});
    return y.Read();
  }

  // Launches the products of one token's experts, all of which have `counts` of one row.
  void MultiplyOneToken(const Experts& experts, const std::vector<int>& counts,
                        const DeviceActivations& x, int sms, ExpertMatmulArgs args) {
    const DeviceArray<ExpertTile> list(TilesOf(counts, kExpertRowAlign));
    args.x = x.view();
    args.experts = experts.tiles;
    args.expert_rows = experts.rows;
    args.tiles = list.data();
    args.max_tiles = static_cast<int>(TilesOf(counts, kExpertRowAlign).size());
    ASSERT_EQ(kernels().expert_gemm(args, WithSms(sms), stream()), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
  }

  // `bias`: in VRAM, or null.
  std::vector<uint16_t> MultiplyUnits(const Experts& experts, const std::vector<int>& counts,
                                      const std::vector<uint16_t>& inputs, int tile_rows, int sms,
                                      Activation activation, const float* bias) {
    const DeviceActivations out(SortedRows(counts), experts.rows / 2);
    Multiply(
        experts, counts, inputs, tile_rows, sms,
        {.epilogue = SwiGlu{out.view(), activation}, .stored_rows = experts.rows, .bias = bias});
    EXPECT_EQ(out.WrittenOutside(), 0);
    return out.Read();
  }

  bool small_memory_ = false;
};

// Rows of experts that one token chose: one each, of one to eight experts.
std::vector<int> OneTokensRows(int used) {
  std::vector<int> counts(8, 0);
  for (int i = 0; i < used; ++i) counts[i * 7 / std::max(used - 1, 1)] = 1;
  return counts;
}
// The rows of such experts' inputs, one below the other.
std::vector<uint16_t> CompactRows(const std::vector<uint16_t>& inputs, int used, int cols) {
  std::vector<uint16_t> rows(size_t{1} * RoundUpTo(used, kExpertRowAlign) * cols, 0xFFFF);
  for (int i = 0; i < used; ++i) {
    std::copy_n(inputs.begin() + int64_t{i} * kExpertRowAlign * cols, cols,
                rows.begin() + int64_t{i} * cols);
  }
  return rows;
}

constexpr int kTileSizes[] = {32, 64, 128, 256};
// Rows of experts: none, few, whole tiles, and remainders for each of a kernel's shapes.
const std::vector<int>& ManyRows() {
  static const std::vector<int> counts = {0, 1, 300, 8, 0, 33, 128, 71};
  return counts;
}
// So few that one block an SM takes them.
const std::vector<int>& FewRows() {
  static const std::vector<int> counts = {0, 1, 0, 2, 0, 0, 9, 1};
  return counts;
}

class ExpertFormatTest : public ExpertProductTest,
                         public ::testing::WithParamInterface<TensorType> {
 protected:
  // Rows are not whole blocks of 128, nor all whole tiles.
  struct Shape {
    int rows;
    int cols;
  };
  std::vector<Shape> Shapes() const {
    std::vector<Shape> shapes = {{200, 96}, {300, 768}, {136, 2048}, {360, 2880}};
    const int64_t weights = GetTensorTypeInfo(GetParam()).block_weights;
    std::erase_if(shapes, [&](const Shape& s) { return s.cols % weights != 0; });
    return shapes;
  }
  // Factors of blocks; with some, kernels multiply by weights times another power of two.
  std::vector<float> Scales() const {
    if (GetParam() == TensorType::kMXFP4) return {1, 0x1p20f};
    if (HasSuperBlocks(FormatFor(GetParam()))) return {1, 0x1p-6};
    return {1};
  }
};

INSTANTIATE_TEST_SUITE_P(All, ExpertFormatTest, ::testing::ValuesIn([] {
                           std::vector<TensorType> types = {TensorType::kBF16, TensorType::kQ3_K};
                           types.insert(types.end(), std::begin(kFormatTypes),
                                        std::end(kFormatTypes));
                           return types;
                         }()),
                         [](const auto& info) {
                           return std::string(GetTensorTypeInfo(info.param).name);
                         });

TEST_P(ExpertFormatTest, RowsAreThoseOfDenseProducts) {
  for (const Shape& shape : Shapes()) {
    for (const float scale : Scales()) {
      const Experts experts(GetParam(), 8, shape.rows, shape.cols, scale, stream());
      for (const std::vector<int>* counts : {&ManyRows(), &FewRows()}) {
        const std::vector<uint16_t> inputs = Inputs(*counts, shape.cols, 1);
        const int stride = shape.rows + 4;
        const std::vector<float> expected = DenseF32(experts, *counts, inputs, shape.rows, stride);
        for (const int tile_rows : kTileSizes) {
          for (const int available : {sms(), 17, 3}) {
            ASSERT_TRUE(SameBits(
                MultiplyF32(experts, *counts, inputs, tile_rows, available, shape.rows, stride),
                expected))
                << shape.rows << " x " << shape.cols << ", scale " << scale << ", tiles of "
                << tile_rows << " rows, " << available << " SMs, stride " << stride;
          }
        }
      }
    }
  }
}

TEST_P(ExpertFormatTest, UnitsAreThoseOfDenseProducts) {
  for (const Shape& shape : Shapes()) {
    const Experts experts(GetParam(), 8, shape.rows, shape.cols, 1, stream());
    for (const std::vector<int>* counts : {&ManyRows(), &FewRows()}) {
      const std::vector<uint16_t> inputs = Inputs(*counts, shape.cols, 4 / experts.norm);
      for (const Activation activation :
           {Activation::kSilu, Activation::kGeluTanh, Activation::kClampedSwiglu}) {
        const std::vector<uint16_t> expected = DenseUnits(experts, *counts, inputs, activation);
        for (const int tile_rows : kTileSizes) {
          for (const int available : {sms(), 17, 3}) {
            ASSERT_TRUE(SameBits(MultiplyUnits(experts, *counts, inputs, tile_rows, available,
                                               activation, /*bias=*/nullptr),
                                 expected))
                << shape.rows << " x " << shape.cols << ", activation "
                << static_cast<int>(activation) << ", tiles of " << tile_rows << " rows, "
                << available << " SMs";
          }
        }
      }
    }
  }
}

// Without gathered rows, and with the sum of choices in the product.
TEST_P(ExpertFormatTest, OneTokensRowsAreThoseOfDenseProducts) {
  if (!kernels().fuses) GTEST_SKIP() << "rows are always gathered";
  for (const Shape& shape : Shapes()) {
    for (const float scale : Scales()) {
      const Experts experts(GetParam(), 8, shape.rows, shape.cols, scale, stream());
      const std::vector<float> bias = RandomFloats(size_t{8} * shape.rows, 21);
      const DeviceArray<float> device_bias(bias);
      for (const int used : {1, 2, 3, 8}) {
        const std::vector<int> counts = OneTokensRows(used);
        const std::vector<uint16_t> inputs = Inputs(counts, shape.cols, 1);
        const int stride = shape.rows + 4;
        const std::vector<float> expected = DenseF32(experts, counts, inputs, shape.rows, stride);
        const DeviceActivations x(CompactRows(inputs, used, shape.cols),
                                  RoundUpTo(used, kExpertRowAlign), shape.cols);
        const std::vector<float> weights = RandomFloats(16, 22);
        const DeviceArray<float> device_weights(weights);
        for (const int available : {sms(), 17, 3}) {
          SCOPED_TRACE(::testing::Message()
                       << shape.rows << " x " << shape.cols << ", scale " << scale << ", " << used
                       << " experts, " << available << " SMs");
          const DeviceArray<float> y(size_t{1} * SortedRows(counts) * stride);
          MultiplyOneToken(experts, counts, x, available,
                           {.epilogue = StoreF32{y.data(), stride},
                            .stored_rows = shape.rows,
                            .one_token = OneToken::kOwnRows});
          ASSERT_TRUE(SameBits(y.Read(), expected));
          for (const bool biased : {false, true}) {
            const DeviceArray<float> out(shape.rows + 4);
            constexpr float kScale = 1 / kSwiGluScale;
            MultiplyOneToken(
                experts, counts, x, available,
                {.epilogue = SumOfChoices{.weights = device_weights.data(),
                                          .bias = biased ? device_bias.data() : nullptr,
                                          .scale = kScale,
                                          .out = out.data()},
                 .stored_rows = shape.rows,
                 .one_token = OneToken::kOwnRows});
            // As LaunchCombineExperts.
            std::vector<float> sums = DeviceArray<float>(shape.rows + 4).Read();
            for (int row = 0; row < shape.rows; ++row) {
              float sum = 0;
              int choice = 0;
              for (int e = 0; e < 8; ++e) {
                if (counts[e] == 0) continue;
                const float value =
                    std::fma(kScale, expected[size_t{1} * choice * kExpertRowAlign * stride + row],
                             biased ? bias[size_t{1} * e * shape.rows + row] : 0.0f);
                sum = std::fma(weights[choice++], value, sum);
              }
              sums[row] = sum;
            }
            ASSERT_TRUE(SameBits(out.Read(), sums)) << (biased ? "with" : "without") << " a bias";
          }
        }
      }
    }
  }
}

TEST_P(ExpertFormatTest, OneTokensUnitsAreThoseOfManyTokens) {
  if (!kernels().fuses) GTEST_SKIP() << "rows are always gathered";
  for (const Shape& shape : Shapes()) {
    const Experts experts(GetParam(), 8, shape.rows, shape.cols, 1, stream());
    const int units = experts.rows / 2;
    const std::vector<float> bias_values = RandomFloats(size_t{8} * experts.rows, 9, 3);
    const DeviceArray<float> bias(bias_values);
    for (const int used : {1, 2, 3, 8}) {
      const std::vector<int> counts = OneTokensRows(used);
      // All experts have the first one's row.
      std::vector<uint16_t> inputs = Inputs(counts, shape.cols, 4 / experts.norm);
      for (int i = 1; i < used; ++i) {
        std::copy_n(inputs.begin(), shape.cols,
                    inputs.begin() + int64_t{i} * kExpertRowAlign * shape.cols);
      }
      const DeviceActivations x(CompactRows(inputs, 1, shape.cols), kExpertRowAlign, shape.cols);
      for (const Activation activation :
           {Activation::kSilu, Activation::kGeluTanh, Activation::kClampedSwiglu}) {
        for (const bool biased : {false, true}) {
          const float* const added = biased ? bias.data() : nullptr;
          const std::vector<uint16_t> expected = CompactRows(
              MultiplyUnits(experts, counts, inputs, 32, sms(), activation, added), used, units);
          for (const int available : {sms(), 17, 3}) {
            const DeviceActivations out(RoundUpTo(used, kExpertRowAlign), units);
            MultiplyOneToken(experts, counts, x, available,
                             {.epilogue = SwiGlu{out.view(), activation},
                              .stored_rows = experts.rows,
                              .bias = added,
                              .one_token = OneToken::kSharedRow});
            EXPECT_EQ(out.WrittenOutside(), 0);
            ASSERT_TRUE(SameBits(out.Read(), expected))
                << shape.rows << " x " << shape.cols << ", " << used << " experts, activation "
                << static_cast<int>(activation) << (biased ? ", a bias, " : ", ") << available
                << " SMs";
          }
        }
      }
    }
  }
}

TEST_P(ExpertFormatTest, SmallSharedMemoryChangesNoBit) {
  const Shape shape = Shapes().back();
  const Experts experts(GetParam(), 8, shape.rows, shape.cols, 1, stream());
  for (const std::vector<int>* counts : {&ManyRows(), &FewRows()}) {
    const std::vector<uint16_t> inputs = Inputs(*counts, shape.cols, 1);
    for (const int tile_rows : kTileSizes) {
      // With few SMs a block has many rows.
      for (const int available : {sms(), 17, 2}) {
        const auto multiply = [&](bool small) {
          small_memory_ = small;
          return MultiplyF32(experts, *counts, inputs, tile_rows, available, shape.rows,
                             shape.rows);
        };
        ASSERT_TRUE(SameBits(multiply(true), multiply(false)))
            << "tiles of " << tile_rows << " rows, " << available << " SMs";
      }
    }
  }
}

// activation(gate) * up * kSwiGluScale in double precision, as spec.h defines activations.
double Unit(double gate, double up, Activation activation) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  switch (activation) {
    case Activation::kSilu:
      return gate * sigmoid(gate) * up * double{kSwiGluScale};
    case Activation::kGeluTanh:
      return gate * sigmoid(2 * std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate)) * up *
             double{kSwiGluScale};
    case Activation::kClampedSwiglu:
      gate = std::min(gate, 7.0);
      return gate * sigmoid(1.702 * gate) * (std::clamp(up, -7.0, 7.0) + 1) * double{kSwiGluScale};
  }
  return 0;
}

TEST_F(ExpertProductTest, ABiasIsAddedBeforeTheActivation) {
  for (const TensorType type : {TensorType::kMXFP4, TensorType::kF16}) {
    const Experts experts(type, 8, 360, 2880, 1, stream());
    const std::vector<float> bias_values = RandomFloats(size_t{8} * experts.rows, 9, 3);
    const DeviceArray<float> bias(bias_values);
    for (const std::vector<int>* counts : {&ManyRows(), &FewRows()}) {
      const std::vector<uint16_t> inputs = Inputs(*counts, 2880, 3 / experts.norm);
      const std::vector<float> products =
          MultiplyF32(experts, *counts, inputs, 64, sms(), experts.rows, experts.rows);
      for (const Activation activation :
           {Activation::kSilu, Activation::kGeluTanh, Activation::kClampedSwiglu}) {
        for (const int tile_rows : kTileSizes) {
          SCOPED_TRACE(::testing::Message()
                       << GetTensorTypeInfo(type).name << ", activation "
                       << static_cast<int>(activation) << ", tiles of " << tile_rows << " rows");
          const std::vector<uint16_t> units =
              MultiplyUnits(experts, *counts, inputs, tile_rows, sms(), activation, bias.data());
          for (const int available : {17, 3}) {
            ASSERT_TRUE(SameBits(MultiplyUnits(experts, *counts, inputs, tile_rows, available,
                                               activation, bias.data()),
                                 units))
                << available << " SMs";
          }
          int64_t written = 0;
          for (const uint16_t unit : units) written += IsPoison(unit) ? 0 : 1;
          int64_t expected = 0;
          for (const ExpertTile& tile : TilesOf(*counts, /*tile_rows=*/1)) {
            if (tile.rows == 0) continue;
            for (int i = 0; i < experts.rows / 2; ++i) {
              const int row = i / 8 * kTileRows + i % 8;
              const auto sum = [&](int of) {
                return products[size_t{1} * tile.first_row * experts.rows + of] +
                       bias_values[size_t{1} * tile.expert * experts.rows + of];
              };
              const double gate = sum(row);
              const double value = Unit(gate, sum(row + 8), activation);
              // Rounding of F16, of the fast exponential, whose argument is at most five times a
              // gate whose unit is not negligible, and of the division.
              const double tolerance = 0x1p-11 + (8 + 10 * std::abs(gate)) * 0x1p-23;
              ASSERT_NEAR(HalfToFloat(units[size_t{1} * tile.first_row * experts.rows / 2 + i]),
                          value, tolerance * std::abs(value) + 0x1p-24)
                  << "row " << tile.first_row << ", unit " << i << ", gate " << gate << ", up "
                  << sum(row + 8);
              ++expected;
            }
          }
          EXPECT_EQ(written, expected);
        }
      }
    }
  }
}

TEST_F(ExpertProductTest, RefusesWhatItDoesNotTake) {
  for (const TensorType type : kFormatTypes) {
    const ExpertMatmulArgs args = {.experts = {.format = FormatFor(type), .rows = 16, .cols = 256},
                                   .expert_rows = 16,
                                   .max_tiles = 0};
    ExpertMatmulArgs tiled = args;
    tiled.tile_rows = 32;
    EXPECT_EQ(kernels().expert_gemm(args, traits(), stream()), cudaErrorInvalidValue);
    EXPECT_EQ(kernels().expert_gemm(tiled, traits(), stream()), cudaSuccess);
    tiled.tile_rows = 257;
    EXPECT_EQ(kernels().expert_gemm(tiled, traits(), stream()), cudaErrorInvalidValue);
    if (kernels().fuses) continue;
    tiled.tile_rows = 32;
    tiled.one_token = OneToken::kOwnRows;
    EXPECT_EQ(kernels().expert_gemm(tiled, traits(), stream()), cudaErrorInvalidValue);
    tiled.one_token = OneToken::kNo;
    tiled.epilogue = SumOfChoices{};
    EXPECT_EQ(kernels().expert_gemm(tiled, traits(), stream()), cudaErrorInvalidValue);
  }
}

}  // namespace
}  // namespace orcd::cuda
