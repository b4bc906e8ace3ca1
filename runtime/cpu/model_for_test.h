// Models and steps for tests of the whole backend.
#ifndef ORCD_RUNTIME_CPU_MODEL_FOR_TEST_H_
#define ORCD_RUNTIME_CPU_MODEL_FOR_TEST_H_

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/base/load_observer.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/model/model.h"
#include "testing/random_model/random_model.h"

namespace orcd::cpu {

inline std::shared_ptr<const Model> LoadTestModel(const std::string& path, bool with_text = true) {
  NullLoadObserver observer;
  auto model = Model::Load(path, {.with_text = with_text}, observer);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

// Writes a random model of the smallest size; returns its path.
inline std::string WriteNanoModel(const std::string& type) {
  std::string path =
      ::testing::TempDir() + "cpu_" + type + "_" + std::to_string(getpid()) + ".gguf";
  auto written = WriteRandomModel({.size = "nano", .type = type, .threads = 1}, path);
  EXPECT_TRUE(written.ok()) << written.status();
  return path;
}

// Loads a random model of the smallest size. Its file is gone once nothing uses it.
inline std::shared_ptr<const Model> NanoModel(const std::string& type) {
  const std::string path = WriteNanoModel(type);
  auto model = LoadTestModel(path);
  unlink(path.c_str());
  return model;
}

inline BackendOptions SmallOptions() {
  BackendOptions options;
  options.max_seqs = 4;
  options.max_step_tokens = 128;
  options.kv_cache_bytes = 4 << 20;
  options.threads = 2;
  return options;
}

inline std::unique_ptr<Backend> MakeTestBackend(std::shared_ptr<const Model> model,
                                                const BackendOptions& options = SmallOptions()) {
  NullLoadObserver observer;
  auto backend = CreateCpuBackend(std::move(model), options, observer);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

// Tokens that look random and are in any vocabulary of at least 1000.
inline std::vector<int32_t> TestTokens(int count, int seed = 0) {
  std::vector<int32_t> tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = (i * 617 + seed * 331 + 7) % 1000;
  return tokens;
}

inline std::vector<int32_t> BlockRange(int32_t first, int count) {
  std::vector<int32_t> blocks(count);
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

// Keeps the logits that steps report, row after row.
class LogitsTap : public ActivationTap {
 public:
  void OnActivation(std::string_view name, int, std::span<const float> values, int64_t,
                    int64_t) override {
    if (name == "logits") logits_.insert(logits_.end(), values.begin(), values.end());
  }
  const std::vector<float>& logits() const { return logits_; }

 private:
  std::vector<float> logits_;
};

inline const SamplingParams& Greedy() {
  static const SamplingParams params = [] {
    SamplingParams greedy;
    greedy.temperature = 0;
    return greedy;
  }();
  return params;
}

// A sequence's first part, in the given slot; the caller changes fields as it needs.
inline StepSequence StartSequence(int slot, std::span<const int32_t> tokens,
                                  std::span<const int32_t> blocks,
                                  const SamplingParams& params = Greedy()) {
  StepSequence seq;
  seq.slot = slot;
  seq.start_params = &params;
  seq.start_history = tokens;
  seq.start_prompt_tokens = static_cast<int32_t>(tokens.size());
  seq.tokens = tokens;
  seq.blocks = blocks;
  return seq;
}

inline StepSequence ContinueSequence(int slot, int position, std::span<const int32_t> tokens,
                                     std::span<const int32_t> blocks) {
  StepSequence seq;
  seq.slot = slot;
  seq.start_position = position;
  seq.tokens = tokens;
  seq.blocks = blocks;
  return seq;
}

inline StepResult RunStep(Backend& backend, std::vector<StepSequence> seqs,
                          ActivationTap* tap = nullptr) {
  StepBatch batch;
  batch.seqs = std::move(seqs);
  batch.tap = tap;
  const absl::Status launched = backend.Launch(batch);
  EXPECT_TRUE(launched.ok()) << launched;
  if (!launched.ok()) return {};
  auto result = backend.Wait();
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : StepResult();
}

// Logits after each token of a sequence that runs in steps of `chunk` tokens.
inline std::vector<float> TeacherForce(Backend& backend, std::span<const int32_t> tokens,
                                       std::span<const int32_t> blocks, int chunk) {
  LogitsTap tap;
  for (size_t first = 0; first < tokens.size(); first += chunk) {
    const auto part = tokens.subspan(first, std::min<size_t>(chunk, tokens.size() - first));
    StepSequence seq = ContinueSequence(0, static_cast<int>(first), part, blocks);
    if (first == 0) seq.start_params = &Greedy();
    RunStep(backend, {seq}, &tap);
  }
  return tap.logits();
}

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_MODEL_FOR_TEST_H_
