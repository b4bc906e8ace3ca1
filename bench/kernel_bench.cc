// Measures each matrix product of the GPU backend alone, or with --experts those of mixtures of
// experts: microseconds per launch, and the share of memory bandwidth or tensor core rate. Launches
// follow each other in a graph, each on weights that are not in the cache. By default the
// activations are zeros, the weights constant bytes, and the launches too few to heat the GPU. With
// --seconds both are random and the launches last until the power limit takes effect.
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/gpu_timing.h"
#include "cuda/device.h"
#include "cuda/device_memory.h"
#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/matmul.h"
#include "cuda/status.h"
#include "runtime/base/error.h"
#include "runtime/model/spec.h"

namespace orcd {
namespace {

using cuda::DeviceMemory;
using cuda::ExpertTile;
using cuda::MatmulArgs;
using cuda::StreamKWorkspace;
using cuda::TiledMatrix;
using cuda::TileFormat;

// Rates measured on an H200: a read of the whole memory, and matrix products.
constexpr double kBytesASecond = 4.3e12;
constexpr double kFlopsASecond = 782e12;
// More than the cache holds, so that weights are cold.
constexpr int64_t kColdBytes = int64_t{400} << 20;

struct Shape {
  const char* name;
  int rows;
  int cols;
  bool gated;
};

struct ModelShapes {
  const char* name;
  std::vector<Shape> shapes;
};

const std::vector<ModelShapes>& Models() {
  static const std::vector<ModelShapes> models = {
      {"7b",
       {{"gate+up", 37888, 3584, true},
        {"down", 3584, 18944, false},
        {"qkv", 4608, 3584, false},
        {"o", 3584, 3584, false},
        {"head", 152064, 3584, false}}},
      {"gemma-3-12b",
       {{"gate+up", 30720, 3840, true},
        {"down", 3840, 15360, false},
        {"qkv", 8192, 3840, false},
        {"o", 3840, 4096, false},
        {"head", 262144, 3840, false}}},
      {"qwen3-8b",
       {{"gate+up", 24576, 4096, true},
        {"down", 4096, 12288, false},
        {"qkv", 6144, 4096, false},
        {"o", 4096, 4096, false},
        {"head", 151936, 4096, false}}},
      {"1.5b",
       {{"gate+up", 17920, 1536, true},
        {"down", 1536, 8960, false},
        {"qkv", 2048, 1536, false},
        {"o", 1536, 1536, false},
        {"head", 151936, 1536, false}}},
      {"0.5b",
       {{"gate+up", 9728, 896, true},
        {"down", 896, 4864, false},
        {"qkv", 1152, 896, false},
        {"o", 896, 896, false},
        {"head", 151936, 896, false}}},
  };
  return models;
}

struct ExpertModel {
  const char* name;
  ExpertsSpec spec;
  int hidden;
};
constexpr ExpertModel kExpertModels[] = {
    {"qwen3-30b-a3b", {.count = 128, .used = 8, .ffn = 768}, 2048},
    {"gpt-oss-20b", {.count = 32, .used = 4, .ffn = 2880}, 2880}};

struct Format {
  const char* name;
  TileFormat format;
};
constexpr Format kFormats[] = {{"F16", TileFormat::kF16},        {"Q8_0", TileFormat::kQ8_0},
                               {"Q6_K", TileFormat::kQ6_K},      {"Q5_0", TileFormat::kQ5_0},
                               {"Q4_K", TileFormat::kQ4_K},      {"Q4_0", TileFormat::kQ4_0},
                               {"IQ4_XS", TileFormat::kIQ4_XS},  {"IQ4_NL", TileFormat::kIQ4_NL},
                               {"MXFP4", TileFormat::kMXFP4},    {"NVFP4", TileFormat::kNVFP4},
                               {"IQ3_S", TileFormat::kIQ3_S},    {"IQ3_XXS", TileFormat::kIQ3_XXS},
                               {"IQ2_S", TileFormat::kIQ2_S},    {"IQ2_XS", TileFormat::kIQ2_XS},
                               {"IQ2_XXS", TileFormat::kIQ2_XXS}};

struct Options {
  std::vector<std::string> models = {"7b", "1.5b", "0.5b"};
  std::vector<std::string> formats = {"F16", "Q8_0", "Q6_K", "Q5_0", "Q4_K"};
  std::vector<int> tokens = {1};
  double seconds = 0;
  std::string kernels = "auto";
  bool experts = false;
};

// Fills the memory with random numbers: bytes for quantised weights, else F16 numbers with the
// distribution of a layer's weights, times `scale`.
absl::Status FillRandom(const DeviceMemory& memory, TileFormat format, float scale) {
  std::vector<__half> some(size_t{1} << 20);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, scale);
  for (__half& value : some) {
    value = format == TileFormat::kF16 ? __float2half(normal(random))
                                       : __ushort_as_half(random() & 0xffff);
  }
  const int64_t bytes = static_cast<int64_t>(some.size() * sizeof(__half));
  for (int64_t at = 0; at < static_cast<int64_t>(memory.size()); at += bytes) {
    ORCD_RETURN_IF_CUDA_ERROR(
        cudaMemcpy(memory.data() + at, some.data(),
                   std::min<int64_t>(bytes, static_cast<int64_t>(memory.size()) - at),
                   cudaMemcpyHostToDevice),
        "random numbers");
  }
  return absl::OkStatus();
}

absl::Status MeasureOne(const cuda::DeviceInfo& device, const char* model, const Shape& shape,
                        const Format& format, int tokens, double warm_seconds) {
  TiledMatrix matrix = {.format = format.format,
                        .rows = shape.rows,
                        .cols = shape.cols,
                        .exponent = cuda::HasSuperBlocks(format.format) ? cuda::kLeastExponent : 0};
  if (shape.cols % cuda::UnitCols(format.format) != 0) return absl::OkStatus();
  const int64_t bytes = (matrix.bytes() + 255) / 256 * 256;
  const int copies = static_cast<int>(std::max<int64_t>(1, kColdBytes / bytes));
  ORCD_ASSIGN_OR_RETURN(const DeviceMemory weights,
                        DeviceMemory::Allocate(bytes * copies, "weights"));
  ORCD_RETURN_IF_CUDA_ERROR(cudaMemset(weights.data(), 0x11, weights.size()), "weights");
  const int padded = (tokens + 7) / 8 * 8;
  ORCD_ASSIGN_OR_RETURN(const DeviceMemory x,
                        DeviceMemory::Allocate(cuda::ActivationBytes(padded, shape.cols), "x"));
  ORCD_RETURN_IF_CUDA_ERROR(cudaMemset(x.data(), 0, x.size()), "x");
  if (warm_seconds > 0) {
    ORCD_RETURN_IF_ERROR(FillRandom(weights, format.format, 0.02f));
    ORCD_RETURN_IF_ERROR(FillRandom(x, TileFormat::kF16, 1));
  }
  const int splits = shape.gated || std::string(shape.name) == "head"
                         ? 1
                         : cuda::Splits(matrix.row_tiles(), shape.cols);
  ORCD_ASSIGN_OR_RETURN(const DeviceMemory y,
                        DeviceMemory::Allocate(int64_t{splits} * padded * shape.rows * 4, "y"));
  ORCD_ASSIGN_OR_RETURN(
      const DeviceMemory stream_k,
      DeviceMemory::Allocate(
          StreamKWorkspace::kSumsBytes + StreamKWorkspace::kReady * sizeof(int32_t), "sums"));
  ORCD_RETURN_IF_CUDA_ERROR(cudaMemset(stream_k.data(), 0, stream_k.size()), "sums");
  MatmulArgs args = {
      .prologue = cuda::Activations{.data = reinterpret_cast<__half*>(x.data()), .tokens = padded},
      .product = {.matrices = {matrix}, .num_matrices = 1, .splits = splits, .tokens = tokens}};
  args.stream_k = {
      .sums = stream_k.data(),
      .ready = reinterpret_cast<int32_t*>(stream_k.data() + StreamKWorkspace::kSumsBytes)};
  if (shape.gated) {
    args.epilogue = cuda::SwiGlu{{.data = reinterpret_cast<__half*>(y.data()), .tokens = padded}};
  } else {
    args.epilogue = cuda::StoreF32{
        reinterpret_cast<float*>(y.data()), shape.rows,
        tokens > cuda::kMaxPartialsTokens || device.kernels->gemm_sums(args.product)};
  }
  if (tokens > cuda::kMatvecTokens && !device.kernels->gemm_takes(format.format, tokens)) {
    return absl::OkStatus();
  }

  const int launches = std::max(20, std::min(copies, 200));
  ORCD_ASSIGN_OR_RETURN(
      const double seconds, LaunchSeconds(launches, warm_seconds, [&](int i, cudaStream_t stream) {
        matrix.data = weights.data() + i % copies * bytes;
        args.product.matrices[0] = matrix;
        return tokens <= cuda::kMatvecTokens ? device.kernels->matvec(args, device.traits, stream)
                                             : device.kernels->gemm(args, device.traits, stream);
      }));
  const double flops = 2.0 * shape.rows * shape.cols * tokens;
  const double floor =
      std::max(static_cast<double>(matrix.bytes()) / kBytesASecond, flops / kFlopsASecond);
  std::printf(
      "%-5s %-8s %-7s T %5d S %d: %9.2f us  %7.0f GB/s  %6.1f TFLOP/s  floor %8.2f us, %.2f\n",
      model, shape.name, format.name, tokens, splits, seconds * 1e6,
      static_cast<double>(matrix.bytes()) / seconds * 1e-9, flops / seconds * 1e-12, floor * 1e6,
      floor / seconds);
  std::fflush(stdout);
  return absl::OkStatus();
}

// Tiles of a step whose tokens choose experts at random, and the experts that are chosen.
std::vector<ExpertTile> RandomTiles(const ExpertsSpec& spec, int tokens, int tile_rows,
                                    std::mt19937& random, int& chosen) {
  std::vector<int> experts(spec.count);
  std::iota(experts.begin(), experts.end(), 0);
  std::vector<int> rows(spec.count, 0);
  for (int t = 0; t < tokens; ++t) {
    std::shuffle(experts.begin(), experts.end(), random);
    for (int i = 0; i < spec.used; ++i) ++rows[experts[i]];
  }
  std::vector<ExpertTile> tiles;
  int first_row = 0;
  for (int e = 0; e < spec.count; ++e) {
    for (int at = 0; at < rows[e]; at += tile_rows) {
      tiles.push_back({e, first_row + at, std::min(tile_rows, rows[e] - at)});
    }
    first_row +=
        (rows[e] + cuda::kExpertRowAlign - 1) / cuda::kExpertRowAlign * cuda::kExpertRowAlign;
    chosen += rows[e] > 0 ? 1 : 0;
  }
  tiles.resize(cuda::MaxExpertTiles(spec, tokens, tile_rows));
  return tiles;
}

absl::Status MeasureExperts(const cuda::DeviceInfo& device, const ExpertModel& model, bool gated,
                            const Format& format, int tokens, double warm_seconds) {
  const ExpertsSpec& spec = model.spec;
  const int rows = gated ? 2 * spec.ffn : model.hidden;
  TiledMatrix experts = {
      .format = format.format,
      .rows = spec.count * rows,
      .cols = gated ? model.hidden : spec.ffn,
      .exponent = cuda::HasSuperBlocks(format.format) ? cuda::kLeastExponent : 0};
  if (experts.cols % cuda::UnitCols(format.format) != 0) return absl::OkStatus();
  // A launch may read a small share of the weights, so that several launches' are in the cache.
  const int copies = static_cast<int>(std::max<int64_t>(1, 4 * kColdBytes / experts.bytes()));
  ORCD_ASSIGN_OR_RETURN(const DeviceMemory weights,
                        DeviceMemory::Allocate(experts.bytes() * copies, "weights"));
  ORCD_RETURN_IF_CUDA_ERROR(cudaMemset(weights.data(), 0x11, weights.size()), "weights");
  const int max_rows = cuda::MaxExpertRows(spec, tokens);
  ORCD_ASSIGN_OR_RETURN(const DeviceMemory x,
                        DeviceMemory::Allocate(cuda::ActivationBytes(max_rows, experts.cols), "x"));
  ORCD_RETURN_IF_CUDA_ERROR(cudaMemset(x.data(), 0, x.size()), "x");
  if (warm_seconds > 0) {
    ORCD_RETURN_IF_ERROR(FillRandom(weights, format.format, 0.02f));
    ORCD_RETURN_IF_ERROR(FillRandom(x, TileFormat::kF16, 1));
  }
  ORCD_ASSIGN_OR_RETURN(const DeviceMemory y,
                        DeviceMemory::Allocate(int64_t{4} * max_rows * rows, "y"));
  constexpr int kLaunches = 20;
  const int tile_rows = cuda::ExpertTileRows(spec, tokens);
  const int max_tiles = cuda::MaxExpertTiles(spec, tokens, tile_rows);
  const int64_t list_bytes = int64_t{max_tiles} * static_cast<int64_t>(sizeof(ExpertTile));
  ORCD_ASSIGN_OR_RETURN(const DeviceMemory lists,
                        DeviceMemory::Allocate(kLaunches * list_bytes, "tiles"));
  std::mt19937 random(1);
  int chosen = 0;
  for (int i = 0; i < kLaunches; ++i) {
    const std::vector<ExpertTile> tiles = RandomTiles(spec, tokens, tile_rows, random, chosen);
    ORCD_RETURN_IF_CUDA_ERROR(
        cudaMemcpy(lists.data() + i * list_bytes, tiles.data(), list_bytes, cudaMemcpyHostToDevice),
        "tiles");
  }
  cuda::ExpertMatmulArgs args = {
      .x = {.data = reinterpret_cast<__half*>(x.data()), .tokens = max_rows},
      .experts = experts,
      .expert_rows = rows,
      .max_tiles = max_tiles,
      .tile_rows = tile_rows,
      .epilogue = cuda::StoreF32{reinterpret_cast<float*>(y.data()), rows},
      .stored_rows = rows};
  if (gated) {
    args.epilogue = cuda::SwiGlu{{.data = reinterpret_cast<__half*>(y.data()), .tokens = max_rows}};
  }
  if (tokens == 1 && device.kernels->fuses && cuda::MultipliesOneToken(spec, model.hidden)) {
    args.one_token = gated ? cuda::OneToken::kSharedRow : cuda::OneToken::kOwnRows;
  }
  ORCD_ASSIGN_OR_RETURN(
      const double seconds, LaunchSeconds(kLaunches, warm_seconds, [&](int i, cudaStream_t stream) {
        args.experts.data = weights.data() + i % copies * experts.bytes();
        args.tiles = reinterpret_cast<const ExpertTile*>(lists.data() + i * list_bytes);
        return device.kernels->expert_gemm(args, device.traits, stream);
      }));
  const double bytes = static_cast<double>(experts.bytes()) / spec.count * chosen / kLaunches;
  const double flops = 2.0 * rows * experts.cols * tokens * spec.used;
  const double floor = std::max(bytes / kBytesASecond, flops / kFlopsASecond);
  std::printf("%-13s %-8s %-7s T %5d: %9.2f us  %7.0f GB/s  %6.1f TFLOP/s  floor %8.2f us, %.2f\n",
              model.name, gated ? "gate+up" : "down", format.name, tokens, seconds * 1e6,
              bytes / seconds * 1e-9, flops / seconds * 1e-12, floor * 1e6, floor / seconds);
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Measure(const Options& options) {
  ORCD_ASSIGN_OR_RETURN(const cuda::DeviceInfo device, cuda::SelectDevice("0", options.kernels));
  ORCD_RETURN_IF_CUDA_ERROR(device.kernels->prepare(device.traits, /*vocab=*/1),
                            "preparing kernels");
  std::printf("%s, kernels %s\n", device.name.c_str(), device.kernels->name);
  const auto wanted = [](const std::vector<std::string>& names, const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const ExpertModel& model : kExpertModels) {
    if (!options.experts) break;
    for (const Format& format : kFormats) {
      if (!wanted(options.formats, format.name)) continue;
      for (const int tokens : options.tokens) {
        for (const bool gated : {true, false}) {
          ORCD_RETURN_IF_ERROR(
              MeasureExperts(device, model, gated, format, tokens, options.seconds));
        }
      }
    }
  }
  for (const ModelShapes& model : Models()) {
    if (options.experts || !wanted(options.models, model.name)) continue;
    for (const Format& format : kFormats) {
      if (!wanted(options.formats, format.name)) continue;
      for (const Shape& shape : model.shapes) {
        for (const int tokens : options.tokens) {
          ORCD_RETURN_IF_ERROR(
              MeasureOne(device, model.name, shape, format, tokens, options.seconds));
        }
      }
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of the GPU backend's products");
  app.add_option("--model", options.models)->capture_default_str();
  app.add_option("--format", options.formats)->capture_default_str();
  app.add_option("--tokens", options.tokens)->capture_default_str();
  app.add_option("--kernels", options.kernels, "Kernel set, or auto")->capture_default_str();
  app.add_option("--seconds", options.seconds, "Warm the GPU up for so long, with random numbers");
  app.add_flag("--experts", options.experts,
               "Products of the mixtures of experts instead, whose tokens choose at random");
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = Measure(options); !status.ok()) {
    std::cerr << "kernel_bench: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace orcd

int main(int argc, char** argv) { return orcd::Main(argc, argv); }
