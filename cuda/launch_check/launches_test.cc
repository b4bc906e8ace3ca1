// The launches of the portable kernels, for GPUs of every size, and those of sm90's products of few
// tokens: blocks, grids and shared memory are what the GPU has. Needs no GPU: calls of the CUDA
// runtime come here in place of it (CMakeLists.txt).
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "cuda/kernels/common/delta_net.h"
#include "cuda/kernels/common/kernel_set.h"
#include "cuda/kernels/common/launch.h"
#include "cuda/kernels/common/predict.h"
#include "cuda/kernels/portable/kernel_set.h"
#include "cuda/kernels/sm90/kernel_set.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd::cuda {
namespace {

// Shared memory of a block for which nobody asked, in bytes.
constexpr size_t kSharedBytes = 48 * 1024;
constexpr int kColumns = 256;

// A GPU that only looks at launches. One at a time.
struct Gpu {
  DeviceTraits traits;
  bool overlaps = false;
  std::map<const void*, size_t> limits = {};
  int launches = 0;
  // Bytes of the last launch, without those of fixed size.
  size_t shared_bytes = 0;
  std::vector<std::string> problems = {};

  void Expect(bool holds, const std::string& problem) {
    if (!holds) problems.push_back(problem);
  }
};
Gpu* gpu = nullptr;

void Look(const cudaLaunchConfig_t& config, const void* kernel) {
  ++gpu->launches;
  gpu->shared_bytes = config.dynamicSmemBytes;
  const dim3 block = config.blockDim;
  const unsigned threads = block.x * block.y * block.z;
  gpu->Expect(threads >= 32 && threads <= 1024 && threads % 32 == 0,
              std::to_string(threads) + " threads");
  const dim3 grid = config.gridDim;
  gpu->Expect(grid.x >= 1 && grid.x <= 0x7fffffff && grid.y >= 1 && grid.y <= 0xffff &&
                  grid.z >= 1 && grid.z <= 0xffff,
              "a grid of " + std::to_string(grid.x) + ", " + std::to_string(grid.y) + ", " +
                  std::to_string(grid.z));
  const auto limit = gpu->limits.find(kernel);
  const size_t most =
      limit == gpu->limits.end() ? kSharedBytes : std::max(kSharedBytes, limit->second);
  gpu->Expect(config.dynamicSmemBytes <= most, std::to_string(config.dynamicSmemBytes) +
                                                   " bytes of shared memory of " +
                                                   std::to_string(most));
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    gpu->Expect(attribute.id != cudaLaunchAttributeClusterDimension, "a cluster");
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      gpu->Expect((attribute.val.programmaticStreamSerializationAllowed != 0) == gpu->overlaps,
                  "begins early on a GPU that does not know it, or the reverse");
    }
  }
}

cudaError_t SetLimit(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > gpu->traits.smem_block) return cudaErrorInvalidValue;
  gpu->limits[kernel] = value;
  return cudaSuccess;
}

}  // namespace
}  // namespace orcd::cuda

// The linker gives all calls these in place of the functions themselves.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                       void** /*args*/) {
  orcd::cuda::Look(*config, kernel);
  return cudaSuccess;
}
cudaError_t __wrap_cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute,
                                        int value) {
  return orcd::cuda::SetLimit(kernel, attribute, value);
}
// orcd::cuda::LaunchesOverlap.
bool __wrap__ZN4orcd4cuda15LaunchesOverlapEv() { return orcd::cuda::gpu->overlaps; }
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}

