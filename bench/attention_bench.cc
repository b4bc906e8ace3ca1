// Measures attention of the GPU backend alone, with the models' shapes: decode steps with their
// prologue, prefill, and LaunchRope; microseconds per launch, and the share of memory bandwidth or
// tensor core rate. Launches follow each other in a graph, each in a layer of the KV cache that is
// not in the L2 cache. Queries, keys and values are zeros, so that the GPU stays cool.
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "bench/gpu_timing.h"
#include "cuda/device.h"
#include "cuda/device_memory.h"
#include "cuda/kernels/common/attention.h"
#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/step.h"
#include "cuda/status.h"
#include "cuda/step_tables.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

using cuda::AttentionRule;
using cuda::DeviceMemory;
using cuda::KvCacheView;
using cuda::QkvProduct;
using cuda::RopePairs;
using cuda::SequenceEntry;
using cuda::TokenEntry;

// Rates measured on an H200: a read of the whole memory, and matrix products.
constexpr double kBytesASecond = 4.3e12;
constexpr double kFlopsASecond = 782e12;
// More than the L2 cache holds.
constexpr int64_t kColdBytes = int64_t{400} << 20;
constexpr int kBlockTokens = 16;
// As of a product of 4,096 columns.
constexpr int kSplits = 4;

struct Shape {
  const char* name;
  int heads;
  int kv_heads;
  int head_dim;
  int window = 0;
  bool bias = false;
  bool norm = false;
  RopePairs pairs = RopePairs::kHalves;
};

constexpr Shape kShapes[] = {
    {"qwen2.5-7b", 28, 4, 128, 0, true},
    {"llama-3-8b", 32, 8, 128, 0, false, false, RopePairs::kNeighbours},
    {"qwen3-8b", 32, 8, 128, 0, false, true},
    {"gemma-3-12b", 16, 8, 256, 0, false, true},
    {"gemma-3-12b-window", 16, 8, 256, 1024, false, true},
};

struct Options {
  std::vector<std::string> models;
  std::vector<int> sequences = {1, 8, 64, 256};
  std::vector<int> positions = {1024, 4096};
  std::vector<int> tokens = {512, 4096};
  std::string kernels = "auto";
};

// A step over a cache of zeros, and all memory that its launches need.
class Step {
 public:
  // Sequences of `tokens` tokens each, the last at position `positions` - 1.
  static absl::StatusOr<Step> Make(const Shape& shape, int sequences, int tokens, int positions) {
    Step step;
    step.shape_ = shape;
    step.sequences_ = sequences;
    step.tokens_ = tokens;
    const int seq_blocks = (positions + kBlockTokens - 1) / kBlockTokens;
    step.view_ = {.blocks = sequences * seq_blocks,
                  .block_tokens = kBlockTokens,
                  .kv_heads = shape.kv_heads,
                  .head_dim = shape.head_dim};
    const int64_t layer_bytes = step.view_.Offset(1, 0, 0) * 2;
    step.layers_ = static_cast<int>(std::clamp<int64_t>(kColdBytes / layer_bytes, 1, 100));
    std::vector<SequenceEntry> entries;
    std::vector<TokenEntry> token_entries;
    std::vector<int32_t> blocks;
    const int first = positions - tokens;
    const int query_tiles = QueryTiles(shape, tokens);
    for (int s = 0; s < sequences; ++s) {
      entries.push_back({.slot = s,
                         .starts = 0,
                         .first_token = s * tokens,
                         .tokens = tokens,
                         .first_position = first,
                         .first_block = s * seq_blocks,
                         .first_query_tile = s * query_tiles,
                         .first_key_tile = s * cuda::KeyTiles(positions)});
      for (int t = 0; t < tokens; ++t) {
        token_entries.push_back({.id = 0, .sequence = s, .position = first + t});
      }
      // Neighbouring blocks of a sequence are not neighbours in memory.
      for (int b = 0; b < seq_blocks; ++b) blocks.push_back(b * sequences + s);
    }
    const int rows = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    const int all_tokens = sequences * tokens;
    const int64_t q_size = int64_t{1} * all_tokens * shape.heads * shape.head_dim;
    const int splits = all_tokens > cuda::kMaxPartialsTokens ? 1 : kSplits;
    ORCD_ASSIGN_OR_RETURN(step.entries_, Upload(entries));
    ORCD_ASSIGN_OR_RETURN(step.token_entries_, Upload(token_entries));
    ORCD_ASSIGN_OR_RETURN(step.blocks_, Upload(blocks));
    ORCD_ASSIGN_OR_RETURN(step.cache_, Zeros(step.layers_ * layer_bytes));
    ORCD_ASSIGN_OR_RETURN(step.partials_,
                          Zeros(int64_t{4} * splits * cuda::PartialsTokens(all_tokens) * rows));
    ORCD_ASSIGN_OR_RETURN(step.constants_, Zeros(int64_t{4} * (rows + positions * shape.head_dim)));
    ORCD_ASSIGN_OR_RETURN(step.q_, Zeros(q_size * 2));
    ORCD_ASSIGN_OR_RETURN(step.out_, Zeros(cuda::ActivationBytes((all_tokens + 7) / 8 * 8,
                                                                 shape.heads * shape.head_dim)));
    ORCD_ASSIGN_OR_RETURN(step.tiles_, Zeros(int64_t{4} * sequences * cuda::KeyTiles(positions) *
                                             shape.heads * (shape.head_dim + 2)));
    ORCD_ASSIGN_OR_RETURN(step.counters_, Zeros(int64_t{4} * sequences * (shape.kv_heads + 1)));
    ORCD_ASSIGN_OR_RETURN(step.query_split_, Upload(std::vector<int32_t>(shape.kv_heads, 1)));
    step.view_.data = reinterpret_cast<__half*>(step.cache_.data());
    float* const constants = reinterpret_cast<float*>(step.constants_.data());
    step.qkv_ = {
        .partials = reinterpret_cast<float*>(step.partials_.data()),
        .splits = splits,
        .partials_tokens = cuda::PartialsTokens(all_tokens),
        .bias = shape.bias ? constants : nullptr,
        .angles = constants + rows,
        .rope_dims = shape.head_dim,
        .rope_pairs = shape.pairs,
        .q_norm = shape.norm ? constants : nullptr,
        .k_norm = shape.norm ? constants : nullptr,
        .norm_eps = 1e-6f,
        .query_split = shape.bias ? reinterpret_cast<int32_t*>(step.query_split_.data()) : nullptr,
        .heads = shape.heads,
        .kv_heads = shape.kv_heads,
        .head_dim = shape.head_dim};
    return step;
  }

