#include "runtime/cpu/numeric_identity.h"

#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/cpu/kernels.h"
#include "runtime/sampling/counter_rng.h"

namespace orcd::cpu {
namespace {

std::vector<float> SomeValues(int64_t count, uint64_t seed) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(RandomBitsAt(seed, i) >> 40) / float{1 << 23} - 1;
  }
  return values;
}

// The results of a set of kernels for some values.
struct Computed {
  std::vector<float> products, gates, attended, convolved, state;
  bool operator==(const Computed&) const = default;
};

Computed ComputeWith(const KernelTable& kernels) {
  constexpr int64_t kRows = 5, kCols = 2048, kTokens = 3;
  Computed computed;
  const std::vector<float> weights = SomeValues(kRows * kCols, 1);
  const std::vector<float> x = SomeValues(kTokens * kCols, 2);
  computed.products.resize(kTokens * kRows);
  kernels.multiply({.weights = weights.data(),
                    .weight_stride = kCols,
                    .weight_rows = kRows,
                    .x = x.data(),
                    .x_stride = kCols,
                    .x_rows = kTokens,
                    .cols = kCols,
                    .y = computed.products.data(),
                    .y_stride = kRows,
                    .accumulate = false});
  for (const auto gate : {kernels.silu_multiply, kernels.gelu_multiply,
                          kernels.clamped_swiglu_multiply, kernels.sigmoid_multiply}) {
    std::vector<float> gates = SomeValues(kCols, 3);
    gate(x.data(), kCols, gates.data());
    computed.gates.insert(computed.gates.end(), gates.begin(), gates.end());
  }
  constexpr int kTaps = 4;
  std::vector<const float*> inputs;
  for (int tap = 0; tap < kTaps; ++tap) inputs.push_back(weights.data() + tap * kCols);
  computed.convolved.resize(kCols);
  kernels.convolve({.weights = weights.data(),
                    .inputs = inputs.data(),
                    .taps = kTaps,
                    .channels = kCols,
                    .out = computed.convolved.data()});
  // Two vectors of columns at a time, and one.
  constexpr int kStateDim = 48;
  const std::vector<float> decay = {0.5F, 0.9F, 0.99F};
  computed.state = SomeValues(kStateDim * kStateDim, 7);
  std::vector<float> out(kTokens * kStateDim);
  kernels.advance_delta_state({.state = computed.state.data(),
                               .head_dim = kStateDim,
                               .tokens = kTokens,
                               .q = x.data(),
                               .k = x.data() + kStateDim,
                               .v = x.data() + 2 * kStateDim,
                               .stride = kCols,
                               .decay = decay.data(),
                               .beta = decay.data(),
                               .factor_stride = 1,
                               .out = out.data(),
                               .out_stride = kStateDim});
  computed.state.insert(computed.state.end(), out.begin(), out.end());
  constexpr int kHeads = 3, kHeadDim = 64;
  const std::vector<float> q = SomeValues(kHeads * kHeadDim, 4);
  const std::vector<float> keys = SomeValues(2 * kHeadDim * kKvGroup, 5);
  const std::vector<float> values = SomeValues(2 * kHeadDim * kKvGroup, 6);
  std::vector<float> max(kHeads, -1e30F);
  std::vector<float> sum(kHeads, 0);
  computed.attended.assign(kHeads * kHeadDim, 0);
  AttendArgs args = {};
  args.q = q.data();
  args.heads = kHeads;
  args.head_dim = args.padded_head_dim = kHeadDim;
  args.scale = 0.125F;
  args.groups = 2;
  for (int i = 0; i < 2; ++i) {
    args.keys[i] = keys.data() + i * kHeadDim * kKvGroup;
    args.values[i] = values.data() + i * kHeadDim * kKvGroup;
    args.end[i] = kKvGroup - i;
  }
  args.max = max.data();
  args.sum = sum.data();
  args.out = computed.attended.data();
  kernels.attend_f32(args);
  computed.attended.insert(computed.attended.end(), sum.begin(), sum.end());
  return computed;
}

TEST(CpuNumericIdentityTest, NamesTheKvTypeWhereItIsNotTheUsualOne) {
  const std::string usual = CpuNumericIdentity(KvType::kF16);
  EXPECT_THAT(usual, ::testing::StartsWith("cpu-"));
  EXPECT_EQ(CpuNumericIdentity(KvType::kF32), usual + "-kv32");
}

// A worker of one name goes on with another's tokens.
TEST(CpuNumericIdentityTest, KernelsOfOneNameComputeTheSameBits) {
  const KernelTable* wide = nullptr;
  const KernelTable* narrow = nullptr;
  for (const KernelTable* kernels : SupportedKernels()) {
    if (std::string_view(kernels->name) == "avx512") wide = kernels;
    if (std::string_view(kernels->name) == "avx2") narrow = kernels;
  }
  if (wide == nullptr || narrow == nullptr) GTEST_SKIP() << "needs AVX-512";
  EXPECT_TRUE(ComputeWith(*wide) == ComputeWith(*narrow));
}

}  // namespace
}  // namespace orcd::cpu