namespace orcd::cuda {
namespace {

struct NamedGpu {
  std::string name;
  int cc;
  int sms;
  int smem_block_kib;
  int smem_sm_kib;
  // True if the driver translates PTX of 8.0, whose kernels do not overlap.
  bool translates = false;
};
void PrintTo(const NamedGpu& gpu, std::ostream* out) { *out << gpu.name; }

// CUDA C++ Programming Guide, "Compute Capabilities"; the number of SMs is that of the product.
std::vector<NamedGpu> Gpus() {
  return {{"A100", 80, 108, 163, 164},
          {"A100SliceOfMig", 80, 14, 163, 164},
          {"A10", 86, 72, 99, 100},
          {"Rtx3050", 86, 16, 99, 100},
          {"Orin", 87, 16, 163, 164},
          {"L4", 89, 58, 99, 100},
          {"Rtx4090", 89, 128, 99, 100},
          {"H100", 90, 132, 227, 228},
          {"H100Translates", 90, 132, 227, 228, true},
          {"B200", 100, 148, 227, 228},
          {"Thor", 110, 20, 227, 228},
          {"Rtx5090", 120, 170, 99, 100},
          {"Later", 130, 200, 227, 228, true}};
}

// Tests of a GPU's launches.
class LaunchesTest : public ::testing::TestWithParam<NamedGpu> {
 protected:
  // `sets`: of which the GPU takes the one for its compute capability.
  void Use(const NamedGpu& named, std::span<const KernelSet> sets) {
    gpu_.traits = {.cc = named.cc,
                   .sms = named.sms,
                   .smem_block = named.smem_block_kib * 1024,
                   .smem_sm = named.smem_sm_kib * 1024,
                   .l2 = 4 << 20,
                   .pdl = named.cc >= 90};
    gpu_.overlaps = named.cc >= 90 && !named.translates;
    gpu = &gpu_;
    for (const KernelSet& set : sets) {
      if (set.min_cc <= named.cc && named.cc <= set.max_cc) kernels_ = &set;
    }
    ASSERT_NE(kernels_, nullptr);
    ASSERT_EQ(kernels_->prepare(gpu_.traits, kernels_->max_vocab), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_GT(gpu_.launches, 0);
    gpu = nullptr;
  }

  const KernelSet& kernels() const { return *kernels_; }
  const DeviceTraits& traits() const { return gpu_.traits; }
  size_t shared_bytes() const { return gpu_.shared_bytes; }
  // Fails the test if a launch since the last call was refused or cannot run.
  void ExpectLaunched(cudaError_t error, const std::string& what) {
    EXPECT_EQ(error, cudaSuccess) << what;
    EXPECT_THAT(gpu_.problems, ::testing::IsEmpty()) << what;
    gpu_.problems.clear();
  }

  // Expects an SM to have room for its share of blocks of so much shared memory, if that is
  // possible at all, and for no more.
  void ExpectSpread(int blocks, int bytes, const std::string& what) {
    constexpr int kReserved = 1024;
    const int in_each = (blocks + traits().sms - 1) / traits().sms;
    EXPECT_LE(bytes, traits().smem_block) << what;
    if (shared_bytes() == 0) return;
    EXPECT_LE(in_each * (bytes + kReserved), traits().smem_sm) << what;
    EXPECT_GT((in_each + 1) * (bytes + kReserved), traits().smem_sm) << what;
  }
  // Shared memory of fixed size of the delta rule: three stages of 8 tokens' queries, keys, 32
  // values and two factors.
  static int RuleStageBytes(int head_dim) { return 3 * 8 * (2 * head_dim + 32 + 2) * 4; }

  // An address that no launch may follow.
  template <typename T>
  static T* Nowhere() {
    return reinterpret_cast<T*>(uintptr_t{1} << 40);
  }
  static std::vector<TileFormat> Formats() {
    std::vector<TileFormat> formats(kFormatCount);
    for (int i = 0; i < kFormatCount; ++i) formats[i] = static_cast<TileFormat>(i);
    return formats;
  }
  static MatmulArgs Args(TileFormat format, int rows, int cols, int tokens) {
    const TiledMatrix matrix = {
        .data = Nowhere<uint8_t>(), .format = format, .rows = rows, .cols = cols};
    MatmulArgs args;
    args.product = {.matrices = {matrix},
                    .num_matrices = 1,
                    .splits = Splits(matrix.row_tiles(), cols),
                    .tokens = tokens};
    args.prologue = Activations{.data = Nowhere<__half>(), .tokens = (tokens + 7) / 8 * 8};
    args.epilogue =
        StoreF32{.y = Nowhere<float>(), .stride = rows, .sum = tokens > kMaxPartialsTokens};
    return args;
  }
  static std::string Describe(const MatmulArgs& args) {
    const TiledMatrix& matrix = args.product.matrices[0];
    return "format " + std::to_string(static_cast<int>(matrix.format)) + ", " +
           std::to_string(matrix.rows) + " x " + std::to_string(matrix.cols) + ", " +
           std::to_string(args.product.tokens) + " tokens";
  }

 private:
  Gpu gpu_;
  const KernelSet* kernels_ = nullptr;
};

class PortableLaunchesTest : public LaunchesTest {
 protected:
  void SetUp() override { Use(GetParam(), portable::KernelSets()); }
};

INSTANTIATE_TEST_SUITE_P(Gpus, PortableLaunchesTest, ::testing::ValuesIn(Gpus()),
                         [](const auto& info) { return info.param.name; });

struct MatrixShape {
  int rows;
  int cols;
};
// Matrices of small and large models; the last is the output matrix of a large vocabulary.
constexpr MatrixShape kMatrices[] = {{16, 256},     {896, 4864},    {3584, 3584},
                                     {37888, 3584}, {3584, 18944},  {8192, 28672},
                                     {57344, 8192}, {16384, 53248}, {262144, 5376}};

TEST_P(PortableLaunchesTest, ProductsOfFewTokens) {
  for (const TileFormat format : Formats()) {
    for (const MatrixShape& shape : kMatrices) {
      for (const int tokens : {1, 2, 3, 8}) {
        MatmulArgs args = Args(format, shape.rows, shape.cols, tokens);
        ExpectLaunched(kernels().matvec(args, traits(), nullptr), Describe(args));
        if (args.product.splits > 1) continue;
        args.epilogue = SwiGlu{.out = {.data = Nowhere<__half>(), .tokens = 8}};
        ExpectLaunched(kernels().matvec(args, traits(), nullptr), Describe(args) + ", SwiGLU");
      }
    }
  }
}

class Sm90LaunchesTest : public LaunchesTest {
 protected:
  void SetUp() override { Use(GetParam(), {&sm90::kKernels, 1}); }
};
INSTANTIATE_TEST_SUITE_P(Gpus, Sm90LaunchesTest,
                         ::testing::Values(NamedGpu{"H100", 90, 132, 227, 228},
                                           NamedGpu{"Slice", 90, 16, 227, 228}),
                         [](const auto& info) { return info.param.name; });

// The GEMM takes what has no room for x, of F16 weights if not of its format.
TEST_P(Sm90LaunchesTest, ProductsOfFewTokens) {
  int of_gemm = 0;
  for (const TileFormat format : Formats()) {
    for (const MatrixShape& shape : kMatrices) {
      for (const int tokens : {1, 2, 3, 8}) {
        MatmulArgs args = Args(format, shape.rows, shape.cols, tokens);
        const bool takes = kernels().matvec_takes(args.product);
        if (!takes) {
          ++of_gemm;
          if (!kernels().gemm_takes(format, tokens)) {
            args.product.matrices[0].format = TileFormat::kF16;
          }
        }
        const auto multiply = takes ? kernels().matvec : kernels().gemm;
        ExpectLaunched(multiply(args, traits(), nullptr), Describe(args));
        if (args.product.splits > 1) continue;
        args.epilogue = SwiGlu{.out = {.data = Nowhere<__half>(), .tokens = 8}};
        ExpectLaunched(multiply(args, traits(), nullptr), Describe(args) + ", SwiGLU");
      }
    }
  }
  EXPECT_GT(of_gemm, 0);
}

TEST_P(PortableLaunchesTest, ProductsOfManyTokens) {
  for (const TileFormat format : Formats()) {
    for (const MatrixShape& shape : kMatrices) {
      for (const int tokens : {9, 16, 17, 32, 33, 64, 100, 200, 256, 512, 513, 4096, 16384}) {
        if (!kernels().gemm_takes(format, tokens)) continue;
        MatmulArgs args = Args(format, shape.rows, shape.cols, tokens);
        ExpectLaunched(kernels().gemm(args, traits(), nullptr), Describe(args));
        if (args.product.splits > 1) continue;
        args.epilogue = SwiGlu{.out = {.data = Nowhere<__half>(), .tokens = tokens}};
        ExpectLaunched(kernels().gemm(args, traits(), nullptr), Describe(args) + ", SwiGLU");
      }
    }
  }
}

TEST_P(PortableLaunchesTest, ProductsOfExperts) {
  for (const TileFormat format : Formats()) {
    for (const int cols : {kColumns, 2880, 7168}) {
      if (HasSuperBlocks(format) && cols % kColumns != 0) continue;
      for (const int tile_rows : {32, 64, 128, 256}) {
        for (const int tiles : {1, 40, 3000}) {
          constexpr int kExperts = 128;
          constexpr int kRows = 1536;
          const int rows = tile_rows * tiles;
          const ExpertMatmulArgs args = {
              .x = {.data = Nowhere<__half>(), .tokens = rows},
              .experts = {.data = Nowhere<uint8_t>(),
                          .format = format,
                          .rows = kExperts * kRows,
                          .cols = cols},
              .expert_rows = kRows,
              .tiles = Nowhere<ExpertTile>(),
              .max_tiles = tiles,
              .tile_rows = tile_rows,
              .epilogue = SwiGlu{.out = {.data = Nowhere<__half>(), .tokens = rows}},
              .stored_rows = kRows};
          ExpectLaunched(kernels().expert_gemm(args, traits(), nullptr),
                         "format " + std::to_string(static_cast<int>(format)) + ", " +
                             std::to_string(cols) + " columns, tiles of " +
                             std::to_string(tile_rows));
        }
      }
    }
  }
}

TEST_P(PortableLaunchesTest, Attention) {
  for (const int head_dim : kernels().head_dims) {
    for (const int group_heads : {1, 4, 7, kernels().max_group_heads}) {
      for (const int kv_heads : {1, 8}) {
        for (const bool split_queries : {false, true}) {
          // Heads of 256 values have one part.
          if (split_queries && head_dim > 128) continue;
          const std::string what = std::to_string(kv_heads) + " kv heads of " +
                                   std::to_string(head_dim) + ", groups of " +
                                   std::to_string(group_heads);
          const KvCacheView kv = {.data = Nowhere<__half>(),
                                  .blocks = 1000,
                                  .block_tokens = 16,
                                  .kv_heads = kv_heads,
                                  .head_dim = head_dim};
          const int32_t* const split = split_queries ? Nowhere<int32_t>() : nullptr;
          for (const int sequences : {1, 64, 512}) {
            for (const int key_splits : {1, 16}) {
              DecodeAttentionArgs args = {.sequences = sequences,
                                          .qkv = {.query_split = split,
                                                  .heads = kv_heads * group_heads,
                                                  .kv_heads = kv_heads,
                                                  .head_dim = head_dim},
                                          .kv = kv,
                                          .key_splits = key_splits,
                                          .partials = Nowhere<float>(),
                                          .counters = Nowhere<int32_t>()};
              const std::string of = what + ", " + std::to_string(sequences) + " sequences";
              ExpectLaunched(kernels().decode_attention(args, traits(), nullptr), of);
              args.q = Nowhere<__half>();
              args.q_lo = Nowhere<__half>();
              ExpectLaunched(kernels().decode_attention(args, traits(), nullptr), of + ", ready");
            }
          }
          for (const int tiles : {1, 8, 2000}) {
            ExpectLaunched(kernels().prefill_attention({.sequences = 1,
                                                        .query_tiles = tiles,
                                                        .q = Nowhere<__half>(),
                                                        .q_lo = Nowhere<__half>(),
                                                        .query_split = split,
                                                        .kv = kv,
                                                        .heads = kv_heads * group_heads},
                                                       traits(), nullptr),
                           what + ", " + std::to_string(tiles) + " tiles of queries");
          }
        }
      }
    }
  }
}

TEST_P(PortableLaunchesTest, DeltaNets) {
  for (const int head_dim : {32, 64, 128}) {
    for (const int value_heads : {1, 32, 64}) {
      for (const int conv : {1, 4, 8}) {
        const DeltaNetSpec spec = {.key_heads = value_heads / 2 + value_heads % 2,
                                   .value_heads = value_heads,
                                   .head_dim = head_dim,
                                   .conv = conv};
        const std::string what = std::to_string(value_heads) + " heads of " +
                                 std::to_string(head_dim) + ", convolution of " +
                                 std::to_string(conv);
        for (const int tokens : {1, 64, 129, 1024, 16384}) {
          for (const int sequences : {1, 512}) {
            const DeltaArgs args = {
                .spec = spec, .tokens = tokens, .sequences = std::min(tokens, sequences)};
            ExpectLaunched(LaunchDeltaInputs(args, nullptr), what + ", inputs");
            ExpectLaunched(LaunchDeltaRule(args, traits(), nullptr), what + ", rule");
            ExpectSpread(value_heads * head_dim / 32 * args.sequences,
                         RuleStageBytes(head_dim) + static_cast<int>(shared_bytes()), what);
            ExpectLaunched(LaunchDeltaGate(args, nullptr), what + ", gate");
            if (tokens <= 512) ExpectLaunched(LaunchDeltaToken(args, nullptr), what + ", token");
          }
        }
        const DeltaReplayArgs args = {.spec = spec, .layers = 96, .replays = kMaxReplays};
        ExpectLaunched(LaunchDeltaReplay(args, nullptr), what + ", replay");
      }
    }
  }
}

TEST_P(PortableLaunchesTest, GatedAttention) {
  for (const int cols : {16, 4096, 16384}) {
    for (const int tokens : {1, 512, 16384}) {
      ExpectLaunched(LaunchGateAttention({.cols = cols, .tokens = tokens}, nullptr),
                     std::to_string(cols) + " columns, " + std::to_string(tokens) + " tokens");
    }
  }
}

TEST_P(PortableLaunchesTest, Predictions) {
  for (const int hidden : {64, 5120, kMaxNormHidden}) {
    for (const int tokens : {1, 512, 16384}) {
      const std::string what =
          std::to_string(tokens) + " tokens of " + std::to_string(hidden) + " values";
      ExpectLaunched(LaunchPredictInputs({.hidden = hidden, .tokens = tokens}, nullptr), what);
      ExpectLaunched(LaunchKeepHidden({.runs = std::min(tokens, 576), .hidden = hidden}, nullptr),
                     what + ", kept");
    }
  }
  EXPECT_NE(LaunchPredictInputs({.hidden = kMaxNormHidden + 8, .tokens = 1}, nullptr), cudaSuccess);
  EXPECT_NE(LaunchKeepHidden({.runs = 1, .hidden = 66}, nullptr), cudaSuccess);
  for (const int count : {1, 128, 129, 512}) {
    ExpectLaunched(LaunchPredictTokens({.count = count}, nullptr), std::to_string(count));
  }
}

TEST_P(PortableLaunchesTest, Sampler) {
  for (const int rows : {1, 512}) {
    ExpectLaunched(kernels().sample({.step = {}, .vocab = kernels().max_vocab, .rows = rows},
                                    traits(), nullptr),
                   std::to_string(rows) + " rows");
  }
}

TEST_P(PortableLaunchesTest, Dequantise) {
  for (const TileFormat format : Formats()) {
    // F16 is copied.
    if (format == TileFormat::kF16) continue;
    const MatmulArgs args = Args(format, 3584, 3584, 600);
    ExpectLaunched(
        kernels().dequantise(args.product, 0, RowTiles(args.product), Nowhere<uint8_t>(), nullptr),
        Describe(args));
  }
}

}  // namespace
}  // namespace orcd::cuda
