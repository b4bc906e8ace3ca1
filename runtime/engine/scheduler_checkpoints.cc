// Checkpoints of models with recurrent layers: at which positions a sequence's state is saved, and
// with which saved state it begins.
//
// The state of such a model after a prefix cannot be cut from a later one, as KV blocks can. So the
// states of some positions are kept in cells, each under the name of the KV block that ends there,
// and a sequence can begin after the blocks and the checkpoint that are both there. To save one
// costs a part no more than the copy, wherever in its tokens it falls. But a cell takes as much
// memory as the keys and values of some thousand tokens, so that checkpoints are few:
// - A part of a prompt saves the state at its last block's end, if checkpoint_tokens have passed
//   since the last checkpoint: a prompt that runs in large steps has a checkpoint in each.
// - A prompt's last block boundary is a checkpoint, since the same prompt may come again, alone, as
//   the beginning of a conversation's next turn, or for the request's other samples.
// - A long prompt also has one before that, at a multiple of checkpoint_tokens, since many prompts
//   differ in their last lines alone.
// - If KV blocks were found beyond the checkpoint, others have begun alike, and more may come: the
//   end of those blocks is a checkpoint.
// None of the last three is made close after another, which spares almost as many tokens.
// - A sequence that decodes saves its state once checkpoint_tokens have passed. It does not
//   overwrite a cell at each block instead: that copies the whole state, and spares the next turn
//   no more than checkpoint_tokens of prompt.
// No state is saved among the drafts of a part, which may be wrong. A guess ends where drafts would
// pass a block's end at which a state is due, so that a part's own tokens end there.
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

bool Scheduler::IsCheckpoint(const Sequence& sequence, int position, int last) const {
  const int since = position - last;
  if (since >= checkpoint_tokens_) return true;
  // Fewer tokens are run again in little time. But each of a request's samples would.
  const int least =
      sequence.live->request.samples > 1 ? backend_.block_tokens : checkpoint_tokens_ / 4;
  return since >= std::max(least, 1) &&
         std::ranges::count(PlannedCheckpoints(sequence), position) > 0;
}

void Scheduler::BeginAtCheckpoint(Sequence& sequence, int shared, int found) {
  sequence.last_checkpoint = sequence.scheduled;
  sequence.branch = found * backend_.block_tokens;
  if (shared == 0) return;
  sequence.checkpoint = states_.Find(BlockHashes(sequence, shared).back());
  ++counts_.checkpoint_hits;
  counts_.checkpoint_tokens += sequence.scheduled;
}

void Scheduler::TakeCheckpoints(InFlight::Part& part) {
  Sequence& sequence = *part.sequence;
  if (!KeepsStates(sequence)) return;
  const std::array<int, 3> planned = PlannedCheckpoints(sequence);
  std::array<int, kMaxStateSaves> positions = {planned[0], planned[1], planned[2],
                                               part.end - part.end % backend_.block_tokens};
  std::ranges::sort(positions);
  int count = 0;
  int last = sequence.last_checkpoint;
  for (const int position : positions) {
    // A position that stands there twice is close after itself.
    if (position <= part.begin || position > part.end) continue;
    if (IsCheckpoint(sequence, position, last)) positions[count++] = last = position;
  }
  // If few cells are free, the last positions get them, since they spare the most tokens.
  while (count > 0) TakeCheckpoint(part, positions[--count]);
  std::ranges::reverse(part.saves);
  std::ranges::reverse(part.saved);
}

void Scheduler::TakeCheckpoint(InFlight::Part& part, int position) {
  Sequence& sequence = *part.sequence;
  StateCell cell;
  // The last token may be one that is being drawn.
  if (position <= static_cast<int>(sequence.tokens.size())) {
    // A state that is there counts as used, and need not be saved again.
    cell = states_.Find(BlockHashes(sequence, position / backend_.block_tokens).back());
  }
  const bool is_there = cell.held();
  if (!is_there) cell = states_.Take();
  if (!cell.held()) return;
  sequence.last_checkpoint = std::max(sequence.last_checkpoint, position);
  if (is_there) return;
  part.saves.push_back({.tokens = position - part.begin, .cell = cell.id()});
  part.saved.push_back(std::move(cell));
}

int Scheduler::DraftsBeforeCheckpoint(const Sequence& sequence) const {
  if (!KeepsStates(sequence)) return backend_.max_drafts;
  const auto known = static_cast<int>(sequence.tokens.size());
  const int due = std::max(sequence.last_checkpoint + checkpoint_tokens_, known);
  const int next = BlocksFor(due) * backend_.block_tokens;
  // A state that is due after the known tokens is saved by the part that these end, and the token
  // drawn after the drafts is run by the next one.
  return (next > known ? next - known : checkpoint_tokens_) - 1;
}

void Scheduler::NameCheckpoints(const InFlight::Part& part) {
  Sequence& sequence = *part.sequence;
  for (size_t i = 0; i < part.saves.size(); ++i) {
    const int position = part.begin + part.saves[i].tokens;
    // The generation may have ended before the part's last token.
    if (position > static_cast<int>(sequence.tokens.size())) return;
    const int blocks = position / backend_.block_tokens;
    if (states_.Name(part.saved[i], BlockHashes(sequence, blocks).back())) {
      ++counts_.saved_checkpoints;
    }
  }
}

void Scheduler::LeaveCheckpoint(Sequence& sequence) {
  sequence.checkpoint.Release();
  sequence.last_checkpoint = 0;
  sequence.branch = 0;
}

}  // namespace orcd
