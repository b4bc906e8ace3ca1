// Measures what guessed tokens gain: the same requests with guesses and without, in alternating
// turns on one engine, and the share of guesses that were right. Run it at the root of the tree.
//
//   speculation_bench MODEL [--draft ngram|mtp|FILE] [--text rewrite,quote,free,records]
//                     [--tokens N]
//                     [--streams N,N] [--turns N] [--temperature T] [--backend cpu|cuda]
//   speculation_bench MODEL --stand-in …
//   speculation_bench MODEL --draft scripted [--acceptance P,P] [--prompt N] …
//   speculation_bench MODEL --draft mtp --costs [--prompt N] …
//
// The rate of a turn counts from the first token of any stream to the last of all. Its prompts are
// in the prefix cache. A turn that draws other tokens than the first one is an error.
//
// The text `records` is a JSON document, and a schema is the requests' constraint.
//
// With --stand-in the model may be one of random weights: what n-grams guess is looked up in the
// answer that the text asks for, which a good model would give, and is right for the model's own
// tokens where it is right for that answer.
//
// A scripted drafter knows the tokens, and each of its guesses is right with a given probability,
// so it needs no model that says anything. What it gains is compared with a prediction: steps with
// wrong guesses alone, of each length, tell what guesses cost, and the probability what they bring.
//
// With --costs the steps of a backend are measured in which the model's own block predicts tokens,
// whatever they are.
#include <algorithm>
#include <chrono>
#include <cmath>
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
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "bench/constraint_use.h"
#include "bench/prediction_costs.h"
#include "bench/scripted_drafter.h"
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

namespace orcd {
namespace {

// Files of the source tree that prompts quote.
constexpr char kProgram[] = "tools/fetch-model";
constexpr char kDocument[] = "docs/transport.md";
constexpr int kProgramLines = 200;
constexpr int kRecords = 100;
constexpr char kRecordsSchema[] = R"({"type": "array", "minItems": 100, "items": {
  "type": "object", "properties": {
    "name": {"type": "string"}, "port": {"type": "integer"}, "team": {"type": "string"}},
  "required": ["name", "port", "team"], "additionalProperties": false}})";

struct Options {
  std::string model;
  std::string draft = "ngram";
  std::vector<std::string> texts = {"rewrite"};
  std::string backend = "cpu";
  // A kernel set of the backend cuda.
  std::string kernels = "auto";
  int tokens = 512;
  std::vector<int> streams = {1};
  int turns = 5;
  bool stand_in = false;
  bool costs = false;
  // The first is for the scripted drafter alone, the second for costs too.
  std::vector<double> acceptances = {0.5, 0.7, 0.9};
  int prompt = 128;
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

// The answer of a good model to the message of `text`.
absl::StatusOr<std::string> MakeAnswer(const std::string& text) {
  if (text == "rewrite") {
    ORCD_ASSIGN_OR_RETURN(const std::string program, FirstLines(kProgram, kProgramLines));
    return absl::StrCat("```python\n",
                        absl::StrReplaceAll(program, {{"FetchError", "SourceError"}}), "```\n");
  }
  if (text == "quote") {
    ORCD_ASSIGN_OR_RETURN(const std::string document, FirstLines(kDocument, kProgramLines));
    const std::vector<std::string> sentences = absl::StrSplit(document, absl::ByString(". "));
    std::string quoted;
    for (const std::string& sentence : sentences) {
      const bool has_number = std::any_of(sentence.begin(), sentence.end(), absl::ascii_isdigit);
      if (has_number) absl::StrAppend(&quoted, "- ", sentence, ".\n");
    }
    return quoted;
  }
  return absl::InvalidArgumentError(absl::StrCat("nothing can stand in for the text ", text));
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
  if (text == "records") {
    std::string table;
    for (int i = 0; i < kRecords; ++i) {
      absl::StrAppend(&table, "service-", i * 37 % kRecords, " | ", 8000 + i * 7, " | team-", i % 9,
                      "\n");
    }
    return absl::StrCat(
        "Print each line of this table as a JSON object with the keys name, port and team, all in "
        "one array.\n\n",
        table);
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

// The prompt for each of the streams, with another first token for each.
std::vector<std::vector<int32_t>> MakeDistinct(const std::vector<int32_t>& prompt, int vocab,
                                               int streams) {
  std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(streams), prompt);
  for (int i = 0; i < streams; ++i) prompts[static_cast<size_t>(i)][0] = (i * 101 + 13) % vocab;
  return prompts;
}

// A prompt for each of the streams, which say nothing and differ in their first tokens.
std::vector<std::vector<int32_t>> MakePrompts(int vocab, int streams, int length) {
  std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(streams));
  for (int i = 0; i < streams; ++i) {
    for (int p = 0; p < length; ++p) {
      prompts[static_cast<size_t>(i)].push_back((p * 7919 + i * 101 + 13) % vocab);
    }
  }
  return prompts;
}

// The requests of a turn.
struct Work {
  // One for each stream.
  std::vector<std::vector<int32_t>> prompts;
  int tokens = 0;
  float temperature = 0;
  // True if streams go on beyond the token that ends a text.
  bool ignore_end = false;
  // Null: there is no rule.
  std::shared_ptr<PendingConstraint> constraint = nullptr;

