// Checkpoints of models with recurrent layers: at which positions a sequence's state is saved, and
// with which saved state it begins.
//
// The state of such a model after a prefix cannot be cut from a later one, as KV blocks can. So the
// states of some positions are kept in cells, each under the name of the KV block that ends there,
// and a sequence can begin after the blocks and the checkpoint that are both there. A cell takes as
// much memory as the keys and values of some thousand tokens, so that checkpoints are few:
// - A step that runs a part of a prompt ends the part at a block's end and saves the state there,
//   if checkpoint_tokens have passed since the last checkpoint. A part is not made shorter for
//   that: a prompt that runs in large steps has a checkpoint in each.
// - A prompt's last block boundary is a checkpoint, since the same prompt may come again, alone, as
//   the beginning of a conversation's next turn, or for the request's other samples.
// - A long prompt also has one before that, at a multiple of checkpoint_tokens, since many prompts
//   differ in their last lines alone.
// - If KV blocks were found beyond the checkpoint, others have begun alike, and more may come: the
//   end of those blocks is a checkpoint.
// Each of the last three costs a short step, and none of them is made close after another.
// - A sequence that decodes saves its state once checkpoint_tokens have passed. It does not
//   overwrite a cell at each block instead: that copies the whole state, and spares the next turn
//   no more than checkpoint_tokens of prompt. A part with drafts saves nothing, for the state after
//   its last token is not the one that the sequence goes on with.
#include <algorithm>
#include <array>
#include <utility>

#include "runtime/engine/scheduler.h"

namespace orcd {

bool Scheduler::KeepsStates(const Sequence& sequence) const {
  return states_.total() > 0 && sequence.live->prefix_root.has_value();
}

std::array<int, 3> Scheduler::PlannedCheckpoints(const Sequence& sequence) const {
  // The last known token is run in any case, to draw the one after it.
  const int before_last = static_cast<int>(sequence.tokens.size()) - 1;
  const int last = before_last - before_last % backend_.block_tokens;
  int tail = 0;
  if (last >= 2 * checkpoint_tokens_) tail = (last - 1) / checkpoint_tokens_ * checkpoint_tokens_;
  return {sequence.branch, tail, last};
}

bool Scheduler::IsCheckpoint(const Sequence& sequence, int position) const {
  if (!KeepsStates(sequence) || position % backend_.block_tokens != 0) return false;
  const int since = position - sequence.last_checkpoint;
  if (since >= checkpoint_tokens_) return true;
  // Fewer tokens are run again in the time of a step. But each of a request's samples would.
  const int least =
      sequence.live->request.samples > 1 ? backend_.block_tokens : checkpoint_tokens_ / 4;
  return since >= std::max(least, 1) &&
         std::ranges::count(PlannedCheckpoints(sequence), position) > 0;
}

int Scheduler::CutAtCheckpoint(const Sequence& sequence, int count) const {
  if (!KeepsStates(sequence)) return count;
  const int begin = sequence.scheduled;
  int end = begin + count;
  for (const int position : PlannedCheckpoints(sequence)) {
    if (position > begin && position < end && IsCheckpoint(sequence, position)) end = position;
  }
  if (count == sequence.unscheduled()) return end - begin;
  const int boundary = end - end % backend_.block_tokens;
  if (boundary > begin && IsCheckpoint(sequence, boundary)) end = boundary;
  return end - begin;
}

void Scheduler::BeginAtCheckpoint(Sequence& sequence, int shared, int found) {
  sequence.last_checkpoint = sequence.scheduled;
  sequence.branch = found * backend_.block_tokens;
  if (shared == 0) return;
  sequence.checkpoint = states_.Find(BlockHashes(sequence, shared).back());
  ++counts_.checkpoint_hits;
  counts_.checkpoint_tokens += sequence.scheduled;
}

StateCell Scheduler::TakeCheckpoint(Sequence& sequence, int end) {
  if (!IsCheckpoint(sequence, end)) return {};
  StateCell cell;
  // The last token may be one that is being drawn.
  if (end <= static_cast<int>(sequence.tokens.size())) {
    // A state that is there counts as used, and need not be saved again.
    cell = states_.Find(BlockHashes(sequence, end / backend_.block_tokens).back());
  }
  const bool is_there = cell.held();
  if (!is_there) cell = states_.Take();
  if (cell.held()) sequence.last_checkpoint = end;
  return is_there ? StateCell() : std::move(cell);
}

void Scheduler::NameCheckpoint(const InFlight::Part& part) {
  Sequence& sequence = *part.sequence;
  // The generation may have ended before the part's last token.
  if (part.end > static_cast<int>(sequence.tokens.size())) return;
  const int blocks = part.end / backend_.block_tokens;
  if (states_.Name(part.saved, BlockHashes(sequence, blocks).back())) ++counts_.saved_checkpoints;
}

void Scheduler::LeaveCheckpoint(Sequence& sequence) {
  sequence.checkpoint.Release();
  sequence.last_checkpoint = 0;
  sequence.branch = 0;
}

}  // namespace orcd
