// Measures what constraints cost on one thread: the time from a schema to its first mask, and the
// time of each mask and token along documents and along random walks.
//
//   constraint_bench VOCABULARY.gguf [--schemas FILE] [--walk-tokens N] [--distinct N]
//
// A random walk draws each token with equal chances among those that the mask allows, which is
// harder than text: it visits states that no model would. Masks and tokens are measured in
// processor time of the thread, so that other work on the machine does not count. --distinct
// compiles that many schemas, no two alike, one after the other, and prints the resident memory on
// the way.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "bench/constraint_use.h"
#include "runtime/base/thread_time.h"
#include "testing/schemas/schema_corpus.h"

namespace orcd {
namespace {

struct Options {
  std::string vocabulary;
  std::string schemas = kSchemaCorpus;
  int walk_tokens = 200;
  int distinct = 0;
  int slowest = 0;
};

double Microseconds() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double ThreadMicroseconds() { return absl::ToDoubleMicroseconds(ThreadTime()); }

// The value that `share` of all values do not exceed; 0 if there are none.
double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto rank =
      std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rank),
                   values.end());
  return values[rank];
}

void Print(const std::string& what, const std::vector<double>& microseconds) {
  std::printf("%-34s %8zu times, p50 %9.1f us, p90 %9.1f us, p99 %9.1f us, max %9.1f us\n",
              what.c_str(), microseconds.size(), Quantile(microseconds, 0.5),
              Quantile(microseconds, 0.9), Quantile(microseconds, 0.99), Quantile(microseconds, 1));
}

struct Times {
  std::vector<double> masks;
  // By mask: the text before it, if it follows a document.
  std::vector<std::string> places;
  // Mask, acceptance and the search for forced tokens, for each token that was not forced.
  std::vector<double> tokens;
  int64_t forced = 0;
  int64_t ended = 0;

  void Add(const Times& other) {
    masks.insert(masks.end(), other.masks.begin(), other.masks.end());
    places.insert(places.end(), other.places.begin(), other.places.end());
    tokens.insert(tokens.end(), other.tokens.begin(), other.tokens.end());
    forced += other.forced;
    ended += other.ended;
  }
};

// Draws one of the tokens that the mask allows.
int32_t Draw(const TokenMask& mask, int vocab, std::mt19937_64& random) {
  if (mask.empty()) return static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  uint64_t allowed = 0;
  for (size_t i = 0; i < mask.words.size(); ++i) allowed += std::popcount(mask.Allowed(i, vocab));
  uint64_t skip = random() % allowed;
  for (size_t i = 0;; ++i) {
    uint32_t word = mask.Allowed(i, vocab);
    if (const auto count = static_cast<uint64_t>(std::popcount(word)); skip >= count) {
      skip -= count;
      continue;
    }
    for (; skip > 0; --skip) word &= word - 1;
    return static_cast<int32_t>(i) * 32 + std::countr_zero(word);
  }
}

// Follows `document`; if it is empty, walks at random.
absl::Status Walk(Constraint& constraint, const Tokenizer& tokenizer,
                  std::span<const int32_t> document, int max_tokens, std::mt19937_64& random,
                  Times& times) {
  const bool follows = !document.empty();
  std::string text;
  for (int count = 0; count < max_tokens && !constraint.Ended(); ++count) {
    if (follows && document.empty()) break;
    const double begin = ThreadMicroseconds();
    const std::span<const int32_t> forced = constraint.Forced();
    if (!forced.empty()) {
      // The split of a document into tokens need not be the one that is forced.
      const std::vector<int32_t> ids = follows ? std::vector<int32_t>{document.front()}
                                               : std::vector<int32_t>(forced.begin(), forced.end());
      for (const int32_t id : ids) {
        constraint.Accept(id);
        text += tokenizer.TokenBytes(id);
      }
      if (follows) document = document.subspan(1);
      times.forced += static_cast<int64_t>(ids.size());
      count += static_cast<int>(ids.size()) - 1;
      continue;
    }
    const double before_mask = ThreadMicroseconds();
    const TokenMask mask = constraint.Mask(0);
    const double after_mask = ThreadMicroseconds();
    if (!constraint.status().ok()) return constraint.status();
    const int32_t next = follows ? document.front() : Draw(mask, tokenizer.vocab_size(), random);
    const double drawn = ThreadMicroseconds();
    if (follows) document = document.subspan(1);
    if (tokenizer.IsEog(next)) {
      ++times.ended;
      return absl::OkStatus();
    }
    constraint.Accept(next);
    times.masks.push_back(after_mask - before_mask);
    times.places.push_back(follows ? text : "");
    text += tokenizer.TokenBytes(next);
    times.tokens.push_back(ThreadMicroseconds() - begin - (drawn - after_mask));
    ORCD_RETURN_IF_ERROR(constraint.status());
  }
  if (constraint.Ended()) ++times.ended;
  return absl::OkStatus();
}

void PrintMasks(const std::string& what, const Times& times) {
  Print(absl::StrCat(what, ": mask"), times.masks);
  Print(absl::StrCat(what, ": a token in all"), times.tokens);
  const auto all = static_cast<double>(times.forced) + static_cast<double>(times.tokens.size());
  std::printf("%-34s %8lld tokens, %.1f%% of all; %lld ends reached\n",
              absl::StrCat(what, ": forced").c_str(), static_cast<long long>(times.forced),
              100.0 * static_cast<double>(times.forced) / std::max(1.0, all),
              static_cast<long long>(times.ended));
}

