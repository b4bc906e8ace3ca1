// Tests that the rows of a file stand in VRAM where device_weights.h says. Each row of a matrix
// holds a number of its own, by which it is found again.
#include "cuda/device_weights.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <numeric>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "cuda/kernels/common/repack.h"
#include "runtime/base/load_observer.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cuda {
namespace {

constexpr int kHidden = 64;

// The numbers from `first` on.
std::vector<float> Numbers(int first, int count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), static_cast<float>(first));
  return numbers;
}
void Add(std::vector<float>& numbers, int first, int count) {
  const std::vector<float> more = Numbers(first, count);
  numbers.insert(numbers.end(), more.begin(), more.end());
}

// Gated attention, and delta nets of the two forms that files have.
class NumberedModel {
 public:
  NumberedModel() {
    LayerSpec layer = {.heads = 2,
                       .kv_heads = 1,
                       .head_dim = 32,
                       .ffn = 16,
                       .gated_attention = true,
                       .rope = {.dims = 16, .base = 1e6f}};
    spec_.hidden = kHidden;
    spec_.vocab = 16;
    spec_.layers = {layer, layer, layer};
    for (int i : {0, 2}) {
      spec_.layers[i].delta = {.key_heads = 2,
                               .value_heads = 6,
                               .head_dim = 32,
                               .conv = 4,
                               .pairing = HeadPairing::kDivision};
    }
    weights_.token_embd = weights_.output = Rows(Numbers(0, 16));
    weights_.tied = true;
    weights_.layers.resize(3);
    for (LayerWeights& w : weights_.layers) {
      w.ffn_gate = w.ffn_up = Rows(Numbers(0, 16));
      w.ffn_down = Rows(Numbers(0, kHidden), TensorType::kF32, 16);
    }
    FillFused(weights_.layers[0].delta);
    FillAttention(weights_.layers[1]);
    FillApart(weights_.layers[2].delta);
  }

  const ModelSpec& spec() const { return spec_; }
  const ModelWeights& weights() const { return weights_; }
  const DeltaNetSpec& delta() const { return spec_.layers[0].delta; }

 private:
  // A matrix whose rows hold these numbers.
  Matrix Rows(const std::vector<float>& numbers, TensorType type = TensorType::kF32,
              int cols = kHidden) {
    std::vector<std::byte>& bytes = bytes_.emplace_back();
    for (const float number : numbers) {
      for (int c = 0; c < cols; ++c) Append(bytes, number, type);
    }
    const auto rows = static_cast<int64_t>(numbers.size());
    return {type, rows, cols, bytes.data(), static_cast<int64_t>(bytes.size()) / rows};
  }
  static void Append(std::vector<std::byte>& bytes, float number, TensorType type) {
    const uint16_t half = FloatToHalf(number);
    const auto* const from = type == TensorType::kF16 ? reinterpret_cast<const std::byte*>(&half)
                                                      : reinterpret_cast<const std::byte*>(&number);
    bytes.insert(bytes.end(), from, from + (type == TensorType::kF16 ? 2 : 4));
  }

