#include "runtime/backend/batch_checker.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "runtime/backend/drafts.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

template <typename... What>
absl::Status Wrong(const StepSequence& seq, const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat("slot ", seq.slot, ": ", what...));
}

}  // namespace

BatchChecker::BatchChecker(const BackendInfo& info, const ModelSpec& spec)
    : info_(info),
      vocab_(spec.vocab),
      context_length_(info.max_context > 0 ? std::min(info.max_context, spec.context_length)
                                           : spec.context_length),
      window_(spec.window()),
      used_(info.max_seqs),
      drew_(info.max_seqs),
      drafted_in_(info.max_seqs),
      slot_states_(info.max_seqs),
      cell_states_(info.state_cells),
      saved_(info.state_cells) {}

absl::Status BatchChecker::Check(const StepBatch& batch) {
  if (masks_awaited_ > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        masks_awaited_, " masks of the last step were not given before the next was launched"));
  }
  if (batch.seqs.empty() || batch.seqs.size() > used_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", batch.seqs.size(), " sequences, must be 1 to ", used_.size()));
  }
  used_.assign(used_.size(), false);
  int64_t rows = 0;
  size_t drafts = 0;
  size_t blocks = 0;
  for (const StepSequence& seq : batch.seqs) {
    ORCD_RETURN_IF_ERROR(CheckSequence(seq));
    if (used_[seq.slot]) {
      return absl::InvalidArgumentError(absl::StrCat("slot ", seq.slot, " stands twice in a step"));
    }
    used_[seq.slot] = true;
    rows += RowsOf(seq);
    drafts += seq.drafts.size();
    blocks += seq.blocks.size();
  }
  if (blocks > static_cast<size_t>(info_.kv_blocks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", blocks, " blocks, must be at most ", info_.kv_blocks));
  }
  if (rows > info_.max_step_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", rows, " tokens, at most ", info_.max_step_tokens, " fit"));
  }
  if (info_.max_step_drafts > 0 && drafts > static_cast<size_t>(info_.max_step_drafts)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", drafts, " drafts, at most ", info_.max_step_drafts, " fit"));
  }
  ORCD_RETURN_IF_ERROR(CheckCells(batch));
  ++launched_;
  for (const StepSequence& seq : batch.seqs) {
    if (seq.start_params != nullptr) drew_[seq.slot] = false;
    if (seq.sample) drew_[seq.slot] = true;
    if (!seq.drafts.empty()) drafted_in_[seq.slot] = launched_;
    if (seq.mask_follows) ++masks_awaited_;
    const int64_t end = seq.start_position + std::ssize(seq.tokens);
    slot_states_[seq.slot] = {end, end + std::ssize(seq.drafts)};
    for (const StateSave& save : seq.save_states) {
      const int64_t after = int64_t{seq.start_position} + save.tokens;
      cell_states_[save.cell] = {after, after};
    }
  }
  return absl::OkStatus();
}

absl::Status BatchChecker::CheckMasks(std::span<const TokenMask> masks) {
  if (masks_awaited_ == 0) {
    return absl::FailedPreconditionError("masks were given and none is awaited");
  }
  if (masks.size() != static_cast<size_t>(masks_awaited_)) {
    return absl::InvalidArgumentError(
        absl::StrCat(masks.size(), " masks were given and ", masks_awaited_, " are awaited"));
  }
  for (size_t i = 0; i < masks.size(); ++i) {
    if (const std::string wrong = WrongWithMask(masks[i]); !wrong.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("mask ", i, ": ", wrong));
    }
  }
  masks_awaited_ = 0;
  return absl::OkStatus();
}

std::string BatchChecker::WrongWithMask(const TokenMask& mask) const {
  if (mask.empty()) return "";
  const size_t words = TokenMask::WordsFor(vocab_);
  if (mask.words.size() != words ||
      (vocab_ % 32 != 0 && mask.words.back() >> vocab_ % 32 != ~0u >> vocab_ % 32)) {
    return absl::StrCat("a mask of another vocabulary than ", vocab_, " tokens");
  }
  return mask.AllowsAny(vocab_) ? "" : "a mask that allows no token";
}

