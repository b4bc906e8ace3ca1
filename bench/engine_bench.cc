// Measures how fast the engine serves a model on a backend: a number of concurrent requests of a
// given length, end to end without the network. Counts the tokens that requests receive. The model
// is a file, or one of random weights in the shape of --arch and --size. With --schemas, each
// request has one of a file's JSON Schemas as its constraint, and runs beside a request without
// that generates as many tokens.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "bench/constrained_streams.h"
#include "bench/settled_stats.h"
#ifdef ORCD_CUDA
#include "cuda/cuda_backend.h"
#endif
#include "runtime/base/error.h"
#include "runtime/base/load_observer.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/cpu/cpu_reference.h"
#include "runtime/cpu/host_info.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/load_model.h"
#include "runtime/null/null_backend.h"
#include "testing/random_model/random_model.h"
#include "testing/schemas/schema_corpus.h"

namespace orcd {
namespace {

struct Options {
  // Empty: a random model of these options.
  std::string model;
  RandomModelOptions random;
  std::string backend = "cpu";
  // A kernel set of the backend cuda.
  std::string kernels = "auto";
  // Each is PARALLEL:PROMPT:NEW.
  std::vector<std::string> cases = {"1:16:128"};
  int repetitions = 3;
  float temperature = 0;
  bool cached = false;
  int64_t kv_cache_bytes = 0;
  // Empty: requests have no constraints.
  std::string schemas;
};

struct Case {
  int parallel = 0;
  int prompt = 0;
  int tokens = 0;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

absl::StatusOr<Case> ParseCase(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  Case result;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &result.parallel) ||
      !absl::SimpleAtoi(parts[1], &result.prompt) || !absl::SimpleAtoi(parts[2], &result.tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", text, "` is not PARALLEL:PROMPT:NEW, such as 64:128:128"));
  }
  return result;
}

// Counts the tokens that requests receive, and wakes the thread that waits for all requests.
class Tally {
 public:
  void Finished(const FinishedEvent& event) {
    const std::lock_guard lock(mutex_);
    if (!event.status.ok()) status_ = event.status;
    tokens_ += event.generated_tokens;
    prefill_seconds_ = std::max(prefill_seconds_, absl::ToDoubleSeconds(event.prefill_time));
    ++finished_;
    changed_.notify_all();
  }

  absl::Status WaitFor(int requests) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ >= requests; });
    return status_;
  }
  int64_t tokens() const { return tokens_; }
  // Longest time from a request's start to its first token.
  double prefill_seconds() const { return prefill_seconds_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int finished_ = 0;
  int64_t tokens_ = 0;
  double prefill_seconds_ = 0;
  absl::Status status_;
};

constexpr uint64_t kHashPrime = 1099511628211u;

// The sink of one request. The FNV-1a hash of its tokens tells whether two runs drew the same
// tokens.
class Sink : public GenerationSink {
 public:
  explicit Sink(Tally& tally) : tally_(tally) {}

  void OnStarted(const StartedEvent&) override {}
  void OnDelta(DeltaEvent event) override {
    for (const int32_t token : event.tokens) {
      hash_ = (hash_ ^ static_cast<uint32_t>(token)) * kHashPrime;
    }
  }
  void OnFinished(const FinishedEvent& event) override { tally_.Finished(event); }

  uint64_t hash() const { return hash_; }

 private:
  Tally& tally_;
  uint64_t hash_ = 14695981039346656037u;
};

// A clause on the experts that a step's tokens chose in a layer, since `before`; empty if the model
// has none.
std::string ExpertsSince(Engine& engine, const EngineStats& before) {
  const std::vector<LayerSpec>& layers = engine.model().spec().layers;
  const auto with_experts =
      std::ranges::count_if(layers, [](const LayerSpec& layer) { return layer.experts.count > 0; });
  if (with_experts == 0) return "";
  const EngineStats now = SettledStats(engine);
  uint64_t experts = 0;
  for (size_t i = 0; i < ExpertLoad::kBuckets; ++i) {
    experts += now.expert_load.experts[i] - before.expert_load.experts[i];
  }
  const double chosen =
      static_cast<double>(experts) / static_cast<double>(with_experts * (now.steps - before.steps));
  return absl::StrFormat("; %.1f experts a step and layer", chosen);
}

absl::Status RunCase(Engine& engine, const Case& what, const Options& options) {
  double best = 0;
  double best_prefill = 1e30;
  uint64_t hash = 0;
  const EngineStats before = SettledStats(engine);
  for (int repetition = 0; repetition < options.repetitions + 1; ++repetition) {
    Tally tally;
    std::vector<std::shared_ptr<Sink>> sinks;
    const double start = Seconds();
    for (int i = 0; i < what.parallel; ++i) {
      GenerationRequest request;
      request.id = absl::StrCat(repetition, "-", i);
      for (int p = 0; p < what.prompt; ++p) {
        request.prompt.push_back((p * 7919 + i * 104729 + 13) % engine.model().spec().vocab);
      }
      request.sampling.temperature = options.temperature;
      request.sampling.seed = i;
      request.stop.ignore_eog = true;
      request.stop.max_tokens = what.tokens;
      // Without it, every repetition computes the whole prompt.
      request.prefix_cache = options.cached;
      request.sink = sinks.emplace_back(std::make_shared<Sink>(tally));
      request.arrival = absl::Now();
      ORCD_RETURN_IF_ERROR(engine.Submit(std::move(request)));
    }
    ORCD_RETURN_IF_ERROR(tally.WaitFor(what.parallel));
    uint64_t drawn = sinks[0]->hash();
    for (int i = 1; i < what.parallel; ++i) drawn = (drawn ^ sinks[i]->hash()) * kHashPrime;
    if (repetition > 0 && hash != drawn) {
      return absl::InternalError("a repetition drew other tokens");
    }
    hash = drawn;
    // The first repetition is a warm-up.
    if (repetition == 0) continue;
    best = std::max(best, static_cast<double>(tally.tokens()) / (Seconds() - start));
    best_prefill = std::min(best_prefill, tally.prefill_seconds());
  }
  std::printf(
      "%4d x (%d in + %d out): %10.1f tok/s out; prefill %10.1f tok/s, %.2f ms; tokens %016llx%s\n",
      what.parallel, what.prompt, what.tokens, best, what.parallel * what.prompt / best_prefill,
      best_prefill * 1e3, static_cast<unsigned long long>(hash),
      ExpertsSince(engine, before).c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

// Measures the case with constraints and without, in turns. The prompts are as long as the case
// says and the outputs at most.
absl::Status RunConstrainedCase(Engine& engine, ConstraintCompiler& compiler,
                                const std::vector<ConstraintSpec>& specs, const Case& what,
                                const Options& options) {
  // One stream takes a sample of the schemas, many take each of them.
  const size_t requests = static_cast<size_t>(std::max(40, 4 * what.parallel));
  constexpr size_t kStride = 37;
  std::vector<StreamWork> with;
  for (size_t i = 0; i < requests; ++i) {
    with.push_back({.spec = &specs[i * kStride % specs.size()], .max_tokens = what.tokens});
  }
  StreamRunner runner(engine, &compiler, what.prompt, options.temperature);
  double best_with = 0;
  double best_without = 0;
  StreamResult constrained;
  int64_t forced = 0;
  for (int repetition = 0; repetition < options.repetitions + 1; ++repetition) {
    const int64_t forced_before = engine.stats().forced_tokens;
    ORCD_ASSIGN_OR_RETURN(constrained, runner.Run(with, what.parallel));
    forced = engine.stats().forced_tokens - forced_before;
    std::vector<StreamWork> without;
    for (const int length : constrained.lengths) without.push_back({.max_tokens = length});
    ORCD_ASSIGN_OR_RETURN(const StreamResult plain, runner.Run(without, what.parallel));
    // The first repetition is a warm-up, in which the schemas are compiled.
    if (repetition == 0) continue;
    best_with = std::max(best_with, constrained.rate());
    best_without = std::max(best_without, plain.rate());
  }
  std::printf(
      "%4d x (%d in + up to %d out), %zu requests: %10.1f tok/s constrained, %10.1f without, ratio "
      "%.3f; %.1f%% forced, %d ended\n",
      what.parallel, what.prompt, what.tokens, requests, best_with, best_without,
      best_with / best_without,
      100.0 * static_cast<double>(forced) / static_cast<double>(constrained.tokens),
      constrained.ended);
  std::fflush(stdout);
  return absl::OkStatus();
}

// Measures all cases with the schemas of the options' file.
absl::Status RunConstrainedCases(Engine& engine, const std::vector<Case>& cases,
                                 const Options& options) {
  ORCD_ASSIGN_OR_RETURN(const std::vector<SchemaCase> schemas, ReadSchemaCorpus(options.schemas));
  std::vector<ConstraintSpec> specs;
  for (const SchemaCase& schema : schemas) {
    specs.push_back({.rule = JsonSchemaRule{schema.schema}, .start = {}});
  }
  ORCD_ASSIGN_OR_RETURN(const std::unique_ptr<ConstraintCompiler> compiler,
                        ConstraintCompiler::Create(engine.model().tokenizer(), {}, nullptr));
  for (const Case& what : cases) {
    ORCD_RETURN_IF_ERROR(RunConstrainedCase(engine, *compiler, specs, what, options));
  }
  return absl::OkStatus();
}

// A random model's file, which goes with this object.
class RandomModelFile {
 public:
  static absl::StatusOr<std::unique_ptr<RandomModelFile>> Write(const RandomModelOptions& options) {
    const std::filesystem::path path =
        std::filesystem::temp_directory_path() / absl::StrCat("engine_bench-", getpid(), ".gguf");
    ORCD_RETURN_IF_ERROR(WriteRandomModel(options, path).status());
    return std::unique_ptr<RandomModelFile>(new RandomModelFile(path));
  }
  ~RandomModelFile() { std::filesystem::remove(path_); }
  RandomModelFile(const RandomModelFile&) = delete;
  RandomModelFile& operator=(const RandomModelFile&) = delete;

  std::string path() const { return path_; }

 private:
  explicit RandomModelFile(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path path_;
};

absl::Status Measure(const Options& options) {
  std::vector<Case> cases;
  LoadModelOptions load;
  load.model.with_text = true;
  load.model.threads = cpu::UsableCores();
  load.backend.kv_cache_bytes = options.kv_cache_bytes;
  load.backend.kernels = options.kernels;
  for (const std::string& text : options.cases) {
    ORCD_ASSIGN_OR_RETURN(const Case parsed, ParseCase(text));
    cases.push_back(parsed);
    load.backend.max_seqs = std::max(load.backend.max_seqs, parsed.parallel);
  }
  BackendMaker backend = {.make = CreateCpuBackend};
  if (options.backend == "null") backend = {.make = NullBackendFactory(), .self_check = false};
#ifdef ORCD_CUDA
  if (options.backend == "cuda") {
    backend = {.make = CreateCudaBackend, .make_reference = CreateCpuReference};
  }
#endif
  std::unique_ptr<RandomModelFile> random;
  std::string path = options.model;
  if (path.empty()) {
    ORCD_ASSIGN_OR_RETURN(random, RandomModelFile::Write(options.random));
    path = random->path();
  }
  NullLoadObserver observer;
  const double start = Seconds();
  ORCD_ASSIGN_OR_RETURN(
      const std::unique_ptr<Engine> engine,
      LoadModel(
          path, load, backend,
          [](const absl::Status& status) { std::cerr << status.message() << "\n"; }, observer));
  const BackendInfo& info = engine->backend_info();
  std::printf(
      "%s on %s, ready in %.2f s; weights %.3f GB, KV %.3f GB, workspace %.3f GB\n",
      absl::StrCat(engine->model().spec().name, " (", engine->model().quantization(), ")").c_str(),
      info.device.c_str(), Seconds() - start, static_cast<double>(info.weights_bytes) * 1e-9,
      static_cast<double>(info.kv_bytes) * 1e-9, static_cast<double>(info.workspace_bytes) * 1e-9);
  if (!options.schemas.empty()) return RunConstrainedCases(*engine, cases, options);
  for (const Case& what : cases) ORCD_RETURN_IF_ERROR(RunCase(*engine, what, options));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of the engine on a model");
  app.add_option("model", options.model, "GGUF file; else --arch, --size and --type say what");
  app.add_option("--arch", options.random.architecture, "As make-model's, for a random model")
      ->capture_default_str();
  app.add_option("--size", options.random.size, "The same")->capture_default_str();
  app.add_option("--type", options.random.type, "The same")->capture_default_str();
  app.add_option("--layers", options.random.layers, "The same");
  app.add_option("--window", options.random.window, "The same");
  app.add_option("--vocab-from", options.random.vocab_from, "The same");
  std::vector<std::string> backends = {"cpu", "null"};
#ifdef ORCD_CUDA
  backends.push_back("cuda");
#endif
  app.add_option("--kernels", options.kernels, "Kernel set of the GPU, or auto")
      ->capture_default_str();
  app.add_option("--backend", options.backend)
      ->check(CLI::IsMember(backends))
      ->capture_default_str();
  app.add_option("--case", options.cases, "PARALLEL:PROMPT:NEW")->capture_default_str();
  app.add_option("--repetitions", options.repetitions)->capture_default_str();
  app.add_option("--temperature", options.temperature)->capture_default_str();
  app.add_flag("--cached", options.cached, "The prompts are in the prefix cache");
  app.add_option("--kv-cache-bytes", options.kv_cache_bytes, "0: the backend chooses")
      ->capture_default_str();
  app.add_option("--schemas", options.schemas,
                 "JSON objects with `schema`, one a line, such as testing/schemas/corpus.jsonl");
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = Measure(options); !status.ok()) {
    std::cerr << "engine_bench: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace orcd

int main(int argc, char** argv) { return orcd::Main(argc, argv); }
