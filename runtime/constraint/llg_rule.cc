#include "runtime/constraint/llg_rule.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/constraint/deep_stack.h"
#include "runtime/constraint/llg_constraint.h"

namespace orcd {
namespace {

// The library descends with each group, schema and reference of a rule and overruns the stack
// unnoticed. The most that a byte of text was seen to take is 900 bytes, in Lark's groups
// (2026-11-27). A thread has 8 MiB, if nobody says otherwise.
constexpr size_t kStackForAByte = 2048;
constexpr size_t kLeastStack = 8 << 20;
constexpr size_t kTextForAnyStack = 2048;

constexpr size_t kMaxForced = 4096;

LlgConstraintInit InitFor(const LlgVocabulary& vocabulary) {
  LlgConstraintInit init = {};
  llg_constraint_init_set_defaults(&init, vocabulary.get());
  init.log_buffer_level = 0;
  init.log_stderr_level = 0;
  init.ff_tokens_ok = true;
  init.limits.initial_lexer_fuel = 200'000;
  // Half of the masks that take all of it take 2.5 ms, at worst 9 ms.
  init.limits.step_lexer_fuel = 50'000;
  // 27 MB for a sequence.
  init.limits.max_lexer_states = 50'000;
  init.limits.verbose_errors = false;
  return init;
}

void SetAllowed(std::vector<uint32_t>& words, int32_t token, bool allowed) {
  uint32_t& word = words[token / 32];
  const uint32_t bit = 1u << token % 32;
  word = allowed ? word | bit : word & ~bit;
}

bool AllowsAny(const std::vector<uint32_t>& words, int vocab) {
  return (words.back() & TokensOfLastWord(vocab)) != 0 ||
         std::any_of(words.begin(), words.end() - 1, [](uint32_t word) { return word != 0; });
}

// True if tokens may follow `forced`. Objects of many optional properties exceed the library's
// limits once they have begun.
bool GoesOnAfter(const std::vector<int32_t>& forced, const LlgVocabulary& vocabulary,
                 LlgMatcher& matcher) {
  for (const int32_t token : forced) {
    if (llg_matcher_consume_token(&matcher, static_cast<uint32_t>(token)) != 0) return false;
  }
  std::vector<uint32_t> words;
  return ComputeLlgMask(vocabulary, matcher, words);
}

}  // namespace

std::string_view LlgErrorOf(LlgMatcher& matcher) {
  const char* error = llg_matcher_get_error(&matcher);
  const std::string_view text = error == nullptr ? "no cause given" : error;
  return text.substr(0, text.find("\n<"));
}

bool ComputeLlgMask(const LlgVocabulary& vocabulary, LlgMatcher& matcher,
                    std::vector<uint32_t>& words) {
  const Tokenizer& tokenizer = vocabulary.tokenizer();
  const int vocab = tokenizer.vocab_size();
  words.resize(TokenMask::WordsFor(vocab));
  if (llg_matcher_compute_mask_into(&matcher, words.data(), words.size() * sizeof(uint32_t)) != 0) {
    return false;
  }
  // A rule that names an end id allows it where more must follow, too.
  const bool may_end = llg_matcher_is_stopped(&matcher) || llg_matcher_is_accepting(&matcher);
  for (const int32_t end : tokenizer.eog_ids()) SetAllowed(words, end, may_end);
  words.back() |= ~TokensOfLastWord(vocab);
  return may_end || AllowsAny(words, vocab);
}

bool ComputeLlgForced(const LlgVocabulary& vocabulary, LlgMatcher& matcher,
                      std::vector<int32_t>& tokens) {
  std::array<uint32_t, kMaxForced> ids;
  const int32_t count = llg_matcher_compute_ff_tokens(&matcher, ids.data(), ids.size());
  tokens.clear();
  if (count < 0) return false;
  for (int32_t i = 0; i < count; ++i) {
    const auto token = static_cast<int32_t>(ids[i]);
    if (vocabulary.tokenizer().IsEog(token)) break;
    tokens.push_back(token);
  }
  return true;
}

absl::StatusOr<std::shared_ptr<const LlgRule>> LlgRule::Compile(
    std::shared_ptr<const LlgVocabulary> vocabulary, const ConstraintSpec& spec,
    const RuleText& text, std::shared_ptr<ConstraintObserver> observer) {
  std::shared_ptr<LlgRule> rule(new LlgRule);
  const LlgConstraintInit init = InitFor(*vocabulary);
  rule->vocabulary_ = std::move(vocabulary);
  rule->observer_ = std::move(observer);
  rule->field_ = spec.field;
  rule->text_bytes_ = text.text.size();
  const auto make_matcher = [&] {
    rule->matcher_.reset(llg_new_matcher(&init, text.type.c_str(), text.text.c_str()));
  };
  if (text.text.size() <= kTextForAnyStack) {
    make_matcher();
  } else {
    ORCD_ASSIGN_OR_RETURN(
        rule->time_elsewhere_,
        CallWithStack(kLeastStack + kStackForAByte * text.text.size(), make_matcher));
  }
  LlgMatcher& matcher = *rule->matcher_;
  if (llg_matcher_is_error(&matcher)) return RefusalOf(spec, LlgErrorOf(matcher));
  const LlgMatcherPtr ahead = rule->CloneMatcher();
  if (!ComputeLlgForced(*rule->vocabulary_, matcher, rule->first_forced_) ||
      !ComputeLlgMask(*rule->vocabulary_, matcher, rule->first_mask_) ||
      !GoesOnAfter(rule->first_forced_, *rule->vocabulary_, *ahead)) {
    for (LlgMatcher* failed : {&matcher, ahead.get()}) {
      if (llg_matcher_is_error(failed)) return RefusalOf(spec, LlgErrorOf(*failed));
    }
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat(spec.field, ": no output fulfils the rule with this vocabulary"),
                     {.reason = "CONSTRAINT_UNSATISFIABLE", .field = spec.field});
  }
  std::vector<uint32_t> without_end = rule->first_mask_;
  for (const int32_t end : rule->vocabulary_->tokenizer().eog_ids()) {
    SetAllowed(without_end, end, false);
  }
  rule->allows_only_end_ = !AllowsAny(without_end, rule->vocabulary_->tokenizer().vocab_size());
  return rule;
}

size_t LlgRule::bytes() const {
  // The library does not tell. For texts of 2 bytes to 140 KB its memory was at most 128 KiB and
  // 160 times the text; a text that is forced takes 460 times its size (2026-11-27).
  const bool forces_all = first_forced_.size() == kMaxForced;
  return (128 << 10) + (forces_all ? 460 : 160) * text_bytes_ +
         first_mask_.size() * sizeof(uint32_t) + first_forced_.size() * sizeof(int32_t);
}

std::unique_ptr<Constraint> LlgRule::Make(std::shared_ptr<const void> held) const {
  return std::make_unique<LlgConstraint>(shared_from_this(), std::move(held));
}

}  // namespace orcd
