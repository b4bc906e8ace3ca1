// Measures the GPU's sampler: microseconds per launch, by number of rows and by sampling
// parameters, also with a mask that allows half of the tokens. Rows of logits come from two
// distributions: one like a model's, Zipf's law over shuffled tokens, and a normal one, in which a
// third of the vocabulary is likely.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "bench/gpu_timing.h"
#include "cuda/device.h"
#include "cuda/device_memory.h"
#include "cuda/kernels/common/sample.h"
#include "cuda/status.h"
#include "runtime/base/error.h"
#include "runtime/sampling/exact_exp.h"
#include "runtime/sampling/token_mask.h"

namespace orcd {
namespace {

using cuda::DeviceMemory;
using cuda::DrawEntry;

constexpr int kVocab = 152'064;

struct Options {
  std::vector<int> rows = {1, 64, 256};
  std::string kernels = "auto";
};

struct Asked {
  const char* name;
  float temperature;
  int top_k;
  float top_p;
  bool masked = false;
};
constexpr Asked kAsked[] = {{"greedy", 0, 0, 1},
                            {"temperature", 0.7f, 0, 1},
                            {"top_p 0.9", 0.7f, 0, 0.9f},
                            {"top_k 20", 0.7f, 20, 1},
                            {"top_k 20, top_p 0.8", 0.7f, 20, 0.8f},
                            {"greedy, masked", 0, 0, 1, true},
                            {"temperature, masked", 0.7f, 0, 1, true}};

std::vector<float> Logits(bool normal) {
  std::mt19937 random(1);
  std::vector<float> logits(kVocab);
  if (normal) {
    std::normal_distribution<float> bell;
    for (float& logit : logits) logit = bell(random);
  } else {
    constexpr float kExponent = 1.3f;
    for (int i = 0; i < kVocab; ++i) {
      logits[i] = 20 - kExponent * std::log(static_cast<float>(i + 1));
    }
    std::shuffle(logits.begin(), logits.end(), random);
  }
  return logits;
}

absl::Status MeasureOne(const cuda::DeviceInfo& device, const Asked& asked, const char* logits_name,
                        const DeviceMemory& logits, int rows) {
  std::vector<DrawEntry> entries(rows);
  for (int i = 0; i < rows; ++i) {
    DrawEntry& entry = entries[i];
    entry = {};
    entry.slot = i;
    entry.octave_scale = asked.temperature > 0 ? OctaveScale(asked.temperature) : 0;
    entry.top_k = asked.top_k;
    entry.typical_p = 1;
    entry.top_p = asked.top_p;
    entry.min_p_distance = -INFINITY;
    entry.filter_scale = OctaveScale(1);
    entry.mask = asked.masked ? i : -1;
    entry.logprobs = -1;
    entry.result = i;
    entry.seed_low = i;
  }
  const size_t entry_bytes = rows * sizeof(DrawEntry);
  ORCD_ASSIGN_OR_RETURN(const DeviceMemory draws, DeviceMemory::Allocate(entry_bytes, "draws"));
  ORCD_RETURN_IF_CUDA_ERROR(
      cudaMemcpy(draws.data(), entries.data(), entry_bytes, cudaMemcpyHostToDevice), "draws");
  ORCD_ASSIGN_OR_RETURN(const cuda::PinnedMemory results,
                        cuda::PinnedMemory::Allocate(rows * sizeof(cuda::DrawResult), "results"));
  ORCD_ASSIGN_OR_RETURN(const DeviceMemory flags,
                        DeviceMemory::Allocate(rows * 2 * sizeof(int32_t), "flags"));
  ORCD_RETURN_IF_CUDA_ERROR(cudaMemset(flags.data(), 0, flags.size()), "flags");
  const size_t mask_bytes = rows * TokenMask::WordsFor(kVocab) * sizeof(uint32_t);
  ORCD_ASSIGN_OR_RETURN(const DeviceMemory masks, DeviceMemory::Allocate(mask_bytes, "masks"));
  ORCD_RETURN_IF_CUDA_ERROR(cudaMemset(masks.data(), 0x5a, mask_bytes), "masks");
  cuda::SampleArgs args;
  args.draws = reinterpret_cast<const DrawEntry*>(draws.data());
  args.masks = reinterpret_cast<const uint32_t*>(masks.data());
  args.block_tokens = 1;
  args.not_finite = reinterpret_cast<const int32_t*>(flags.data());
  args.logits = reinterpret_cast<const float*>(logits.data());
  args.vocab = kVocab;
  args.rows = rows;
  args.results = reinterpret_cast<cuda::DrawResult*>(results.data());
  args.last_sample = reinterpret_cast<int32_t*>(flags.data()) + rows;

  ORCD_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::CreateStream());
  constexpr int kLaunches = 50;
  ORCD_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(stream.get(), 0, [&] {
                          cudaError_t error = cudaSuccess;
                          for (int i = 0; i < kLaunches && error == cudaSuccess; ++i) {
                            error = device.kernels->sample(args, device.traits, stream.get());
                          }
                          return error;
                        }));
  std::printf("%4d rows  %-6s  %-20s %8.1f us\n", rows, logits_name, asked.name,
              seconds * 1e6 / kLaunches);
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Measure(const Options& options) {
  ORCD_ASSIGN_OR_RETURN(const cuda::DeviceInfo device, cuda::SelectDevice("0", options.kernels));
  ORCD_RETURN_IF_CUDA_ERROR(device.kernels->prepare(device.traits, kVocab), "preparing kernels");
  std::printf("%s, kernels %s\n", device.name.c_str(), device.kernels->name);
  const int most = *std::max_element(options.rows.begin(), options.rows.end());
  constexpr size_t kRowBytes = kVocab * sizeof(float);
  for (const bool normal : {false, true}) {
    const std::vector<float> row = Logits(normal);
    ORCD_ASSIGN_OR_RETURN(const DeviceMemory logits,
                          DeviceMemory::Allocate(most * kRowBytes, "logits"));
    for (int i = 0; i < most; ++i) {
      ORCD_RETURN_IF_CUDA_ERROR(
          cudaMemcpy(logits.data() + i * kRowBytes, row.data(), kRowBytes, cudaMemcpyHostToDevice),
          "logits");
    }
    for (const Asked& asked : kAsked) {
      for (const int rows : options.rows) {
        ORCD_RETURN_IF_ERROR(MeasureOne(device, asked, normal ? "normal" : "Zipf", logits, rows));
      }
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of the GPU backend's sampler");
  app.add_option("--rows", options.rows)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--kernels", options.kernels, "Kernel set, or auto")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = Measure(options); !status.ok()) {
    std::cerr << "sampler_bench: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace orcd

int main(int argc, char** argv) { return orcd::Main(argc, argv); }
