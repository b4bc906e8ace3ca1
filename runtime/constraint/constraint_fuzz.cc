// Reads libFuzzer's inputs as rules: the first byte chooses the kind, the second the start, and
// NULs separate the parts of the rest. A rule is refused with a reason, or its constraint is walked
// by random tokens: no mask may be empty, every allowed token is accepted, and Rollback restores
// masks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "runtime/base/error.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/constraint/constraint_spec.h"
#include "runtime/sampling/constraint.h"
#include "runtime/text/small_vocabulary_for_test.h"
#include "runtime/text/tokenizer.h"

namespace orcd {
namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

std::unique_ptr<const Tokenizer> MakeTokenizer() {
  SmallVocabulary vocabulary;
  vocabulary.AddMerge("{", "\"");
  vocabulary.AddMerge("\"", ":");
  vocabulary.AddMerge("\"", "}");
  vocabulary.AddMerge("\"", ",");
  vocabulary.AddMerge("a", "b");
  vocabulary.AddMerge("ab", "ab");
  vocabulary.AddMerge("Ã", "©");
  vocabulary.Add("<tool_call>", TokenType::kUserDefined);
  vocabulary.Add("<|im_end|>", TokenType::kControl);
  return *Tokenizer::Create(vocabulary.View());
}

// The tokenizer and its compiler, for as long as the fuzzer runs.
class Fixture {
 public:
  Fixture() : tokenizer_(MakeTokenizer()) {
    ConstraintLimits limits;
    limits.max_bytes = 4096;
    limits.max_depth = 16;
    limits.threads = 1;
    limits.cache_bytes = 4 << 20;
    // An input may take 10 s and 2 GiB, with the sanitizer's share; a compilation is given up after
    // five times its time.
    limits.compile_time = absl::Milliseconds(500);
    limits.held_bytes = 256 << 20;
    auto compiler = ConstraintCompiler::Create(*tokenizer_, limits, nullptr);
    Require(compiler.ok());
    compiler_ = *std::move(compiler);
  }

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  ConstraintCompiler& compiler() const { return *compiler_; }

 private:
  const std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<ConstraintCompiler> compiler_;
};

ConstraintSpec ReadSpec(const uint8_t* data, size_t size, const Tokenizer& tokenizer) {
  const std::string rest(reinterpret_cast<const char*>(data) + 2, size - 2);
  std::vector<std::string> parts = absl::StrSplit(rest, '\0');
  ConstraintSpec spec;
  switch (data[1] % 3) {
    case 1:
      spec.start = StartAfterToken{tokenizer.FindSpecial("<tool_call>")};
      break;
    case 2:
      spec.start = StartAfterString{parts.back()};
      if (parts.size() > 1) parts.pop_back();
      break;
    default:
      break;
  }
  switch (data[0] % 7) {
    case 0:
      spec.rule = JsonSchemaRule{parts[0]};
      break;
    case 1:
      spec.rule = JsonObjectRule{};
      break;
    case 2:
      spec.rule = RegexRule{parts[0]};
      break;
    case 3:
      spec.rule = GrammarRule{GrammarDialect::kLark, parts[0]};
      break;
    case 4:
      spec.rule = GrammarRule{GrammarDialect::kEbnf, parts[0]};
      break;
    case 5:
      spec.rule = ChoiceRule{std::move(parts)};
      break;
    default: {
      StructuralTagRule rule{.tags = {}, .triggers = {parts[0]}};
      for (size_t i = 1; i + 2 < parts.size(); i += 3) {
        rule.tags.push_back({parts[i], parts[i + 1], parts[i + 2]});
      }
      spec.rule = std::move(rule);
      break;
    }
  }
  return spec;
}

void CheckRefusal(const absl::Status& status) {
  Require(absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) ||
          absl::IsUnimplemented(status));
  Require(!GetErrorDetails(status).reason.empty() || !GetErrorDetails(status).field.empty());
  Require(status.message().size() < 2048);
  Require(status.message().find('\n') == std::string_view::npos);
}

// Null if the rule is refused.
std::unique_ptr<Constraint> Compile(ConstraintCompiler& compiler, const ConstraintSpec& spec) {
  const auto pending = compiler.Compile(spec, /*samples=*/1);
  if (!pending.ok()) {
    CheckRefusal(pending.status());
    return nullptr;
  }
  const auto done = std::make_shared<std::promise<void>>();
  (*pending)->OnReady([done] { done->set_value(); });
  done->get_future().wait();
  Require((*pending)->ready());
  if (!(*pending)->status().ok()) {
    CheckRefusal((*pending)->status());
    return nullptr;
  }
  return (*pending)->Make();
}

