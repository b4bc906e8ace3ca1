#include "runtime/constraint/llg_constraint.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/constraint/llg_call.h"
#include "runtime/constraint/llg_rules_for_test.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const JsonVocabulary& Vocab() { return JsonVocabulary::Get(); }

std::vector<int32_t> Allowed(Constraint& constraint) {
  const TokenMask mask = constraint.Mask(0);
  EXPECT_EQ(mask.words.size(), TokenMask::WordsFor(Vocab().tokenizer->vocab_size()));
  std::vector<int32_t> tokens;
  for (int32_t t = 0; t < Vocab().tokenizer->vocab_size(); ++t) {
    if (mask.Allows(t)) tokens.push_back(t);
  }
  for (size_t bit = Vocab().tokenizer->vocab_size(); bit < mask.words.size() * 32; ++bit) {
    EXPECT_TRUE(mask.Allows(static_cast<int32_t>(bit))) << "beyond the vocabulary";
  }
  return tokens;
}

std::unique_ptr<Constraint> Replay(const LlgRule& rule, const std::vector<int32_t>& tokens) {
  auto constraint = rule.Make(nullptr);
  for (const int32_t token : tokens) constraint->Accept(token);
  return constraint;
}

std::vector<int32_t> Forced(Constraint& constraint) {
  const std::span<const int32_t> forced = constraint.Forced();
  return {forced.begin(), forced.end()};
}

class RandomWalkTest : public ::testing::TestWithParam<std::pair<std::string, std::string>> {
 protected:
  void SetUp() override {
    rule_ = MakeRule(GetParam().first, GetParam().second);
    ASSERT_NE(rule_, nullptr);
  }
  bool IsEnd(int32_t token) const { return Vocab().tokenizer->IsEog(token); }
  // A token that the mask allows; the end if it may be, with the probability 1/4.
  int32_t Draw(Constraint& constraint) {
    const std::vector<int32_t> allowed = Allowed(constraint);
    EXPECT_THAT(allowed, ::testing::Not(IsEmpty())) << constraint.status();
    if (allowed.empty()) return Vocab().end;
    if (std::ranges::binary_search(allowed, Vocab().end) && random_() % 4 == 0) {
      return Vocab().end;
    }
    return allowed[random_() % allowed.size()];
  }

  std::shared_ptr<const LlgRule> rule_;
  std::mt19937_64 random_{7};
};