absl::Status MeasureCorpus(const ConstraintUse& use, const Options& options) {
  ORCD_ASSIGN_OR_RETURN(const std::vector<SchemaCase> cases, ReadSchemaCorpus(options.schemas));
  std::mt19937_64 random(1);
  std::vector<double> compiles;
  Times documents;
  Times walks;
  std::vector<std::pair<double, std::string>> worst;
  std::vector<std::pair<double, std::string>> slow;
  int refused = 0;
  int failed = 0;
  for (const SchemaCase& schema : cases) {
    const ConstraintSpec spec = {.rule = JsonSchemaRule{schema.schema}, .start = {}};
    const double begin = Microseconds();
    const auto pending = CompileNow(*use.compiler, spec);
    if (!pending.ok()) {
      std::printf("refused: %s: %s\n", schema.name.c_str(),
                  std::string(pending.status().message()).c_str());
      ++refused;
      continue;
    }
    compiles.push_back(Microseconds() - begin);
    Times own;
    for (const std::string& document : schema.valid) {
      const size_t masks_before = documents.masks.size();
      ORCD_ASSIGN_OR_RETURN(const auto again, CompileNow(*use.compiler, spec));
      const std::vector<int32_t> ids = use.tokenizer->Encode(document, std::span<const TextSpan>());
      ORCD_RETURN_IF_ERROR(
          Walk(*again->Make(), *use.tokenizer, ids, options.walk_tokens, random, documents));
      for (size_t i = masks_before; i < documents.masks.size(); ++i) {
        slow.emplace_back(documents.masks[i],
                          absl::StrCat(schema.name, ", after ", documents.places[i]));
      }
    }
    const absl::Status walked =
        Walk(*(*pending)->Make(), *use.tokenizer, {}, options.walk_tokens, random, own);
    if (!walked.ok()) {
      std::printf("failed: %s: %s\n", schema.name.c_str(), std::string(walked.message()).c_str());
      ++failed;
    }
    worst.emplace_back(Quantile(own.masks, 0.99), schema.name);
    walks.Add(own);
  }
  std::printf("%zu schemas, %d refused, %d failed on a walk; vocabulary of %d tokens\n",
              cases.size(), refused, failed, use.tokenizer->vocab_size());
  Print("schema to first mask", compiles);
  PrintMasks("valid documents", documents);
  PrintMasks("random walks", walks);
  Times all = documents;
  all.Add(walks);
  Print("both: mask", all.masks);
  std::sort(worst.rbegin(), worst.rend());
  for (size_t i = 0; i < std::min<size_t>(3, worst.size()); ++i) {
    std::printf("worst p99 of a walk's masks: %9.1f us, %s\n", worst[i].first,
                worst[i].second.c_str());
  }
  std::sort(slow.rbegin(), slow.rend());
  for (size_t i = 0; i < std::min(static_cast<size_t>(options.slowest), slow.size()); ++i) {
    std::printf("slow mask of a document: %9.1f us, %s\n", slow[i].first, slow[i].second.c_str());
  }
  return absl::OkStatus();
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

absl::Status MeasureDistinct(const ConstraintUse& use, int count) {
  constexpr int kLines = 10;
  const double begin = Microseconds();
  for (int i = 0; i < count; ++i) {
    const std::string schema =
        absl::StrCat(R"({"type":"object","properties":{"id":{"const":)", i,
                     R"(},"name":{"type":"string","pattern":"^[a-z]{1,)", 4 + i % 40,
                     R"(}$"},"tags":{"type":"array","items":{"enum":["a","b)", i,
                     R"("]},"maxItems":3}},"required":["id"],"additionalProperties":false})");
    ORCD_ASSIGN_OR_RETURN(const auto pending,
                          CompileNow(*use.compiler, {.rule = JsonSchemaRule{schema}, .start = {}}));
    const std::unique_ptr<Constraint> constraint = pending->Make();
    constraint->Mask(0);
    ORCD_RETURN_IF_ERROR(constraint->status());
    if ((i + 1) % std::max(1, count / kLines) == 0) {
      std::printf("%8d distinct schemas: %7.1f MB resident, cache %6.1f MB, %7.1f s\n", i + 1,
                  static_cast<double>(ResidentBytes()) * 1e-6,
                  static_cast<double>(use.compiler->stats().cache_bytes) * 1e-6,
                  (Microseconds() - begin) * 1e-6);
      std::fflush(stdout);
    }
  }
  return absl::OkStatus();
}

absl::Status Measure(const Options& options) {
  const double begin = Microseconds();
  ORCD_ASSIGN_OR_RETURN(const ConstraintUse use, UseConstraints(options.vocabulary, {}));
  std::printf("vocabulary ready in %.2f s, %.1f MB resident\n", (Microseconds() - begin) * 1e-6,
              static_cast<double>(ResidentBytes()) * 1e-6);
  if (options.distinct > 0) return MeasureDistinct(use, options.distinct);
  return MeasureCorpus(use, options);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Cost of constraints on one thread");
  app.add_option("vocabulary", options.vocabulary, "GGUF file with a tokenizer")->required();
  app.add_option("--schemas", options.schemas, "JSON objects with `schema`, one a line")
      ->capture_default_str();
  app.add_option("--walk-tokens", options.walk_tokens, "Longest walk")->capture_default_str();
  app.add_option("--slowest", options.slowest, "Print so many of the slowest masks of documents");
  app.add_option("--distinct", options.distinct, "Compile that many schemas instead, none twice");
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = Measure(options); !status.ok()) {
    std::cerr << "constraint_bench: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace orcd

int main(int argc, char** argv) { return orcd::Main(argc, argv); }