// Tokens that an input's constraint accepts at most: a text that is forced may be endless.
constexpr int kMostTokens = 1000;

// False after a rule that takes too long, and in a client's Lark in a dead end or where attributes
// cannot be applied together. Any other error is a fault.
bool GoesOn(const Constraint& constraint, const ConstraintSpec& spec) {
  const absl::Status status = constraint.status();
  const auto* grammar = std::get_if<GrammarRule>(&spec.rule);
  const bool is_lark = grammar != nullptr && grammar->dialect == GrammarDialect::kLark;
  Require(status.ok() || absl::IsResourceExhausted(status) ||
          (is_lark && absl::IsInvalidArgument(status)));
  return status.ok();
}

// Tokens with which the free text of `spec` ends and its rule begins: random ones would hardly do
// it.
std::vector<int32_t> TokensToTheRule(const ConstraintSpec& spec, const Tokenizer& tokenizer) {
  std::string text;
  if (const auto* token = std::get_if<StartAfterToken>(&spec.start)) return {token->token};
  if (const auto* after = std::get_if<StartAfterString>(&spec.start)) text = after->text;
  const auto* structure = std::get_if<StructuralTagRule>(&spec.rule);
  if (structure != nullptr && !structure->tags.empty()) text += structure->tags.front().begin;
  return tokenizer.Encode(text, /*parse_special=*/true);
}

// Accepts tokens, kMostTokens at most, until the mask forbids one.
void AcceptAllowed(Constraint& constraint, const ConstraintSpec& spec,
                   std::span<const int32_t> tokens) {
  const size_t count = std::min(tokens.size(), size_t{kMostTokens});
  for (const int32_t token : tokens.first(count)) {
    const TokenMask mask = constraint.Mask(0);
    if (!GoesOn(constraint, spec) || !mask.Allows(token) || constraint.Ended()) return;
    constraint.Accept(token);
    if (!GoesOn(constraint, spec)) return;
  }
}

// Draws from the mask and accepts `steps` times, unless the generation ends, the rule takes too
// long or its text is too long.
void Walk(Constraint& constraint, const ConstraintSpec& spec, const Tokenizer& tokenizer,
          std::mt19937_64& random, int steps) {
  int accepted = 0;
  for (int step = 0; step < steps && GoesOn(constraint, spec); ++step) {
    const auto forced = constraint.Forced();
    for (const int32_t token : std::vector<int32_t>(forced.begin(), forced.end())) {
      if (++accepted > kMostTokens) return;
      Require(!tokenizer.IsEog(token));
      const TokenMask mask = constraint.Mask(0);
      if (!GoesOn(constraint, spec)) return;
      Require(mask.Allows(token));
      constraint.Accept(token);
      if (!GoesOn(constraint, spec)) return;
    }
    Require(!constraint.NeedsTokens(0));
    const TokenMask mask = constraint.Mask(0);
    if (!GoesOn(constraint, spec)) return;
    const std::vector<uint32_t> words(mask.words.begin(), mask.words.end());
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
      if (TokenMask{words}.Allows(token)) allowed.push_back(token);
    }
    Require(!allowed.empty());
    if (constraint.Ended()) {
      Require(std::ranges::all_of(allowed, [&](int32_t token) { return tokenizer.IsEog(token); }));
      return;
    }
    const int32_t token = allowed[random() % allowed.size()];
    if (tokenizer.IsEog(token)) return;
    constraint.Accept(token);
    if (!GoesOn(constraint, spec)) return;
    constraint.Rollback(1);
    const TokenMask again = constraint.Mask(0);
    if (!GoesOn(constraint, spec)) return;
    Require(std::ranges::equal(words, again.words));
    constraint.Accept(token);
    if (!GoesOn(constraint, spec)) return;
  }
}

}  // namespace
}  // namespace orcd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace orcd;
  static const Fixture fixture;
  if (size < 2) return 0;
  const ConstraintSpec spec = ReadSpec(data, size, fixture.tokenizer());
  const auto constraint = Compile(fixture.compiler(), spec);
  if (constraint == nullptr) return 0;
  AcceptAllowed(*constraint, spec, TokensToTheRule(spec, fixture.tokenizer()));
  std::mt19937_64 random(std::accumulate(data, data + size, uint64_t{size}));
  Walk(*constraint, spec, fixture.tokenizer(), random, /*steps=*/24);
  return 0;
}
