// Measures what guessed tokens gain: the same requests with guesses and without, in alternating
// turns on one engine, and the share of guesses that were right. Run it at the root of the tree.
//
//   speculation_bench MODEL [--draft ngram|FILE] [--text rewrite|quote|free] [--tokens N]
//                     [--streams N] [--turns N] [--temperature T] [--backend cpu|cuda]
//
// The rate of a turn counts from the first token of any stream to the last of all. Its prompts are
// in the prefix cache. A turn that draws other tokens than the first one is an error.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#ifdef ORCD_CUDA
#include "cuda/cuda_backend.h"
#endif
#include "runtime/base/error.h"
#include "runtime/base/load_observer.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/cpu/cpu_reference.h"
#include "runtime/cpu/host_info.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/load_model.h"

namespace orcd {
namespace {

// Files of the source tree that prompts quote.
constexpr char kProgram[] = "tools/fetch-model";
constexpr char kDocument[] = "docs/transport.md";
constexpr int kProgramLines = 200;

struct Options {
  std::string model;
  std::string draft = "ngram";
  std::string text = "rewrite";
  std::string backend = "cpu";
  int tokens = 512;
  int streams = 1;
  int turns = 5;
  float temperature = 0;
  int64_t kv_cache_bytes = 0;
};

absl::StatusOr<std::string> FirstLines(const std::string& path, int lines) {
  std::ifstream file(path);
  std::string text;
  std::string line;
  for (int i = 0; i < lines && std::getline(file, line); ++i) absl::StrAppend(&text, line, "\n");
  if (!text.empty()) return text;
  return absl::NotFoundError(absl::StrCat(path, " cannot be read; run this at the tree's root"));
}

absl::StatusOr<std::string> MakeMessage(const std::string& text) {
  if (text == "rewrite") {
    ORCD_ASSIGN_OR_RETURN(const std::string program, FirstLines(kProgram, kProgramLines));
    return absl::StrCat(
        "Rename the class FetchError to SourceError in this program. Print the "
        "whole program with the new name, and nothing else.\n\n```python\n",
        program, "```\n");
  }
  if (text == "quote") {
    ORCD_ASSIGN_OR_RETURN(const std::string document, FirstLines(kDocument, kProgramLines));
    return absl::StrCat(
        "Quote, word for word, every sentence of this document that has a number "
        "in it.\n\n",
        document);
  }
  return std::string("Write a long story about a lighthouse keeper who finds a letter.");
}

// The message as the model's chat, or as it is for a model without one.
absl::StatusOr<std::vector<int32_t>> MakePrompt(const Model& model, const std::string& text) {
  ORCD_ASSIGN_OR_RETURN(std::string message, MakeMessage(text));
  if (!model.chat_template().supported()) return model.tokenizer().Encode(message, false);
  ChatRequest chat;
  chat.messages.push_back({.role = ChatRole::kUser, .content = std::move(message)});
  ORCD_ASSIGN_OR_RETURN(const std::vector<PromptPiece> pieces,
                        model.chat_template().Render(chat, absl::Now()));
  return EncodePrompt(model.tokenizer(), pieces);
}

// The output that the streams of a turn got, and its time.
struct Turn {
  double seconds = 0;
  int64_t tokens = 0;
  int64_t guesses = 0;
  int64_t right = 0;
  // FNV-1a hashes of the streams' tokens.
  std::vector<uint64_t> hashes;

  double rate() const { return static_cast<double>(tokens) / seconds; }
};

// Collects a turn. Any thread may call.
class TurnTally {
 public:
  explicit TurnTally(int streams) : left_(streams) {
    turn_.hashes.assign(static_cast<size_t>(streams), 14695981039346656037u);
  }

  void OnTokens(size_t stream, const std::vector<int32_t>& tokens) {
    const std::lock_guard lock(mutex_);
    if (begin_ == Clock::time_point()) begin_ = Clock::now();
    for (const int32_t token : tokens) {
      turn_.hashes[stream] = (turn_.hashes[stream] ^ static_cast<uint32_t>(token)) * 1099511628211u;
    }
  }
  void OnFinished(const FinishedEvent& event) {
    const std::lock_guard lock(mutex_);
    status_.Update(event.status);
    // The first token of each stream comes with its prompt.
    turn_.tokens += std::max(event.generated_tokens - 1, 0);
    turn_.guesses += event.draft_tokens;
    turn_.right += event.accepted_draft_tokens;
    turn_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    --left_;
    changed_.notify_all();
  }
  absl::StatusOr<Turn> Await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return left_ == 0; });
    if (!status_.ok()) return status_;
    return turn_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::mutex mutex_;
  std::condition_variable changed_;
  int left_;
  Clock::time_point begin_;
  Turn turn_;
  absl::Status status_;
};

class TallySink : public GenerationSink {
 public:
  TallySink(std::shared_ptr<TurnTally> tally, size_t stream)
      : tally_(std::move(tally)), stream_(stream) {}
  void OnStarted(const StartedEvent&) override {}
  void OnDelta(DeltaEvent event) override { tally_->OnTokens(stream_, event.tokens); }
  void OnFinished(const FinishedEvent& event) override { tally_->OnFinished(event); }

 private:
  const std::shared_ptr<TurnTally> tally_;
  const size_t stream_;
};