TEST_P(RandomWalkTest, AcceptsWhatTheMaskAllowsAndNothingElse) {
  int ended = 0;
  for (int walk = 0; walk < 12; ++walk) {
    const auto constraint = rule_->Make(nullptr);
    std::vector<int32_t> tokens;
    while (tokens.size() < 60) {
      const std::vector<int32_t> allowed = Allowed(*constraint);
      const bool is_forced = !constraint->Forced().empty();
      if (is_forced) {
        EXPECT_THAT(allowed, ElementsAre(constraint->Forced()[0]));
        EXPECT_FALSE(IsEnd(allowed[0]));
      }
      if (constraint->Ended()) {
        EXPECT_THAT(allowed, ElementsAre(Vocab().end, Vocab().other_end));
      }
      EXPECT_EQ(std::ranges::count(allowed, Vocab().end),
                std::ranges::count(allowed, Vocab().other_end));
      if (tokens.size() < 12) {
        for (int i = 0; i < 6; ++i) {
          std::vector<int32_t> next = tokens;
          next.push_back(i % 2 == 0
                             ? allowed[random_() % allowed.size()]
                             : static_cast<int32_t>(random_() % Vocab().tokenizer->vocab_size()));
          const bool is_allowed = std::ranges::binary_search(allowed, next.back());
          // Any tokenization of a forced text is accepted.
          if (!is_allowed && is_forced) continue;
          EXPECT_EQ(Replay(*rule_, next)->status().ok(), is_allowed)
              << Vocab().Text(tokens) << " then token " << next.back();
        }
      }
      const int32_t token = Draw(*constraint);
      constraint->Accept(token);
      ASSERT_TRUE(constraint->status().ok()) << constraint->status() << Vocab().Text(tokens);
      tokens.push_back(token);
      if (IsEnd(token)) break;
    }
    if (!IsEnd(tokens.back())) continue;
    ++ended;
    EXPECT_TRUE(constraint->Ended());
    constraint->Accept('a');
    EXPECT_EQ(constraint->status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_GT(ended, 0);
}

TEST_P(RandomWalkTest, RollbackIsAFreshReplay) {
  for (int walk = 0; walk < 10; ++walk) {
    const auto constraint = rule_->Make(nullptr);
    std::vector<int32_t> tokens;
    for (int step = 0; step < 80; ++step) {
      if (!tokens.empty() && (random_() % 4 == 0 || IsEnd(tokens.back()))) {
        const size_t count = 1 + random_() % tokens.size();
        constraint->Rollback(static_cast<int>(count));
        tokens.resize(tokens.size() - count);
        const auto fresh = Replay(*rule_, tokens);
        ASSERT_THAT(Forced(*constraint), ElementsAreArray(Forced(*fresh))) << Vocab().Text(tokens);
        ASSERT_THAT(Allowed(*constraint), ElementsAreArray(Allowed(*fresh)))
            << Vocab().Text(tokens);
        ASSERT_EQ(constraint->Ended(), fresh->Ended());
      }
      tokens.push_back(Draw(*constraint));
      constraint->Accept(tokens.back());
      ASSERT_TRUE(constraint->status().ok()) << constraint->status();
    }
  }
}

TEST_P(RandomWalkTest, ForcedRunsGoOnWhereverTheyAreCut) {
  for (int walk = 0; walk < 10; ++walk) {
    const auto constraint = rule_->Make(nullptr);
    std::vector<int32_t> tokens;
    while (tokens.size() < 60) {
      const std::vector<int32_t> forced = Forced(*constraint);
      for (size_t i = 0; i < forced.size(); ++i) {
        const auto resumed = Replay(*rule_, tokens);
        EXPECT_THAT(Forced(*resumed),
                    ElementsAreArray(std::vector(forced.begin() + i, forced.end())));
        EXPECT_THAT(Allowed(*resumed), ElementsAre(forced[i]));
        constraint->Accept(forced[i]);
        tokens.push_back(forced[i]);
      }
      const int32_t token = Draw(*constraint);
      constraint->Accept(token);
      tokens.push_back(token);
      ASSERT_TRUE(constraint->status().ok()) << constraint->status();
      if (IsEnd(token)) break;
    }
  }
}

TEST_P(RandomWalkTest, ConstraintsOfOneRuleAreIndependentOnThreads) {
  // The walk of a seed, as text.
  const auto walk = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto constraint = rule_->Make(nullptr);
    std::vector<int32_t> tokens;
    while (tokens.size() < 40) {
      const std::vector<int32_t> allowed = Allowed(*constraint);
      if (allowed.empty()) break;
      tokens.push_back(allowed[random() % allowed.size()]);
      if (IsEnd(tokens.back())) break;
      constraint->Accept(tokens.back());
    }
    return tokens;
  };
  std::vector<std::vector<int32_t>> alone;
  for (uint64_t seed = 0; seed < 8; ++seed) alone.push_back(walk(seed));
  std::vector<std::vector<int32_t>> together(8);
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    threads.emplace_back([&, seed] { together[seed] = walk(seed); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
}

INSTANTIATE_TEST_SUITE_P(Rules, RandomWalkTest, ::testing::ValuesIn(VariedRules()),
                         [](const auto& info) { return absl::StrCat(info.index); });

TEST(LlgConstraintTest, ForcesWhatMustCome) {
  const auto rule = MakeRule("regex", "(red|green) the value [0-9] of the name");
  const auto constraint = rule->Make(nullptr);
  std::vector<int32_t> tokens;
  while (!constraint->Ended()) {
    const std::vector<int32_t> forced = Forced(*constraint);
    const std::vector<int32_t> next =
        forced.empty() ? std::vector<int32_t>{Allowed(*constraint)[0]} : forced;
    for (const int32_t token : next) constraint->Accept(token);
    tokens.insert(tokens.end(), next.begin(), next.end());
    ASSERT_TRUE(constraint->status().ok()) << constraint->status();
    ASSERT_LT(tokens.size(), 100u);
  }
  EXPECT_THAT(Vocab().Text(tokens), HasSubstr(" the value "));
  EXPECT_THAT(Allowed(*constraint), ElementsAre(Vocab().end, Vocab().other_end));
  EXPECT_THAT(constraint->Forced(), IsEmpty());
}

TEST(LlgConstraintTest, TakesAnyTokenizationOfForcedText) {
  const auto rule = MakeRule("regex", "name: (true|false)");
  const auto constraint = rule->Make(nullptr);
  ASSERT_FALSE(constraint->Forced().empty());
  for (const char byte : std::string("name: true")) {
    constraint->Accept(static_cast<uint8_t>(byte));
    ASSERT_TRUE(constraint->status().ok()) << constraint->status();
  }
  EXPECT_TRUE(constraint->Ended());
  // A token that is left within a run and drawn again after a rollback.
  constraint->Rollback(10);
  EXPECT_THAT(Forced(*constraint), ElementsAreArray(Forced(*rule->Make(nullptr))));
}

TEST(LlgConstraintTest, NamesTheTokenThatBreaksTheRule) {
  const auto rule = MakeRule("regex", "(true|false)");
  for (const int32_t token :
       {int32_t{'x'}, Vocab().end, Vocab().control, Vocab().tokenizer->vocab_size() - 1}) {
    const auto constraint = Replay(*rule, {'t', token});
    EXPECT_EQ(constraint->status().code(), absl::StatusCode::kInvalidArgument) << token;
    EXPECT_EQ(GetErrorDetails(constraint->status()).reason, "CONSTRAINT_FAILED");
    EXPECT_THAT(constraint->status().message(), HasSubstr("constraint.rule"));
    EXPECT_THAT(constraint->Forced(), IsEmpty());
    constraint->Accept('t');
    EXPECT_FALSE(constraint->status().ok()) << "it stays";
  }
}

TEST(LlgConstraintTest, ARuleThatLeadsNowhereIsTheClients) {
  const auto rule = MakeRule("lark", "start: t \"c\"\nt: /[ab]/ X\nX: /q/ & /r/");
  const auto constraint = Replay(*rule, {'a'});
  EXPECT_TRUE(constraint->Mask(0).words.empty());
  EXPECT_EQ(constraint->status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(constraint->status()).reason, "CONSTRAINT_FAILED");
  EXPECT_THAT(constraint->status().message(),
              HasSubstr("constraint.rule failed after 1 token: nothing may follow"));
}

TEST(LlgConstraintTest, AllowsControlTokensOnlyByName) {
  const auto anything = MakeRule("regex", "(.|\n)*");
  const std::vector<int32_t> allowed = Allowed(*anything->Make(nullptr));
  EXPECT_FALSE(std::ranges::binary_search(allowed, Vocab().control));
  EXPECT_TRUE(std::ranges::binary_search(allowed, Vocab().call)) << "it is text";
  EXPECT_TRUE(std::ranges::binary_search(allowed, Vocab().end));
  EXPECT_FALSE(std::ranges::binary_search(allowed, Vocab().tokenizer->vocab_size() - 1))
      << "unused";
  const auto named = MakeRule("lark", "start: <|im_start|> /[a-z]+/");
  EXPECT_THAT(Forced(*named->Make(nullptr)), ElementsAre(Vocab().control));
}

TEST(LlgConstraintTest, EndsOnlyWhereTheRuleDoesEvenIfItNamesTheEnd) {
  const auto rule = MakeRule("lark", "start: /[a-b]/ (<|im_end|> | \"c\") \"the\"");
  const auto constraint = rule->Make(nullptr);
  constraint->Accept('a');
  EXPECT_FALSE(constraint->Mask(0).Allows(Vocab().end));
  EXPECT_TRUE(constraint->Mask(0).Allows('c'));
  EXPECT_THAT(constraint->Forced(), IsEmpty());
}

TEST(LlgConstraintTest, RunsOutOfFuelWithItsName) {
  // Most states of the walk are new.
  const auto rule = MakeRule("regex", "(.*a.{50}b){20}");
  std::mt19937_64 random(5);
  const auto constraint = rule->Make(nullptr);
  for (int i = 0; i < 2000 && constraint->status().ok(); ++i) {
    const TokenMask mask = constraint->Mask(0);
    if (!constraint->status().ok()) {
      EXPECT_TRUE(mask.empty());
      break;
    }
    constraint->Accept("ab"[random() % 2]);
  }
  ASSERT_FALSE(constraint->status().ok());
  EXPECT_EQ(constraint->status().code(), absl::StatusCode::kResourceExhausted)
      << constraint->status();
  EXPECT_EQ(GetErrorDetails(constraint->status()).reason, "CONSTRAINT_FAILED");
}

TEST(LlgConstraintTest, ReplaysLongOutputsWithoutMasks) {
  // Each byte is a new state of the lexer.
  const auto rule = MakeRule("regex", "[ab]{20000}");
  const auto constraint = rule->Make(nullptr);
  for (int i = 0; i < 20000; ++i) constraint->Accept("ab"[i % 2]);
  EXPECT_TRUE(constraint->status().ok()) << constraint->status();
  EXPECT_TRUE(constraint->Ended());
}

TEST(LlgConstraintTest, ForcesLongTexts) {
  std::string text;
  for (int i = 0; text.size() < 60'000; ++i) absl::StrAppend(&text, "value ", i, " of the name ");
  const auto rule = MakeRule("json_schema", absl::StrCat(R"({"const":")", text, "\"}"));
  ASSERT_NE(rule, nullptr);
  const auto constraint = rule->Make(nullptr);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 1000 && !constraint->Ended(); ++i) {
    std::vector<int32_t> next = Forced(*constraint);
    if (next.empty()) next = {Allowed(*constraint)[0]};
    for (const int32_t token : next) constraint->Accept(token);
    ASSERT_TRUE(constraint->status().ok()) << constraint->status();
    tokens.insert(tokens.end(), next.begin(), next.end());
  }
  EXPECT_TRUE(constraint->Ended());
  EXPECT_EQ(Vocab().Text(tokens), absl::StrCat("\"", text, "\""));
}

TEST(LlgConstraintTest, TellsTheTimesOfMasks) {
  class Observer final : public ConstraintObserver {
   public:
    void OnCompiled(absl::Duration) override {}
    void OnMask(absl::Duration took) override {
      ++masks;
      EXPECT_GE(took, absl::ZeroDuration());
    }
    int masks = 0;
  };
  const auto observer = std::make_shared<Observer>();
  auto rule = TryRule("regex", "[ab]*", observer);
  ASSERT_TRUE(rule.ok()) << rule.status();
  const auto constraint = (*rule)->Make(nullptr);
  constraint->Mask(0);
  EXPECT_EQ(observer->masks, 0) << "the first was made with the rule";
  constraint->Accept('a');
  constraint->Mask(0);
  constraint->Mask(0);
  EXPECT_EQ(observer->masks, 1);
}

TEST(LlgConstraintTest, CountsFailuresOfItsRule) {
  const auto rule = MakeRule("regex", "(.*a.{50}b){20}");
  for (int failure = 0; failure < 3; ++failure) {
    EXPECT_TRUE(rule->refusal().ok()) << failure;
    // A token that breaks the rule is not the rule's fault.
    Replay(*rule, {'a', Vocab().end});
    std::mt19937_64 random(5);
    const auto constraint = rule->Make(nullptr);
    for (int i = 0; i < 2000 && constraint->status().ok(); ++i) {
      constraint->Mask(0);
      constraint->Accept("ab"[random() % 2]);
    }
    ASSERT_FALSE(constraint->status().ok());
  }
  EXPECT_EQ(GetErrorDetails(rule->refusal()).reason, "CONSTRAINT_TOO_LARGE");
  EXPECT_EQ(GetErrorDetails(rule->refusal()).field, "constraint.rule");
}

TEST(LlgConstraintTest, FailuresOfTokensThatMayNeverComeAreNotCounted) {
  const auto rule = MakeRule("regex", "(.*a.{50}b){20}");
  for (int failure = 0; failure < 4; ++failure) {
    std::mt19937_64 random(5);
    const auto constraint = rule->Make(nullptr);
    constraint->ExpectRollbacks();
    for (int i = 0; i < 2000 && constraint->status().ok(); ++i) {
      constraint->Mask(0);
      constraint->Accept("ab"[random() % 2]);
    }
    ASSERT_FALSE(constraint->status().ok());
  }
  EXPECT_TRUE(rule->refusal().ok()) << rule->refusal();
}

TEST(LlgConstraintTest, TellsThatItReplaysToRollBack) {
  for (const bool replays : {false, true}) {
    const auto rule =
        MakeRule("lark", replays ? "start: word \"!\" word\nword[max_tokens=9]: /[a-z]+/\n"
                                 : "start: word \"!\" word\nword: /[a-z]+/\n");
    ASSERT_NE(rule, nullptr);
    const auto constraint = Replay(*rule, {'a', 'b', '!', 'c'});
    EXPECT_FALSE(constraint->ReplaysToRollBack());
    constraint->Rollback(1);
    EXPECT_TRUE(constraint->status().ok()) << constraint->status();
    EXPECT_EQ(constraint->ReplaysToRollBack(), replays);
  }
}

// The library's own last mask is one of a state with as many lexemes and the same lexer's state.
TEST(LlgConstraintTest, MasksAfterARollbackAreThoseOfTheNewTokens) {
  const auto rule = MakeRule("json_schema",
                             R"({"$defs":{"l":{"anyOf":[{"type":"integer"},{"type":"array","items":
                                 {"$ref":"#/$defs/l"}}]}},"$ref":"#/$defs/l"})");
  const auto constraint = rule->Make(nullptr);
  for (const char token : std::string("[[1")) constraint->Accept(token);
  constraint->Mask(0);
  constraint->Rollback(2);
  for (const char token : std::string("1,1")) constraint->Accept(token);
  const auto fresh = Replay(*rule, {'[', '1', ',', '1'});
  EXPECT_THAT(Allowed(*constraint), ElementsAreArray(Allowed(*fresh)));
}

