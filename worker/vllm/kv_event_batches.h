// Batches of SubscribeKvEvents, from what a feed says.
#ifndef ORCD_WORKER_VLLM_KV_EVENT_BATCHES_H_
#define ORCD_WORKER_VLLM_KV_EVENT_BATCHES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "worker/vllm/kv_event_feed.h"
#include "worker/vllm/wire.h"

namespace orcd {

// One stream's: numbers its batches from 1 on without a gap and keeps what did not fit into one.
// One thread at a time.
class KvEventBatches {
 public:
  // Tokens in a batch, about: it stays far below what gateways take as a message.
  explicit KvEventBatches(size_t max_tokens = 16 << 10) : max_tokens_(max_tokens) {}

  // News to be told; only where there is nothing left.
  void Add(KvEventFeed::News news);
  bool empty() const { return all_.empty() && changes_.empty() && !begins_; }

  // The next batch, without a load; not where empty().
  std::unique_ptr<vllm_wire::KvEventBatch> Next();
  // Every block has gone; what was to be told of before is dropped.
  std::unique_ptr<vllm_wire::KvEventBatch> Cleared();

  // Of the last batch; 0: there was none.
  uint64_t sequence_number() const { return sequence_number_; }

 private:
  std::unique_ptr<vllm_wire::KvEventBatch> NewBatch();
  void AppendList(vllm_wire::KvEventBatch& batch);
  void AppendChanges(vllm_wire::KvEventBatch& batch);

  const size_t max_tokens_;
  uint64_t sequence_number_ = 0;
  uint64_t event_id_ = 0;
  // The list has been begun, and is to be told also where it is empty.
  bool begins_ = false;
  uint64_t listed_blocks_ = 0;
  size_t blocks_a_chunk_ = 1;
  uint32_t chunks_ = 0;
  uint32_t next_chunk_ = 0;
  std::deque<std::shared_ptr<const KvBlock>> all_;
  std::deque<KvBlockIndex::Change> changes_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_VLLM_KV_EVENT_BATCHES_H_
