#include "runtime/constraint/llg_state.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "runtime/sampling/token_mask.h"

namespace orcd {
namespace {

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

const uint8_t* BytesOf(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

// Null if there is none. Outside of a call, the program would abort if there is no memory for it.
const char* TextOfError(OrcdMatcher* matcher) {
  const char* text = nullptr;
  CallLlg({}, [&] { text = orcd_matcher_error(matcher); });
  return text;
}

void SetAllowed(std::vector<uint32_t>& words, int32_t token, bool allowed) {
  uint32_t& word = words[token / 32];
  const uint32_t bit = 1u << token % 32;
  word = allowed ? word | bit : word & ~bit;
}

}  // namespace

void LlgState::Call(absl::FunctionRef<void()> call, absl::Duration time) {
  const LlgUse use = CallLlg({.bytes = most_bytes_ - bytes_,
                              .held = static_cast<int64_t>(limits_.held_bytes),
                              .time = time},
                             call);
  bytes_ += use.bytes;
  if (stop_ == LibraryStop::kNone) stop_ = use.stop;
}

std::unique_ptr<LlgState> LlgState::Compile(const LlgVocabulary& vocabulary, const RuleText& text,
                                            const ConstraintLimits& limits) {
  std::unique_ptr<LlgState> state(new LlgState(vocabulary, limits, limits.rule_bytes));
  const LlgConstraintInit init = InitFor(vocabulary);
  state->Call(
      [&] {
        state->matcher_.reset(orcd_matcher_new(&init, vocabulary.tokens(), BytesOf(text.type),
                                               text.type.size(), BytesOf(text.text),
                                               text.text.size()));
      },
      limits.compile_time);
  if (state->matcher_ == nullptr && state->stop_ == LibraryStop::kNone) {
    state->stop_ = LibraryStop::kMemory;
  }
  return state;
}

std::unique_ptr<LlgState> LlgState::Clone() const {
  std::unique_ptr<LlgState> clone(new LlgState(vocabulary_, limits_, limits_.sequence_bytes));
  // A clone that is stopped would leave the original useless, so it has no bounds.
  if (LlgHeldBytes() + bytes_ > static_cast<int64_t>(limits_.held_bytes)) {
    clone->stop_ = LibraryStop::kAllMemory;
    return clone;
  }
  const LlgUse use =
      CallLlg({}, [&] { clone->matcher_.reset(orcd_matcher_clone(matcher_.get())); });
  clone->bytes_ = use.bytes;
  clone->stop_ = clone->matcher_ == nullptr ? LibraryStop::kAllMemory : use.stop;
  return clone;
}

bool LlgState::ComputeMask(std::vector<uint32_t>& words) {
  const Tokenizer& tokenizer = vocabulary_.tokenizer();
  const int vocab = tokenizer.vocab_size();
  words.resize(TokenMask::WordsFor(vocab));
  if (stop_ != LibraryStop::kNone) return false;
  bool is_made = false;
  Call([&] { is_made = orcd_matcher_mask(matcher_.get(), words.data(), words.size()); });
  if (!is_made || stop_ != LibraryStop::kNone) return false;
  // A rule that names an end id allows it where more must follow, too.
  const bool may_end = MayEnd();
  if (stop_ != LibraryStop::kNone) return false;
  for (const int32_t end : tokenizer.eog_ids()) SetAllowed(words, end, may_end);
  words.back() |= ~TokensOfLastWord(vocab);
  return may_end || TokenMask{words}.AllowsAny(vocab);
}

bool LlgState::ComputeForced(std::vector<int32_t>& tokens) {
  tokens.clear();
  if (stop_ != LibraryStop::kNone) return false;
  std::array<uint32_t, kMaxForced> ids;
  int64_t count = -1;
  Call([&] { count = orcd_matcher_forced(matcher_.get(), ids.data(), ids.size()); });
  if (count < 0 || stop_ != LibraryStop::kNone) return false;
  for (int64_t i = 0; i < count; ++i) {
    const auto token = static_cast<int32_t>(ids[i]);
    if (vocabulary_.tokenizer().IsEog(token)) break;
    tokens.push_back(token);
  }
  return true;
}

bool LlgState::Accept(int32_t token) {
  if (stop_ != LibraryStop::kNone) return false;
  bool is_accepted = false;
  Call([&] { is_accepted = orcd_matcher_accept(matcher_.get(), static_cast<uint32_t>(token)); });
  return is_accepted && stop_ == LibraryStop::kNone;
}

bool LlgState::Rollback(size_t count) {
  if (stop_ != LibraryStop::kNone) return false;
  bool is_done = false;
  Call([&] { is_done = orcd_matcher_rollback(matcher_.get(), count); });
  return is_done && stop_ == LibraryStop::kNone;
}

bool LlgState::IsStopped() const {
  return stop_ != LibraryStop::kNone || orcd_matcher_is_stopped(matcher_.get());
}

bool LlgState::MayEnd() {
  if (IsStopped()) return true;
  bool may_end = false;
  Call([&] { may_end = orcd_matcher_is_accepting(matcher_.get()); });
  return may_end && stop_ == LibraryStop::kNone;
}

bool LlgState::HasFailed() const {
  return stop_ != LibraryStop::kNone || TextOfError(matcher_.get()) != nullptr;
}

LibraryError LlgState::error() const {
  LibraryError error = {.stop = stop_,
                        .most_bytes = most_bytes_,
                        .most_held = static_cast<int64_t>(limits_.held_bytes),
                        .most_time = limits_.compile_time};
  if (stop_ != LibraryStop::kNone) return error;
  const char* const text = TextOfError(matcher_.get());
  error.text = text == nullptr ? "no cause given" : text;
  // The library appends its state.
  error.text.resize(std::min(error.text.find("\n<"), error.text.size()));
  return error;
}

}  // namespace orcd