  int layers() const { return layers_; }
  cudaError_t Decode(const cuda::DeviceInfo& device, int layer, cudaStream_t stream) const {
    const LayerSpec spec = {
        .heads = shape_.heads, .kv_heads = shape_.kv_heads, .head_dim = shape_.head_dim};
    return device.kernels->decode_attention(
        {.step = tables(),
         .sequences = sequences_,
         .qkv = qkv_,
         .rule = rule(),
         .kv = view_,
         .not_finite = not_finite(),
         .layer = layer,
         .key_splits = cuda::DecodeShape(sequences_, spec).key_splits,
         .partials = reinterpret_cast<float*>(tiles_.data()),
         .counters = reinterpret_cast<int32_t*>(counters_.data()),
         .out = out()},
        device.traits, stream);
  }
  cudaError_t Rope(int layer, cudaStream_t stream) const {
    return cuda::LaunchRope({.step = tables(),
                             .qkv = qkv_,
                             .q = reinterpret_cast<__half*>(q_.data()),
                             .kv = view_,
                             .not_finite = not_finite(),
                             .layer = layer,
                             .tokens = sequences_ * tokens_},
                            stream);
  }
  cudaError_t Prefill(const cuda::DeviceInfo& device, int layer, cudaStream_t stream) const {
    return device.kernels->prefill_attention(
        {.step = tables(),
         .sequences = sequences_,
         .query_tiles = sequences_ * QueryTiles(shape_, tokens_),
         .q = reinterpret_cast<const __half*>(q_.data()),
         .query_split = qkv_.query_split,
         .rule = rule(),
         .kv = view_,
         .layer = layer,
         .heads = shape_.heads,
         .out = out()},
        device.traits, stream);
  }

 private:
  static int QueryTiles(const Shape& shape, int tokens) {
    return (tokens * (shape.heads / shape.kv_heads) + cuda::kQueryRows - 1) / cuda::kQueryRows;
  }
  static absl::StatusOr<DeviceMemory> Zeros(int64_t bytes) {
    ORCD_ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Allocate(bytes, "a step"));
    ORCD_RETURN_IF_CUDA_ERROR(cudaMemset(memory.data(), 0, memory.size()), "a step");
    return memory;
  }
  template <typename T>
  static absl::StatusOr<DeviceMemory> Upload(const std::vector<T>& values) {
    const size_t bytes = values.size() * sizeof(T);
    ORCD_ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Allocate(bytes, "a step"));
    ORCD_RETURN_IF_CUDA_ERROR(
        cudaMemcpy(memory.data(), values.data(), bytes, cudaMemcpyHostToDevice), "a step");
    return memory;
  }

  cuda::StepTables tables() const {
    return {.tokens = reinterpret_cast<const TokenEntry*>(token_entries_.data()),
            .sequences = reinterpret_cast<const SequenceEntry*>(entries_.data()),
            .blocks = reinterpret_cast<const int32_t*>(blocks_.data())};
  }
  AttentionRule rule() const {
    return {.score_scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim)),
            .window = shape_.window};
  }
  cuda::Activations out() const {
    return {.data = reinterpret_cast<__half*>(out_.data()),
            .tokens = (sequences_ * tokens_ + 7) / 8 * 8};
  }
  int32_t* not_finite() const {
    return reinterpret_cast<int32_t*>(counters_.data()) + sequences_ * shape_.kv_heads;
  }

  Shape shape_ = {};
  int sequences_ = 0;
  int tokens_ = 0;
  int layers_ = 0;
  KvCacheView view_;
  QkvProduct qkv_;
  DeviceMemory entries_;
  DeviceMemory token_entries_;
  DeviceMemory blocks_;
  DeviceMemory cache_;
  DeviceMemory partials_;
  DeviceMemory constants_;
  DeviceMemory q_;
  DeviceMemory out_;
  DeviceMemory tiles_;
  DeviceMemory counters_;
  DeviceMemory query_split_;
};