absl::Status BatchChecker::CheckSequence(const StepSequence& seq) const {
  if (seq.slot < 0 || seq.slot >= info_.max_seqs) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot ", seq.slot, ", must be 0 to ", info_.max_seqs - 1));
  }
  const auto wrong = [&](const auto&... what) { return Wrong(seq, what...); };
  if (seq.tokens.empty()) return wrong("no tokens to run");
  if (seq.start_position < 0) return wrong("start position ", seq.start_position);
  if (seq.targets.size() > seq.tokens.size()) {
    return wrong(seq.targets.size(), " targets for ", seq.tokens.size(), " tokens");
  }
  if (!seq.targets.empty() && !info_.prompt_logprobs) {
    return wrong("targets, which this backend does not support");
  }
  for (const int32_t token : seq.targets) {
    if (token < 0 || token >= vocab_) return wrong("target ", token);
  }
  ORCD_RETURN_IF_ERROR(CheckDrafts(seq));
  if (seq.predictions < 0 || seq.predictions > info_.max_predictions) {
    return wrong(seq.predictions, " predictions, must be at most ", info_.max_predictions);
  }
  if (seq.predictions > 0 && !seq.sample) return wrong("predictions and nothing is drawn");
  const int64_t end = seq.start_position + RowsOf(seq);
  if (end > static_cast<int64_t>(seq.blocks.size()) * info_.block_tokens) {
    return wrong("position ", end - 1, " is not in the ", seq.blocks.size(), " blocks given");
  }
  if (end > context_length_) {
    return wrong("position ", end - 1, ", the model has ", context_length_);
  }
  for (const int32_t block : seq.blocks) {
    if (block < 0 || block >= info_.kv_blocks) {
      return wrong("block ", block, ", there are ", info_.kv_blocks);
    }
  }
  ORCD_RETURN_IF_ERROR(CheckWindowBlocks(seq, end));
  ORCD_RETURN_IF_ERROR(CheckState(seq));
  const bool has_sample = seq.start_params == nullptr && drew_[seq.slot];
  for (const int32_t token : seq.tokens) {
    if (token == kPreviousSample && has_sample) continue;
    if (token < 0 || token >= vocab_) {
      return wrong("token ", token, ", the vocabulary has ", vocab_,
                   has_sample ? "" : " and nothing was drawn for the slot yet");
    }
  }
  if (seq.mask_follows) {
    if (!info_.late_masks) return wrong("a mask that follows, which this backend does not support");
    if (!seq.sample) return wrong("a mask follows and nothing is drawn");
    if (!seq.mask.empty()) return wrong("a mask was given and another follows");
  }
  if (const std::string what = WrongWithMask(seq.mask); !what.empty()) return wrong(what);
  return absl::OkStatus();
}

