// Measures the speed of the CPU backend on a model file: prefill, decode of one stream, decode of
// many streams.
//
// Each figure is the best of several repetitions (for decode, of single steps), so that other work
// on the machine disturbs it little. Beside it stand the mean, and the mean over the processor time
// of all threads, which other work disturbs even less.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "runtime/backend/backend.h"
#include "runtime/base/error.h"
#include "runtime/base/load_observer.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/model/model.h"

namespace orcd {
namespace {

struct Options {
  std::string model;
  int threads = 0;
  int prompt_tokens = 512;
  int decode_steps = 32;
  int streams = 16;
  int repetitions = 3;
  bool f32_kv = false;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double CpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Tokens per second over repetitions of equal work, each between Start and Stop.
class Rate {
 public:
  void Start() {
    start_ = Seconds();
    cpu_start_ = CpuSeconds();
  }
  void Stop(int64_t tokens) {
    const double seconds = Seconds() - start_;
    best_ = std::max(best_, static_cast<double>(tokens) / seconds);
    tokens_ += tokens;
    seconds_ += seconds;
    cpu_seconds_ += CpuSeconds() - cpu_start_;
  }
  void Print(const std::string& what) const {
    const double tokens = static_cast<double>(tokens_);
    std::printf("%-20s %8.1f tok/s best, %8.1f mean, %8.1f tok per CPU second\n", what.c_str(),
                best_, tokens / seconds_, tokens / cpu_seconds_);
  }

 private:
  double start_ = 0;
  double cpu_start_ = 0;
  double best_ = 0;
  int64_t tokens_ = 0;
  double seconds_ = 0;
  double cpu_seconds_ = 0;
};

// Owns a backend and the block tables of `streams` sequences that share no blocks.
class Streams {
 public:
  Streams(std::unique_ptr<Backend> backend, const ModelSpec& spec, int streams, int tokens)
      : backend_(std::move(backend)), blocks_(streams), window_blocks_(streams), prompt_(tokens) {
    const int per_stream = backend_->info().kv_blocks / streams;
    const int windows_per_stream = backend_->info().window_blocks / streams;
    for (int i = 0; i < streams; ++i) {
      blocks_[i].resize(per_stream);
      std::iota(blocks_[i].begin(), blocks_[i].end(), i * per_stream);
      // Each in its turn.
      for (int block = 0; block < per_stream && windows_per_stream > 0; ++block) {
        window_blocks_[i].push_back(i * windows_per_stream + block % windows_per_stream);
      }
    }
    for (int i = 0; i < tokens; ++i) prompt_[i] = (i * 7919 + 13) % spec.vocab;
    greedy_.temperature = 0;
  }

  // Runs the prompt of one stream, in steps as long as the backend allows.
  absl::Status Prefill(int stream) {
    for (int first = 0; first < static_cast<int>(prompt_.size());) {
      const int count =
          std::min(backend_->info().max_step_tokens, static_cast<int>(prompt_.size()) - first);
      StepSequence seq = Part(stream, first, std::span(prompt_).subspan(first, count));
      if (first == 0) {
        seq.start_params = &greedy_;
        seq.start_history = prompt_;
      }
      first += count;
      seq.sample = first == static_cast<int>(prompt_.size());
      ORCD_RETURN_IF_ERROR(Step({seq}));
    }
    return absl::OkStatus();
  }

  // Advances the first `streams` streams by one token each.
  absl::Status Decode(int streams, int position) {
    std::vector<StepSequence> seqs;
    for (int i = 0; i < streams; ++i) {
      seqs.push_back(Part(i, position, {&kPreviousSample, 1}));
      seqs.back().sample = true;
    }
    return Step(std::move(seqs));
  }

 private:
  StepSequence Part(int stream, int position, std::span<const int32_t> tokens) const {
    StepSequence seq;
    seq.slot = stream;
    seq.tokens = tokens;
    seq.start_position = position;
    seq.blocks = blocks_[stream];
    seq.window_blocks = window_blocks_[stream];
    return seq;
  }

  absl::Status Step(std::vector<StepSequence> seqs) {
    StepBatch batch;
    batch.seqs = std::move(seqs);
    ORCD_RETURN_IF_ERROR(backend_->Launch(batch));
    return backend_->Wait().status();
  }

  std::unique_ptr<Backend> backend_;
  std::vector<std::vector<int32_t>> blocks_;
  std::vector<std::vector<int32_t>> window_blocks_;
  std::vector<int32_t> prompt_;
  SamplingParams greedy_;
};

absl::Status MeasureDecode(Streams& streams, int count, const Options& options,
                           const std::string& what) {
  for (int i = 0; i < count; ++i) ORCD_RETURN_IF_ERROR(streams.Prefill(i));
  Rate rate;
  for (int i = 0; i < options.decode_steps; ++i) {
    rate.Start();
    ORCD_RETURN_IF_ERROR(streams.Decode(count, options.prompt_tokens + i));
    rate.Stop(count);
  }
  rate.Print(what);
  return absl::OkStatus();
}

absl::Status Measure(const Options& options) {
  NullLoadObserver observer;
  double start = Seconds();
  ORCD_ASSIGN_OR_RETURN(const auto model, Model::Load(options.model, {}, observer));
  std::printf("model opened and checked in %.2f s\n", Seconds() - start);

  const ModelSpec& spec = model->spec();
  BackendOptions backend_options;
  backend_options.max_seqs = options.streams;
  backend_options.threads = options.threads;
  backend_options.kv_type = options.f32_kv ? KvType::kF32 : KvType::kF16;
  const int64_t tokens_per_stream =
      options.prompt_tokens + options.decode_steps + backend_options.block_tokens;
  const KvLayout layout(spec.layers);
  backend_options.kv_cache_bytes = options.streams * tokens_per_stream *
                                   (layout.whole_size + layout.window_size) *
                                   (options.f32_kv ? 4 : 2);
  start = Seconds();
  ORCD_ASSIGN_OR_RETURN(auto backend, CreateCpuBackend(model, backend_options, observer));
  const BackendInfo info = backend->info();
  std::printf("backend ready in %.2f s: %s, %d threads\n", Seconds() - start, info.device.c_str(),
              info.threads);
  Streams streams(std::move(backend), spec, options.streams, options.prompt_tokens);

  Rate prefill;
  for (int i = 0; i < options.repetitions; ++i) {
    prefill.Start();
    ORCD_RETURN_IF_ERROR(streams.Prefill(0));
    prefill.Stop(options.prompt_tokens);
  }
  prefill.Print("prefill");
  ORCD_RETURN_IF_ERROR(MeasureDecode(streams, 1, options, "decode, 1 stream"));
  return MeasureDecode(streams, options.streams, options,
                       "decode, " + std::to_string(options.streams) + " streams");
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of the CPU backend on a model file");
  app.add_option("model", options.model, "GGUF file")->required();
  app.add_option("--threads", options.threads, "0: one a core")->capture_default_str();
  app.add_option("--prompt-tokens", options.prompt_tokens)->capture_default_str();
  app.add_option("--decode-steps", options.decode_steps)->capture_default_str();
  app.add_option("--streams", options.streams)->capture_default_str();
  app.add_option("--repetitions", options.repetitions, "Of the prefill")->capture_default_str();
  app.add_flag("--f32-kv", options.f32_kv, "Keep keys and values in F32");
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = Measure(options); !status.ok()) {
    std::cerr << "cpu_bench: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace orcd

int main(int argc, char** argv) { return orcd::Main(argc, argv); }