TEST(LlgRuleTest, BoundsTheMemoryOfARule) {
  // A literal's bytes are states of the lexer, and they are forced.
  const std::string text = "\"" + std::string(60'000, 'x') + "y\"";
  ConstraintLimits limits;
  limits.rule_bytes = 4 << 20;
  const int64_t before = LlgHeldBytes();
  const auto refused =
      TryRule("json_schema", absl::StrCat("{\"const\":", text, "}"), nullptr, limits);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(refused.status()).reason, "CONSTRAINT_TOO_LARGE");
  EXPECT_THAT(refused.status().message(), HasSubstr("more than 4 MiB of memory to compile"));
  EXPECT_LT(LlgHeldBytes(), before + (1 << 20)) << "it was given back";
  EXPECT_NE(MakeRule("json_schema", R"({"type":"integer"})"), nullptr) << "the library goes on";
}

TEST(LlgRuleTest, BoundsTheTimeOfACompilation) {
  ConstraintLimits limits;
  limits.compile_time = absl::Milliseconds(1);
  std::string choices = "start: C\nC: \"c\"";
  for (int i = 0; i < 20'000; ++i) absl::StrAppend(&choices, " | \"c", i, "\"");
  const auto refused = TryRule("lark", choices, nullptr, limits);
  EXPECT_EQ(GetErrorDetails(refused.status()).reason, "CONSTRAINT_TOO_LARGE") << refused.status();
  EXPECT_THAT(refused.status().message(), HasSubstr("more than the 1ms"));
}

TEST(LlgRuleTest, BoundsTheMemoryOfASequence) {
  const auto observer = std::shared_ptr<ConstraintObserver>();
  ConstraintLimits limits;
  limits.sequence_bytes = 1 << 20;
  const auto rule = TryRule("regex", "(.*a.{50}b){20}", observer, limits);
  ASSERT_TRUE(rule.ok()) << rule.status();
  std::mt19937_64 random(5);
  const auto constraint = (*rule)->Make(nullptr);
  for (int i = 0; i < 2000 && constraint->status().ok(); ++i) {
    constraint->Mask(0);
    constraint->Accept("ab"[random() % 2]);
  }
  EXPECT_EQ(constraint->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(constraint->status()).reason, "CONSTRAINT_FAILED");
  EXPECT_THAT(constraint->status().message(), HasSubstr("takes more than 1 MiB of memory"));
}

TEST(LlgStateTest, BoundsTheMemoryOfLookingForTheEnd) {
  ConstraintLimits limits;
  limits.sequence_bytes = 0;
  const auto state = LlgState::Compile(
      *Vocab().llg, {.type = "json_schema", .text = R"({"type":"integer"})"}, limits);
  // After a rollback, the library does not know if the output may end.
  ASSERT_TRUE(state->Accept('1') && state->Accept('2') && state->Rollback(1));
  const auto clone = state->Clone();
  ASSERT_FALSE(clone->HasFailed());
  EXPECT_FALSE(clone->MayEnd());
  ASSERT_TRUE(clone->HasFailed());
  EXPECT_EQ(clone->error().stop, LibraryStop::kMemory);
}

TEST(LlgRuleTest, BoundsTheMemoryOfAll) {
  ConstraintLimits limits;
  limits.held_bytes = static_cast<size_t>(LlgHeldBytes()) + (4 << 20);
  const auto rule =
      TryRule("json_schema", R"({"type":"array","items":{"type":"string"}})", nullptr, limits);
  ASSERT_TRUE(rule.ok()) << rule.status();
  std::vector<std::unique_ptr<Constraint>> constraints;
  absl::Status status;
  while (status.ok() && constraints.size() < 10'000) {
    constraints.push_back((*rule)->Make(nullptr));
    constraints.back()->Accept('[');
    status = constraints.back()->status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(status).reason, "CONSTRAINT_LIMIT");
  EXPECT_EQ(GetErrorDetails(status).subject, "constraints:memory");
  EXPECT_TRUE((*rule)->refusal().ok()) << "it is not the rule's fault";
  constraints.clear();
  EXPECT_TRUE(Replay(**rule, {'['})->status().ok()) << "there is room again";
}

TEST(LlgRuleTest, RefusesWhatNothingFulfils) {
  for (const auto& [type, text] : std::vector<std::pair<std::string, std::string>>{
           {"json_schema", "false"},
           {"json_schema", R"({"type":"integer","minimum":5,"maximum":4})"},
           {"json_schema", R"({"type":"object","properties":{"a":false},"required":["a"]})"},
           {"regex", "a[^\\s\\S]"}}) {
    const auto rule = TryRule(type, text);
    EXPECT_EQ(rule.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(GetErrorDetails(rule.status()).reason,
                ::testing::AnyOf("CONSTRAINT_UNSATISFIABLE", "CONSTRAINT_INVALID"))
        << text << rule.status();
  }
}

TEST(LlgRuleTest, RefusesWhatForcesATextWithoutAnEnd) {
  const auto rule = TryRule("lark", "start: \"a\" start");
  EXPECT_EQ(rule.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(rule.status()).reason, "CONSTRAINT_TOO_LARGE") << rule.status();
}

TEST(LlgRuleTest, HoldsWhatItIsGiven) {
  const auto rule = MakeRule("regex", "a");
  auto held = std::make_shared<int>(0);
  auto constraint = rule->Make(held);
  EXPECT_EQ(held.use_count(), 2);
  constraint = nullptr;
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_GT(rule->bytes(), 10'000u);
}

}  // namespace
}  // namespace orcd
