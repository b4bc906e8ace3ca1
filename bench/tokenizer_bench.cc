// Measures how fast one thread encodes texts, and how fast the tokenizer is constructed.
//
//   tokenizer_bench MODEL.gguf [TEXT…] [--benchmark_…]
//
// Encodes a text made of the vocabulary's own words, other texts that are hard on tokenizers, and
// each file TEXT.
#include <benchmark/benchmark.h>

#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/gguf_reader.h"
#include "runtime/text/random_text_for_test.h"
#include "runtime/text/tokenizer.h"
#include "testing/files.h"

namespace orcd {
namespace {

constexpr size_t kTextBytes = 4 << 20;

// Makes sentences and paragraphs of words that the vocabulary has as tokens; common words (low ids)
// are much more frequent than rare ones. Every fourth word joins two of them, which mostly gives no
// token. The words are rarer than in prose written by a person, so the text is slower to encode.
std::string MakeProse(const Tokenizer& tokenizer) {
  std::vector<std::string_view> words;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    if (bytes.size() < 3 || bytes[0] != ' ') continue;
    const std::string_view word = bytes.substr(1);
    const bool is_word = word.find_first_not_of("abcdefghijklmnopqrstuvwxyz") == word.npos;
    if (is_word) words.push_back(word);
  }
  if (words.empty()) words.push_back("word");
  std::mt19937_64 random(1);
  const auto pick = [&] {
    // Log-uniform over the rank, which is Zipf's law.
    const double share = std::uniform_real_distribution<double>()(random);
    return words[static_cast<size_t>(std::pow(static_cast<double>(words.size()), share)) - 1];
  };
  std::string text;
  bool sentence_starts = true;
  while (text.size() < kTextBytes) {
    std::string word(pick());
    if (random() % 4 == 0) word += pick();
    if (sentence_starts) word[0] = static_cast<char>(std::toupper(word[0]));
    text += word;
    const auto after = random() % 64;
    sentence_starts = after < 5;
    text += after == 0 ? ".\n\n" : after < 5 ? ". " : after < 9 ? ", " : " ";
  }
  return text;
}

std::string Repeat(std::string_view part) {
  std::string text;
  while (text.size() < kTextBytes) text += part;
  return text;
}

// Makes text of any characters of Unicode, which shares few states of automata.
std::string MakeAnyCharacters() {
  std::mt19937_64 random(2);
  std::string text;
  while (text.size() < kTextBytes) {
    const auto codepoint = static_cast<char32_t>(random() % (0x110000 - 0x800));
    text += ToUtf8(codepoint < 0xD800 ? codepoint : codepoint + 0x800);
  }
  return text;
}

void RegisterEncode(const std::string& name, std::string text, const Tokenizer& tokenizer) {
  benchmark::RegisterBenchmark(("Encode/" + name).c_str(), [text = std::move(text),
                                                            &tokenizer](benchmark::State& state) {
    size_t tokens = 0;
    for (auto step : state) {
      static_cast<void>(step);
      const std::vector<int32_t> ids = tokenizer.Encode(text, /*parse_special=*/true);
      tokens = ids.size();
    }
    state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
    state.counters["bytes_per_token"] =
        static_cast<double>(text.size()) / static_cast<double>(tokens);
  })->Unit(benchmark::kMillisecond);
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc < 2) {
    std::fputs("usage: tokenizer_bench MODEL.gguf [TEXT...] [--benchmark_...]\n", stderr);
    return 1;
  }
  const auto gguf = GgufReader::Open(argv[1]);
  const auto tokenizer = gguf.ok() ? Tokenizer::FromGguf(**gguf) : gguf.status();
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  RegisterEncode("made_prose", MakeProse(**tokenizer), **tokenizer);
  for (int i = 2; i < argc; ++i) {
    std::string text = ReadFile(argv[i]);
    if (text.empty()) {
      std::fprintf(stderr, "tokenizer_bench: %s: nothing can be read from it\n", argv[i]);
      return 1;
    }
    RegisterEncode(argv[i], std::move(text), **tokenizer);
  }
  RegisterEncode("code", Repeat("  for (int i = 0; i < n; ++i) {\n    sum += x[i] * y[i];\n  }\n"),
                 **tokenizer);
  RegisterEncode("chinese", Repeat("那只敏捷的棕色狐狸跳过了懒狗，然后在河边睡着了。"),
                 **tokenizer);
  RegisterEncode("any_character", MakeAnyCharacters(), **tokenizer);
  RegisterEncode("one_word", Repeat("a"), **tokenizer);
  RegisterEncode("one_space", Repeat(" "), **tokenizer);
  RegisterEncode("one_digit", Repeat("1"), **tokenizer);
  RegisterEncode("one_line_break", Repeat("\n"), **tokenizer);
  RegisterEncode("one_letter_words", Repeat("a b "), **tokenizer);
  RegisterEncode("control_tokens", Repeat("<|im_end|>\n"), **tokenizer);
  benchmark::RegisterBenchmark("FromGguf", [&gguf](benchmark::State& state) {
    for (auto step : state) {
      static_cast<void>(step);
      benchmark::DoNotOptimize(Tokenizer::FromGguf(**gguf));
    }
  })->Unit(benchmark::kMillisecond);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace orcd

int main(int argc, char** argv) { return orcd::Main(argc, argv); }