  int streams() const { return static_cast<int>(prompts.size()); }
};

// The output that the streams of a turn got, and its time.
struct Turn {
  double seconds = 0;
  int64_t tokens = 0;
  int64_t guesses = 0;
  int64_t right = 0;
  std::vector<std::vector<int32_t>> outputs;

  double rate() const { return static_cast<double>(tokens) / seconds; }
};

// Collects a turn. Any thread may call.
class TurnTally {
 public:
  explicit TurnTally(int streams) : left_(streams) {
    turn_.outputs.resize(static_cast<size_t>(streams));
  }

  void OnTokens(size_t stream, const std::vector<int32_t>& tokens) {
    const std::lock_guard lock(mutex_);
    if (begin_ == Clock::time_point()) begin_ = Clock::now();
    std::vector<int32_t>& output = turn_.outputs[stream];
    output.insert(output.end(), tokens.begin(), tokens.end());
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
absl::StatusOr<Turn> RunTurn(Engine& engine, const Work& work, const std::string& name,
                             bool speculate) {
  const auto tally = std::make_shared<TurnTally>(work.streams());
  for (int i = 0; i < work.streams(); ++i) {
    GenerationRequest request;
    request.id = absl::StrCat(name, "-", i);
    request.prompt = work.prompts[static_cast<size_t>(i)];
    request.sampling.temperature = work.temperature;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.stop.max_tokens = work.tokens;
    request.stop.ignore_eog = work.ignore_end;
    request.speculate = speculate;
    request.constraint = work.constraint;
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

// Measures turns with guesses and without, which draw what `first` drew, and prints a line about
// them that ends with `note`.
absl::Status MeasureTurns(Engine& engine, const Work& work, const Turn& first, int turns,
                          const std::string& title, const std::string& note) {
  std::vector<double> with;
  std::vector<double> without;
  std::vector<double> ratios;
  Turn guessed;
  for (int i = 0; i < turns; ++i) {
    double rates[2] = {};
    // Each order comes as often as the other, since a machine's speed drifts.
    for (const bool speculate : {i % 2 == 0, i % 2 != 0}) {
      const std::string name =
          absl::StrCat(title, ", turn ", i, speculate ? " with" : " without", " guesses");
      ORCD_ASSIGN_OR_RETURN(const Turn turn, RunTurn(engine, work, name, speculate));
      if (turn.outputs != first.outputs) {
        return absl::InternalError(absl::StrCat(name, " drew other tokens"));
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
  std::printf("%s: %.1f tok/s with guesses, %.1f without, ratio %.3f (%.3f to %.3f); ",
              title.c_str(), Median(with), Median(without), Median(ratios), *least, *most);
  std::printf("%.1f%% of %lld guesses right, %.1f%% of tokens guessed%s\n",
              percent(guessed.right, guessed.guesses),
              static_cast<long long>(guessed.guesses / turns),
              percent(guessed.right / turns, first.tokens), note.c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

std::string TitleOf(const std::string& text, const Work& work, const Turn& first,
                    const std::string& drafter) {
  return absl::StrCat(text, ", ", work.streams(), " x (", work.prompts[0].size(), " in + ",
                      first.tokens / work.streams() + 1, " out), ", drafter);
}

// Measures each text with each number of streams.
absl::Status MeasureTexts(Engine& engine, const Options& options) {
  for (const std::string& text : options.texts) {
    ORCD_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, MakePrompt(engine.model(), text));
    std::unique_ptr<ConstraintCompiler> compiler;
    std::shared_ptr<PendingConstraint> constraint;
    if (text == "records") {
      ORCD_ASSIGN_OR_RETURN(compiler,
                            ConstraintCompiler::Create(engine.model().tokenizer(), {}, nullptr));
      ORCD_ASSIGN_OR_RETURN(
          constraint, CompileNow(*compiler, {.rule = JsonSchemaRule{kRecordsSchema}, .start = {}}));
    }
    for (const int streams : options.streams) {
      const Work work = {.prompts = std::vector(static_cast<size_t>(streams), prompt),
                         .tokens = options.tokens,
                         .temperature = options.temperature,
                         .constraint = constraint};
      // Fills the prefix cache.
      const std::string name = absl::StrCat(text, " ", streams, " first");
      ORCD_ASSIGN_OR_RETURN(const Turn first, RunTurn(engine, work, name, false));
      ORCD_RETURN_IF_ERROR(MeasureTurns(engine, work, first, options.turns,
                                        TitleOf(text, work, first, options.draft), ""));
    }
  }
  return absl::OkStatus();
}

// The mean step of a turn whose guesses were all wrong.
struct StepCost {
  // Drafts of each sequence that had any; 0: none had.
  int drafts = 0;
  double seconds = 0;
  // Tokens drawn, and drafts of all sequences together.
  double drawn = 0;
  double all_drafts = 0;

  // Tokens a second if each draft is right with this probability.
  double Rate(double acceptance) const {
    double gain = 0;
    for (int i = 1; i <= drafts; ++i) gain += std::pow(acceptance, i);
    const double guessing = drafts == 0 ? 0 : all_drafts / drafts;
    return (drawn + guessing * gain) / seconds;
  }
};

// The model, and a backend on which one engine after another runs.
struct Loaded {
  std::shared_ptr<const Model> model;
  std::unique_ptr<Backend> backend;
  EngineOptions options;

  // `drafts`: as EngineOptions::fixed_drafts. `drafter` may be null.
  std::unique_ptr<Engine> Start(int drafts, std::unique_ptr<Drafter> drafter) const {
    EngineOptions engine = options;
    engine.fixed_drafts = drafts;
    return std::make_unique<Engine>(
        model, std::make_unique<LentBackend>(*backend), engine,
        [](const absl::Status& status) { std::cerr << status.message() << "\n"; },
        std::move(drafter));
  }
};

// Measures steps without drafts, and with as many wrong ones for each sequence as there is room
// for.
absl::StatusOr<std::vector<StepCost>> MeasureSteps(const Loaded& loaded, const Work& work,
                                                   const std::shared_ptr<const Scripts>& scripts) {
  const BackendInfo& info = loaded.backend->info();
  int room = info.max_step_tokens - work.streams();
  if (info.max_step_drafts > 0) room = std::min(room, info.max_step_drafts);
  std::vector<StepCost> costs;
  for (const int drafts : {0, 1, 2, 3, 4, 6, 8, 12, 16}) {
    if (drafts > info.max_drafts || (drafts > 1 && drafts * work.streams() > room)) break;
    const std::unique_ptr<Engine> engine = loaded.Start(
        drafts,
        std::make_unique<ScriptedDrafter>(scripts, /*acceptance=*/0, loaded.model->spec().vocab));
    // The engine forgets the prompts that another one computed.
    ORCD_RETURN_IF_ERROR(RunTurn(*engine, work, "prompts", false).status());
    const EngineStats before = SettledStats(*engine);
    ORCD_ASSIGN_OR_RETURN(const Turn turn, RunTurn(*engine, work, "steps", drafts > 0));
    const EngineStats after = SettledStats(*engine);
    // The first step has the prompts' last tokens.
    const auto steps = static_cast<double>(std::max<int64_t>(after.steps - before.steps - 1, 1));
    costs.push_back({.drafts = drafts,
                     .seconds = turn.seconds / steps,
                     .drawn = static_cast<double>(turn.tokens) / steps,
                     .all_drafts = static_cast<double>(turn.guesses) / steps});
    std::printf("%d streams, %d drafts each: %.3f ms a step of %.1f draws and %.1f drafts\n",
                work.streams(), drafts, costs.back().seconds * 1e3, costs.back().drawn,
                costs.back().all_drafts);
    std::fflush(stdout);
  }
  return costs;
}

// All tokens of the streams of a turn.
std::shared_ptr<const Scripts> ScriptsOf(const Work& work, const Turn& turn) {
  Scripts scripts = work.prompts;
  for (size_t i = 0; i < scripts.size(); ++i) {
    scripts[i].insert(scripts[i].end(), turn.outputs[i].begin(), turn.outputs[i].end());
  }
  return std::make_shared<const Scripts>(std::move(scripts));
}

// Measures n-grams of answers that stand in for what the model says.
absl::Status MeasureStandIns(const Loaded& loaded, const Options& options) {
  const int vocab = loaded.model->spec().vocab;
  for (const std::string& text : options.texts) {
    ORCD_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, MakePrompt(*loaded.model, text));
    ORCD_ASSIGN_OR_RETURN(const std::string answer, MakeAnswer(text));
    const std::vector<int32_t> answer_tokens = loaded.model->tokenizer().Encode(answer, false);
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), answer_tokens.begin(), answer_tokens.end());
    for (const int streams : options.streams) {
      const Work work = {.prompts = MakeDistinct(prompt, vocab, streams),
                         .tokens = std::min(options.tokens, static_cast<int>(answer_tokens.size())),
                         .temperature = options.temperature,
                         .ignore_end = true};
      const auto run_first = [&](Engine& engine) { return RunTurn(engine, work, "first", false); };
      ORCD_ASSIGN_OR_RETURN(const Turn first, run_first(*loaded.Start(0, nullptr)));
      const std::unique_ptr<Engine> engine =
          loaded.Start(0, std::make_unique<StandInDrafter>(ScriptsOf(work, first), all,
                                                           loaded.backend->info().max_seqs, vocab));
      ORCD_RETURN_IF_ERROR(run_first(*engine).status());
      ORCD_RETURN_IF_ERROR(MeasureTurns(*engine, work, first, options.turns,
                                        TitleOf(text, work, first, "ngram of a stand-in"), ""));
    }
  }
  return absl::OkStatus();
}

// Measures a scripted drafter, and prints what step costs let expect.
absl::Status MeasureScripted(const Loaded& loaded, const Options& options) {
  const int vocab = loaded.model->spec().vocab;
  for (const int streams : options.streams) {
    const Work work = {.prompts = MakePrompts(vocab, streams, options.prompt),
                       .tokens = options.tokens,
                       .temperature = options.temperature,
                       .ignore_end = true};
    const auto run_first = [&](Engine& engine) { return RunTurn(engine, work, "first", false); };
    ORCD_ASSIGN_OR_RETURN(const Turn first, run_first(*loaded.Start(0, nullptr)));
    const std::shared_ptr<const Scripts> scripts = ScriptsOf(work, first);
    ORCD_ASSIGN_OR_RETURN(const std::vector<StepCost> costs, MeasureSteps(loaded, work, scripts));
    for (const double acceptance : options.acceptances) {
      const StepCost* best = &costs[0];
      for (const StepCost& cost : costs) {
        if (cost.Rate(acceptance) > best->Rate(acceptance)) best = &cost;
      }
      char expected[120];
      std::snprintf(
          expected, sizeof expected, "; predicted %.1f tok/s with %d drafts each, ratio %.3f",
          best->Rate(acceptance), best->drafts, best->Rate(acceptance) / costs[0].Rate(acceptance));
      const std::unique_ptr<Engine> engine =
          loaded.Start(0, std::make_unique<ScriptedDrafter>(scripts, acceptance, vocab));
      ORCD_RETURN_IF_ERROR(run_first(*engine).status());
      const std::string title =
          TitleOf("random", work, first, absl::StrCat("scripted ", acceptance));
      ORCD_RETURN_IF_ERROR(MeasureTurns(*engine, work, first, options.turns, title, expected));
    }
  }
  return absl::OkStatus();
}

absl::Status Measure(const Options& options) {
  LoadModelOptions load;
  load.model.threads = cpu::UsableCores();
  load.backend.threads = cpu::UsableCores();
  load.backend.max_seqs = *std::max_element(options.streams.begin(), options.streams.end());
  load.backend.kv_cache_bytes = options.kv_cache_bytes;
  load.backend.kernels = options.kernels;
  load.engine.max_context = 1 << 14;
  load.engine.max_waiting = std::max(load.engine.max_waiting, load.backend.max_seqs);
  BackendMaker backend = {.make = CreateCpuBackend};
#ifdef ORCD_CUDA
  if (options.backend == "cuda") {
    backend = {.make = CreateCudaBackend, .make_reference = CreateCpuReference};
  }
#endif
  NullLoadObserver observer;
  const auto print_model = [](const Model& model, const BackendInfo& info) {
    std::printf("%s on %s\n", model.spec().name.c_str(), info.device.c_str());
  };
  if (options.costs) {
    ORCD_ASSIGN_OR_RETURN(const auto model, OpenModel(options.model, load, observer));
    load.backend.max_context = load.engine.max_context;
    ORCD_ASSIGN_OR_RETURN(const auto plain, backend.make(model, load.backend, observer));
    load.backend.predict = true;
    ORCD_ASSIGN_OR_RETURN(const auto predicting, backend.make(model, load.backend, observer));
    if (predicting->info().max_predictions == 0) {
      return absl::FailedPreconditionError("the backend has no block that predicts tokens");
    }
    print_model(*model, plain->info());
    for (const int streams : options.streams) {
      ORCD_RETURN_IF_ERROR(MeasurePredictions(*plain, *predicting, streams, options.prompt,
                                              options.turns, model->spec().vocab));
    }
    return absl::OkStatus();
  }
  if (options.draft == "scripted" || options.stand_in) {
    Loaded loaded;
    loaded.options = load.engine;
    ORCD_ASSIGN_OR_RETURN(loaded.model, OpenModel(options.model, load, observer));
    load.backend.max_context = load.engine.max_context;
    ORCD_ASSIGN_OR_RETURN(loaded.backend, backend.make(loaded.model, load.backend, observer));
    if (loaded.backend->info().max_drafts == 0) {
      return absl::FailedPreconditionError("the backend verifies no guesses");
    }
    print_model(*loaded.model, loaded.backend->info());
    return options.stand_in ? MeasureStandIns(loaded, options) : MeasureScripted(loaded, options);
  }
  load.draft.kind = options.draft == "ngram" ? DraftKind::kNgram
                    : options.draft == "mtp" ? DraftKind::kBlock
                                             : DraftKind::kModel;
  if (load.draft.kind == DraftKind::kModel) load.draft.path = options.draft;
  ORCD_ASSIGN_OR_RETURN(
      const std::unique_ptr<Engine> engine,
      LoadModel(
          options.model, load, backend,
          [](const absl::Status& status) { std::cerr << status.message() << "\n"; }, observer));
  const SpeculationInfo info = engine->speculation();
  if (!info.warning.empty()) return absl::FailedPreconditionError(info.warning);
  print_model(engine->model(), engine->backend_info());
  return MeasureTexts(*engine, options);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("What guessed tokens gain");
  app.add_option("model", options.model, "GGUF file")->required();
  app.add_option("--draft", options.draft,
                 "ngram, mtp, the GGUF file of a smaller model, or scripted")
      ->capture_default_str();
  app.add_option("--text", options.texts,
                 "rewrite: a program with one name changed; quote: sentences of a document; free: "
                 "a story; records: a table as JSON of a schema")
      ->check(CLI::IsMember({"rewrite", "quote", "free", "records"}))
      ->delimiter(',')
      ->capture_default_str();
  app.add_flag(
      "--stand-in", options.stand_in,
      "The answer that the text asks for stands in for what the model says; n-grams guess");
  app.add_flag("--costs", options.costs,
               "Measure steps in which the model's own block predicts tokens, one a turn");
  app.add_option("--acceptance", options.acceptances,
                 "Probability with which a guess of the scripted drafter is right")
      ->check(CLI::Range(0.0, 1.0))
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--prompt", options.prompt,
                 "Tokens of a prompt of the scripted drafter, and with --costs")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--tokens", options.tokens, "Most tokens of a stream")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--streams", options.streams, "Requests at once")
      ->check(CLI::PositiveNumber)
      ->delimiter(',')
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
  app.add_option("--kernels", options.kernels, "Kernel set of the GPU, or auto")
      ->capture_default_str();
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
