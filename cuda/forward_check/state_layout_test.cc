// Tests how recurrent states leave VRAM.
#include "cuda/state_layout.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "cuda/kernels/common/delta_net.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd::cuda {
namespace {

// Two recurrent layers around one with attention.
ModelSpec TwoNets() {
  ModelSpec spec;
  spec.layers.resize(3);
  for (const int i : {0, 2}) {
    spec.layers[i].delta = {.key_heads = 1, .value_heads = 2, .head_dim = 16, .conv = 4};
  }
  return spec;
}

// A state in VRAM that holds the numbers 0, 1, ….
std::vector<float> Numbers(const ModelSpec& spec) {
  std::vector<float> state(2 * DeltaStateFloats(spec.layers[0].delta));
  std::iota(state.begin(), state.end(), 0.0f);
  return state;
}

TEST(StateLayoutTest, RowsAreInOrderOfTheirPositionsAndMatricesTransposed) {
  const ModelSpec spec = TwoNets();
  const DeltaNetSpec& delta = spec.layers[0].delta;
  const int channels = delta.channels();
  const std::vector<float> device = Numbers(spec);
  // Positions 7, 8 and 9 are rows 3, 0 and 1.
  const std::vector<float> state = FromDeviceState(spec, device, 10);
  ASSERT_EQ(state.size(), static_cast<size_t>(spec.state_floats()));
  for (int layer = 0; layer < 2; ++layer) {
    const int64_t from = layer * DeltaStateFloats(delta);
    const int64_t to = layer * delta.state_floats();
    for (int i = 0; i < 3; ++i) {
      const int row = (7 + i) % 4;
      EXPECT_EQ(state[to + i * channels], device[from + row * channels]) << layer << " " << i;
      EXPECT_EQ(state[to + i * channels + 5], device[from + row * channels + 5]);
    }
    const float* const matrices = device.data() + from + 4 * channels;
    const float* const s = state.data() + to + 3 * channels;
    for (const int head : {0, 1}) {
      for (const int key : {0, 3, 15}) {
        for (const int value : {0, 7, 15}) {
          EXPECT_EQ(s[(head * 16 + key) * 16 + value], matrices[(head * 16 + value) * 16 + key]);
        }
      }
    }
  }
}

TEST(StateLayoutTest, PositionsBeforeTheFirstAreZeros) {
  const ModelSpec spec = TwoNets();
  const int channels = spec.layers[0].delta.channels();
  const std::vector<float> device = Numbers(spec);
  const std::vector<float> state = FromDeviceState(spec, device, 1);
  EXPECT_EQ(state[0], 0);
  EXPECT_EQ(state[2 * channels - 1], 0);
  EXPECT_EQ(state[2 * channels + 1], device[1]);
  const std::vector<float> empty = FromDeviceState(spec, device, 0);
  ASSERT_EQ(empty.size(), static_cast<size_t>(spec.state_floats()));
  EXPECT_THAT(empty, ::testing::Each(0.0f));
}

}  // namespace
}  // namespace orcd::cuda