absl::Status BatchChecker::CheckDrafts(const StepSequence& seq) const {
  const auto wrong = [&](const auto&... what) { return Wrong(seq, what...); };
  if (drafted_in_[seq.slot] > waited_) {
    return wrong("a step with drafts of it was not waited for");
  }
  const size_t count = seq.drafts.size();
  if (seq.draft_masks.size() != count) {
    return wrong(seq.draft_masks.size(), " masks for ", count, " drafts");
  }
  if (count == 0) return absl::OkStatus();
  if (info_.max_drafts == 0) return wrong("drafts, which this backend does not support");
  if (count > static_cast<size_t>(info_.max_drafts)) {
    return wrong(count, " drafts, must be at most ", info_.max_drafts);
  }
  if (!seq.sample) return wrong("drafts and nothing is drawn");
  if (seq.mask_follows) return wrong("drafts and a mask that follows");
  for (const int32_t token : seq.drafts) {
    if (token < 0 || token >= vocab_) {
      return wrong("draft ", token, ", the vocabulary has ", vocab_);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (const std::string what = WrongWithMask(seq.draft_masks[i]); !what.empty()) {
      return wrong("draft ", i, ": ", what);
    }
  }
  return absl::OkStatus();
}

absl::Status BatchChecker::CheckWindowBlocks(const StepSequence& seq, int64_t end) const {
  const auto count = static_cast<int64_t>(seq.window_blocks.size());
  if (info_.window_blocks == 0) {
    if (count == 0) return absl::OkStatus();
    return Wrong(seq, "window blocks, of which this backend has none");
  }
  if (count > static_cast<int64_t>(seq.blocks.size())) {
    return Wrong(seq, count, " window blocks, more than the ", seq.blocks.size(), " blocks");
  }
  if (end > count * info_.block_tokens) {
    return Wrong(seq, "position ", end - 1, " is not in the ", count, " window blocks given");
  }
  const int first = std::max(seq.start_position - window_ + 1, 0) / info_.block_tokens;
  const auto last = (end - 1) / info_.block_tokens;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t block = seq.window_blocks[i];
    if (block == kNoBlock) {
      if (i < first || i > last) continue;
      return Wrong(seq, "window block ", i, " is missing; the step reads ", first, " to ", last);
    }
    if (block < 0 || block >= info_.window_blocks) {
      return Wrong(seq, "window block ", block, ", there are ", info_.window_blocks);
    }
  }
  return absl::OkStatus();
}

absl::Status BatchChecker::CheckState(const StepSequence& seq) const {
  const auto wrong = [&](const auto&... what) { return Wrong(seq, what...); };
  const auto no_cell = [&](int32_t cell) {
    return wrong("cell ", cell, " of recurrent states, there are ", info_.state_cells);
  };
  if (seq.restore_state < -1 || seq.restore_state >= info_.state_cells) {
    return no_cell(seq.restore_state);
  }
  if (seq.save_states.size() > size_t{kMaxStateSaves}) {
    return wrong(seq.save_states.size(), " states to save, must be at most ", kMaxStateSaves);
  }
  int32_t before = 0;
  for (const StateSave& save : seq.save_states) {
    if (save.cell < 0 || save.cell >= info_.state_cells) return no_cell(save.cell);
    if (save.tokens <= before || save.tokens > std::ssize(seq.tokens)) {
      return wrong("a state to save after ", save.tokens, " tokens, must be ", before + 1, " to ",
                   seq.tokens.size());
    }
    before = save.tokens;
  }
  if (!info_.recurrent) return absl::OkStatus();
  const int64_t start = seq.start_position;
  if (seq.restore_state >= 0) {
    const StateAt& cell = cell_states_[seq.restore_state];
    if (cell.most < 0) return wrong("cell ", seq.restore_state, " holds no recurrent state");
    if (cell.most == start) return absl::OkStatus();
    return wrong("cell ", seq.restore_state, " holds the recurrent state of position ", cell.most,
                 ", and the step starts at ", start);
  }
  if (start == 0) return absl::OkStatus();
  const StateAt& own = slot_states_[seq.slot];
  if (start >= own.least && start <= own.most) return absl::OkStatus();
  if (seq.start_params != nullptr) {
    return wrong("starts at position ", start, " without a recurrent state");
  }
  return wrong("its recurrent state is that of position ", own.most, ", and the step starts at ",
               start);
}

absl::Status BatchChecker::CheckCells(const StepBatch& batch) {
  saved_.assign(saved_.size(), false);
  for (const StepSequence& seq : batch.seqs) {
    for (const StateSave& save : seq.save_states) {
      if (saved_[save.cell]) {
        return Wrong(seq, "cell ", save.cell, " is saved to twice in a step");
      }
      saved_[save.cell] = true;
    }
  }
  for (const StepSequence& seq : batch.seqs) {
    if (seq.restore_state < 0 || !saved_[seq.restore_state]) continue;
    return Wrong(seq, "cell ", seq.restore_state, " is restored and saved to in a step");
  }
  return absl::OkStatus();
}

}  // namespace orcd