// Seconds of one launch, in a graph of one launch for each layer or more.
absl::StatusOr<double> Seconds(const Step& step,
                               const std::function<cudaError_t(int, cudaStream_t)>& launch) {
  return LaunchSeconds(
      std::max(20, step.layers()), /*warm_seconds=*/0,
      [&](int i, cudaStream_t stream) { return launch(i % step.layers(), stream); });
}

absl::Status MeasureDecode(const cuda::DeviceInfo& device, const Shape& shape, int sequences,
                           int positions) {
  ORCD_ASSIGN_OR_RETURN(const Step step, Step::Make(shape, sequences, 1, positions));
  ORCD_ASSIGN_OR_RETURN(const double seconds, Seconds(step, [&](int layer, cudaStream_t stream) {
                          return step.Decode(device, layer, stream);
                        }));
  const int seen = shape.window == 0 ? positions : std::min(positions, shape.window);
  const double bytes = 4.0 * sequences * seen * shape.kv_heads * shape.head_dim;
  std::printf("%-18s decode  %3d x %5d: %8.2f us  %5.0f GB/s, %.2f\n", shape.name, sequences,
              positions, seconds * 1e6, bytes / seconds * 1e-9, bytes / seconds / kBytesASecond);
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status MeasurePrefill(const cuda::DeviceInfo& device, const Shape& shape, int tokens) {
  ORCD_ASSIGN_OR_RETURN(const Step step, Step::Make(shape, 1, tokens, tokens));
  ORCD_ASSIGN_OR_RETURN(const double seconds, Seconds(step, [&](int layer, cudaStream_t stream) {
                          return step.Prefill(device, layer, stream);
                        }));
  ORCD_ASSIGN_OR_RETURN(const double rope, Seconds(step, [&](int layer, cudaStream_t stream) {
                          return step.Rope(layer, stream);
                        }));
  double pairs = 0;
  for (int t = 1; t <= tokens; ++t) pairs += shape.window == 0 ? t : std::min(t, shape.window);
  const double flops = 4 * pairs * shape.heads * shape.head_dim;
  std::printf("%-18s prefill %9d: %8.2f us  %5.1f TFLOP/s, %.2f; rope %8.2f us\n", shape.name,
              tokens, seconds * 1e6, flops / seconds * 1e-12, flops / seconds / kFlopsASecond,
              rope * 1e6);
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Measure(const Options& options) {
  ORCD_ASSIGN_OR_RETURN(const cuda::DeviceInfo device, cuda::SelectDevice("0", options.kernels));
  ORCD_RETURN_IF_CUDA_ERROR(device.kernels->prepare(device.traits, /*vocab=*/1),
                            "preparing kernels");
  std::printf("%s, kernels %s\n", device.name.c_str(), device.kernels->name);
  for (const Shape& shape : kShapes) {
    if (!options.models.empty() && std::ranges::count(options.models, shape.name) == 0) continue;
    for (const int sequences : options.sequences) {
      for (const int positions : options.positions) {
        ORCD_RETURN_IF_ERROR(MeasureDecode(device, shape, sequences, positions));
      }
    }
    for (const int tokens : options.tokens) {
      ORCD_RETURN_IF_ERROR(MeasurePrefill(device, shape, tokens));
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of the GPU backend's attention");
  app.add_option("--model", options.models, "All by default");
  app.add_option("--sequences", options.sequences, "Of decode steps")->capture_default_str();
  app.add_option("--positions", options.positions, "Of their sequences")->capture_default_str();
  app.add_option("--tokens", options.tokens, "Of prompts")->capture_default_str();
  app.add_option("--kernels", options.kernels, "Kernel set, or auto")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = Measure(options); !status.ok()) {
    std::cerr << "attention_bench: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace orcd

int main(int argc, char** argv) { return orcd::Main(argc, argv); }
