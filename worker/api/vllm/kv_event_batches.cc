#include "worker/api/vllm/kv_event_batches.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace orcd {
namespace {

// BlockHash is half of a SHA-256 sum. Gateways identify a block by an int64, which is half of that.
int64_t WireHash(const BlockHash& content) { return static_cast<int64_t>(content.high); }

void AppendBlock(const KvBlock& block, vllm_wire::KvBlocksStored& stored) {
  vllm_wire::KvBlock* wire = stored.add_blocks();
  wire->set_block_hash(WireHash(block.content));
  wire->mutable_token_ids()->Add(block.tokens.begin(), block.tokens.end());
  wire->set_block_size(static_cast<int32_t>(block.tokens.size()));
}

// Appends events to a batch. Consecutive blocks share one event.
class EventAppender {
 public:
  // `event_id` grows with each event. Null: events have no id.
  EventAppender(vllm_wire::KvEventBatch& batch, uint64_t* event_id)
      : batch_(batch), event_id_(event_id) {}

  void Stored(const KvBlock& block) {
    if (last_ == nullptr || block.parent != last_->content) {
      vllm_wire::KvCacheEvent* event = NewEvent();
      if (block.parent) {
        event->mutable_stored()->set_parent_block_hash(WireHash(*block.parent));
      }
    }
    AppendBlock(block, *batch_.mutable_events()->rbegin()->mutable_stored());
    last_ = &block;
  }
  void Removed(const KvBlock& block) {
    last_ = nullptr;
    if (batch_.events().empty() || !batch_.events().rbegin()->has_removed()) NewEvent();
    batch_.mutable_events()->rbegin()->mutable_removed()->add_block_hashes(WireHash(block.content));
  }

 private:
  vllm_wire::KvCacheEvent* NewEvent() {
    vllm_wire::KvCacheEvent* event = batch_.add_events();
    if (event_id_ != nullptr) event->set_event_id(++*event_id_);
    return event;
  }

  vllm_wire::KvEventBatch& batch_;
  uint64_t* const event_id_;
  const KvBlock* last_ = nullptr;
};

}  // namespace

void KvEventBatches::Add(KvEventFeed::PendingChanges pending) {
  if (pending.all) {
    begins_ = true;
    all_.assign(pending.all->begin(), pending.all->end());
    listed_blocks_ = all_.size();
    if (!all_.empty()) {
      blocks_a_chunk_ = std::max<size_t>(1, max_tokens_ / all_.front()->tokens.size());
    }
    chunks_ = static_cast<uint32_t>(
        std::max<size_t>(1, (all_.size() + blocks_a_chunk_ - 1) / blocks_a_chunk_));
    next_chunk_ = 0;
  }
  changes_.insert(changes_.end(), std::make_move_iterator(pending.changes.begin()),
                  std::make_move_iterator(pending.changes.end()));
}

std::unique_ptr<vllm_wire::KvEventBatch> KvEventBatches::Next() {
  auto batch = NewBatch();
  if (begins_ || !all_.empty()) {
    AppendList(*batch);
  } else {
    AppendChanges(*batch);
  }
  return batch;
}

std::unique_ptr<vllm_wire::KvEventBatch> KvEventBatches::Cleared() {
  begins_ = false;
  all_.clear();
  changes_.clear();
  auto batch = NewBatch();
  vllm_wire::KvCacheEvent* event = batch->add_events();
  event->set_event_id(++event_id_);
  event->mutable_cleared();
  return batch;
}

std::unique_ptr<vllm_wire::KvEventBatch> KvEventBatches::NewBatch() {
  auto batch = std::make_unique<vllm_wire::KvEventBatch>();
  batch->set_sequence_number(++sequence_number_);
  batch->set_timestamp(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  return batch;
}

void KvEventBatches::AppendList(vllm_wire::KvEventBatch& batch) {
  if (begins_) batch.add_events()->mutable_cleared();
  begins_ = false;
  vllm_wire::KvSnapshotChunk* chunk = batch.mutable_snapshot();
  chunk->set_index(next_chunk_++);
  chunk->set_count(chunks_);
  chunk->set_blocks(listed_blocks_);
  EventAppender events(batch, nullptr);
  const size_t count = std::min(blocks_a_chunk_, all_.size());
  for (size_t i = 0; i < count; ++i) events.Stored(*all_[i]);
  all_.erase(all_.begin(), all_.begin() + static_cast<ptrdiff_t>(count));
}

void KvEventBatches::AppendChanges(vllm_wire::KvEventBatch& batch) {
  EventAppender events(batch, &event_id_);
  size_t count = 0;
  for (size_t tokens = 0; count < changes_.size() && tokens < max_tokens_; ++count) {
    const KvBlockIndex::Change& change = changes_[count];
    if (change.stored) {
      events.Stored(*change.block);
    } else {
      events.Removed(*change.block);
    }
    tokens += change.block->tokens.size();
  }
  changes_.erase(changes_.begin(), changes_.begin() + static_cast<ptrdiff_t>(count));
}

}  // namespace orcd