  void FillShared(DeltaNetWeights& w) {
    w.conv = Rows(Numbers(0, delta().channels()), TensorType::kF32, delta().conv);
    // Each element has a number of its own.
    auto* const values = reinterpret_cast<float*>(bytes_.back().data());
    for (int64_t i = 0; i < w.conv.rows * w.conv.cols; ++i) values[i] = static_cast<float>(i);
    w.output = Rows(Numbers(0, kHidden), TensorType::kF16, delta().value_size());
  }
  void FillFused(DeltaNetWeights& w) {
    std::vector<float> inputs, factors;
    for (int head = 0; head < 2; ++head) {
      Add(inputs, 32 * head, 32);
      Add(inputs, 64 + 32 * head, 32);
      Add(inputs, 128 + 96 * head, 96);
      Add(inputs, 320 + 96 * head, 96);
      Add(factors, 3 * head, 3);
      Add(factors, 6 + 3 * head, 3);
    }
    w.qkv_gate = Rows(inputs, TensorType::kF16);
    w.beta_alpha = Rows(factors, TensorType::kF16);
    FillShared(w);
  }
  void FillApart(DeltaNetWeights& w) {
    w.qkv = Rows(Numbers(0, 320), TensorType::kF16);
    w.gate = Rows(Numbers(320, 192));
    w.beta = Rows(Numbers(0, 6), TensorType::kF16);
    w.alpha = Rows(Numbers(6, 6), TensorType::kF32);
    FillShared(w);
  }
  void FillAttention(LayerWeights& w) {
    std::vector<float> numbers;
    for (int head = 0; head < 2; ++head) {
      Add(numbers, 32 * head, 32);
      Add(numbers, 64 + 32 * head, 32);
    }
    w.attn_q = Rows(numbers, TensorType::kF16);
    w.attn_k = w.attn_v = Rows(Numbers(0, 32));
    w.attn_output = Rows(Numbers(0, kHidden));
  }

  ModelSpec spec_;
  ModelWeights weights_;
  // Stay where they are.
  std::deque<std::vector<std::byte>> bytes_;
};

// The number of each row of `tiles`; a row of several fails the test.
std::vector<float> NumbersIn(const TiledMatrix& tiles) {
  const DeviceArray<float> values(static_cast<size_t>(tiles.rows) * tiles.cols);
  EXPECT_EQ(LaunchWeightValues(tiles, 0, tiles.rows, values.data(), nullptr), cudaSuccess);
  const std::vector<float> read = values.Read();
  std::vector<float> numbers;
  for (int row = 0; row < tiles.rows; ++row) {
    const float* const begin = &read[static_cast<size_t>(row) * tiles.cols];
    numbers.push_back(*begin);
    for (int c = 1; c < tiles.cols; ++c) EXPECT_EQ(begin[c], *begin) << row;
  }
  return numbers;
}

TEST(DeviceWeightsTest, RowsStandWhereKernelsWantThem) {
  const NumberedModel model;
  NullLoadObserver observer;
  const auto weights = DeviceWeights::Upload(model.spec(), model.weights(), /*readers=*/2,
                                             /*device=*/0, observer);
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::vector<float> factors = Numbers(0, 12);
  factors.resize(16);
  const DeltaNetSpec& spec = model.delta();
  for (const int i : {0, 2}) {
    SCOPED_TRACE(i);
    const DeviceLayer& layer = weights->layers()[i];
    EXPECT_EQ(NumbersIn(layer.delta.inputs[0]), Numbers(0, 320));
    EXPECT_EQ(NumbersIn(layer.delta.inputs[1]), Numbers(320, 192));
    EXPECT_EQ(NumbersIn(layer.delta.inputs[2]), factors);
    EXPECT_EQ(NumbersIn(layer.delta.output), Numbers(0, kHidden));
    std::vector<float> conv(spec.conv * spec.channels());
    ASSERT_EQ(cudaMemcpy(conv.data(), layer.delta.conv, conv.size() * sizeof(float),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    for (int j = 0; j < spec.conv; ++j) {
      for (int c = 0; c < spec.channels(); ++c) {
        ASSERT_EQ(conv[j * spec.channels() + c], static_cast<float>(c * spec.conv + j));
      }
    }
    EXPECT_EQ(layer.qkv[0].rows, 0);
    EXPECT_EQ(layer.attn_output.rows, 0);
  }
  const DeviceLayer& attention = weights->layers()[1];
  EXPECT_EQ(NumbersIn(attention.qkv[0]), Numbers(0, 64));
  EXPECT_EQ(NumbersIn(attention.attn_gate), Numbers(64, 64));
  EXPECT_EQ(attention.delta.inputs[0].rows, 0);
}

}  // namespace
}  // namespace orcd::cuda
