#include "runtime/engine/sequence.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

// Most tokens that are taken from a constraint at once, so that the engine is not held. After them
// one is drawn, and the constraint forces more.
constexpr size_t kMaxForced = 256;

std::vector<int32_t> ForcedBy(Constraint& constraint) {
  std::span<const int32_t> forced = constraint.Forced();
  forced = forced.first(std::min(forced.size(), kMaxForced));
  return {forced.begin(), forced.end()};
}

SamplingParams ParamsOf(const GenerationRequest& request, int sample) {
  SamplingParams params = request.sampling;
  params.seed += static_cast<uint64_t>(sample);
  params.masked_logprobs = request.constraint != nullptr;
  return params;
}

}  // namespace

Sequence::Sequence(std::shared_ptr<LiveRequest> request, int sample_index, int64_t arrival_order)
    : live(std::move(request)),
      sample(sample_index),
      order(arrival_order),
      sampling(ParamsOf(live->request, sample_index)),
      tokens(live->request.prompt),
      text(live->request.stop.strings, live->request.stop.min_tokens),
      drawn(static_cast<int>(live->request.resume.size())) {
  tokens.insert(tokens.end(), live->request.resume.begin(), live->request.resume.end());
}

void Sequence::AcceptDrawn(std::span<const SampledToken> drawn) {
  accepted_draws = 0;
  forced.clear();
  for (const SampledToken& sample : drawn) {
    constraint->Accept(sample.token);
    if (!constraint->status().ok()) return;
    ++accepted_draws;
  }
  forced = ForcedBy(*constraint);
  for (const int32_t next : forced) constraint->Accept(next);
  forces_end = constraint->Ended();
  // An error of what is forced is one of the token that forces it.
  if (!constraint->status().ok()) --accepted_draws;
}

void Sequence::MaskGuess() {
  guess.masks.assign(guess.tokens.size() + 1, {});
  if (constraint == nullptr) return;
  constraint_has_guessed = true;
  constraint->ExpectRollbacks();
  // The constraint's own words change with it.
  guess.words.resize(std::max(guess.words.size(), guess.masks.size()));
  const auto take_mask = [this](size_t i) {
    const TokenMask mask = constraint->Mask(0);
    guess.words[i].assign(mask.words.begin(), mask.words.end());
    guess.masks[i] = {guess.words[i]};
  };
  take_mask(0);
  size_t good = 0;
  int accepted = 0;
  for (; good < guess.tokens.size(); ++good) {
    const int32_t token = guess.tokens[good];
    if (!constraint->status().ok() || !guess.masks[good].Allows(token)) break;
    constraint->Accept(token);
    ++accepted;
    // Tokens that are forced need no guess, and are run with the one before them.
    if (!constraint->status().ok() || constraint->Ended() || !constraint->Forced().empty()) break;
    take_mask(good + 1);
  }
  const bool failed = !constraint->status().ok();
  constraint->Rollback(accepted);
  guess.tokens.resize(failed ? 0 : good);
  guess.masks.resize(guess.tokens.size() + 1);
}

absl::StatusOr<bool> Sequence::Replay(int count) {
  ORCD_RETURN_IF_ERROR(constraint->status());
  const std::span<const int32_t> resume = live->request.resume;
  if (replayed == 0) forced = ForcedBy(*constraint);
  for (; count > 0 && replayed < static_cast<int>(resume.size()); --count, ++replayed) {
    const int32_t token = resume[replayed];
    constraint->Accept(token);
    if (const absl::Status status = constraint->status(); absl::IsInvalidArgument(status)) {
      return InvalidField(
          absl::StrCat("resume_token_ids[", replayed, "]"),
          absl::StrCat(token, " is no token that the constraint allows there: ", status.message()));
    }
    ORCD_RETURN_IF_ERROR(constraint->status());
    // Forced is asked where it was asked when the tokens were generated.
    if (!forced.empty() && forced.front() == token) {
      forced.erase(forced.begin());
    } else {
      forced = ForcedBy(*constraint);
    }
  }
  if (replayed < static_cast<int>(resume.size())) return false;
  for (const int32_t next : forced) constraint->Accept(next);
  forces_end = constraint->Ended();
  ORCD_RETURN_IF_ERROR(constraint->status());
  return true;
}

}  // namespace orcd