// `name` is another one in each turn.
absl::StatusOr<Turn> RunTurn(Engine& engine, const std::vector<int32_t>& prompt,
                             const Options& options, const std::string& name, bool speculate) {
  const auto tally = std::make_shared<TurnTally>(options.streams);
  for (int i = 0; i < options.streams; ++i) {
    GenerationRequest request;
    request.id = absl::StrCat(name, "-", i);
    request.prompt = prompt;
    request.sampling.temperature = options.temperature;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.stop.max_tokens = options.tokens;
    request.speculate = speculate;
    request.sink = std::make_shared<TallySink>(tally, static_cast<size_t>(i));
    request.arrival = absl::Now();
    ORCD_RETURN_IF_ERROR(engine.Submit(std::move(request)));
  }
  return tally->Await();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::Status MeasureTurns(Engine& engine, const Options& options) {
  ORCD_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt,
                        MakePrompt(engine.model(), options.text));
  // Fills the prefix cache.
  ORCD_ASSIGN_OR_RETURN(const Turn first, RunTurn(engine, prompt, options, "first", false));
  std::vector<double> with;
  std::vector<double> without;
  std::vector<double> ratios;
  Turn guessed;
  for (int i = 0; i < options.turns; ++i) {
    double rates[2] = {};
    // Each order comes as often as the other, since a machine's speed drifts.
    for (const bool speculate : {i % 2 == 0, i % 2 != 0}) {
      const std::string name = absl::StrCat("turn ", i, speculate ? " with" : " without");
      ORCD_ASSIGN_OR_RETURN(const Turn turn, RunTurn(engine, prompt, options, name, speculate));
      if (turn.hashes != first.hashes) {
        return absl::InternalError(absl::StrCat(name, " guesses drew other tokens"));
      }
      rates[speculate ? 1 : 0] = turn.rate();
      if (speculate) {
        guessed.guesses += turn.guesses;
        guessed.right += turn.right;
      }
    }
    without.push_back(rates[0]);
    with.push_back(rates[1]);
    ratios.push_back(rates[1] / rates[0]);
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  const auto percent = [](int64_t part, int64_t whole) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
  };
  std::printf("%s, %d x (%zu in + %lld out), %s: %.1f tok/s with guesses, %.1f without, ",
              options.text.c_str(), options.streams, prompt.size(),
              static_cast<long long>(first.tokens / options.streams + 1), options.draft.c_str(),
              Median(with), Median(without));
  std::printf("ratio %.3f (%.3f to %.3f); %.1f%% of %lld guesses right, %.1f%% of tokens guessed\n",
              Median(ratios), *least, *most, percent(guessed.right, guessed.guesses),
              static_cast<long long>(guessed.guesses / options.turns),
              percent(guessed.right / options.turns, first.tokens));
  return absl::OkStatus();
}

absl::Status Measure(const Options& options) {
  LoadModelOptions load;
  load.model.threads = cpu::UsableCores();
  load.backend.threads = cpu::UsableCores();
  load.backend.max_seqs = options.streams;
  load.backend.kv_cache_bytes = options.kv_cache_bytes;
  load.engine.max_context = 1 << 14;
  load.draft.kind = options.draft == "ngram" ? DraftKind::kNgram : DraftKind::kModel;
  if (options.draft != "ngram") load.draft.path = options.draft;
  BackendMaker backend = {.make = CreateCpuBackend};
#ifdef ORCD_CUDA
  if (options.backend == "cuda") {
    backend = {.make = CreateCudaBackend, .make_reference = CreateCpuReference};
  }
#endif
  NullLoadObserver observer;
  ORCD_ASSIGN_OR_RETURN(
      const std::unique_ptr<Engine> engine,
      LoadModel(
          options.model, load, backend,
          [](const absl::Status& status) { std::cerr << status.message() << "\n"; }, observer));
  const SpeculationInfo info = engine->speculation();
  if (!info.warning.empty()) return absl::FailedPreconditionError(info.warning);
  std::printf("%s on %s\n", engine->model().spec().name.c_str(),
              engine->backend_info().device.c_str());
  return MeasureTurns(*engine, options);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("What guessed tokens gain");
  app.add_option("model", options.model, "GGUF file")->required();
  app.add_option("--draft", options.draft, "ngram, or the GGUF file of a smaller model")
      ->capture_default_str();
  app.add_option("--text", options.text,
                 "rewrite: a program with one name changed; quote: sentences of a document; free: "
                 "a story")
      ->check(CLI::IsMember({"rewrite", "quote", "free"}))
      ->capture_default_str();
  app.add_option("--tokens", options.tokens, "Most tokens of a stream")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--streams", options.streams, "Requests at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--turns", options.turns, "Turns with guesses, and as many without")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--temperature", options.temperature)->capture_default_str();
  app.add_option("--kv-cache-bytes", options.kv_cache_bytes, "0: the backend chooses")
      ->capture_default_str();
  std::vector<std::string> backends = {"cpu"};
#ifdef ORCD_CUDA
  backends.push_back("cuda");
#endif
  app.add_option("--backend", options.backend)
      ->check(CLI::IsMember(backends))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = Measure(options); !status.ok()) {
    std::cerr << "speculation_bench: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace orcd

int main(int argc, char** argv) { return orcd::Main(argc, argv); }
