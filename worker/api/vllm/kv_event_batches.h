// Makes the batches of SubscribeKvEvents from the pending changes of a feed.
#ifndef ORCD_WORKER_API_VLLM_KV_EVENT_BATCHES_H_
#define ORCD_WORKER_API_VLLM_KV_EVENT_BATCHES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "worker/api/vllm/kv_event_feed.h"
#include "worker/api/vllm/wire.h"

namespace orcd {

// The batches of one stream. Numbers them from 1 without a gap and keeps what did not fit into one.
// For one thread at a time.
class KvEventBatches {
 public:
  // `max_tokens` is the approximate number of tokens in a batch. The default keeps a batch far
  // below the message size that gateways accept.
  explicit KvEventBatches(size_t max_tokens = 16 << 10) : max_tokens_(max_tokens) {}

  // Adds changes to send. Call only while empty().
  void Add(KvEventFeed::PendingChanges pending);
  bool empty() const { return all_.empty() && changes_.empty() && !begins_; }

  // The next batch, without a load. Do not call while empty().
  std::unique_ptr<vllm_wire::KvEventBatch> Next();
  // A batch that clears every block. Drops the pending changes.
  std::unique_ptr<vllm_wire::KvEventBatch> Cleared();

  // Number of the last batch. 0 if there was none.
  uint64_t sequence_number() const { return sequence_number_; }

 private:
  std::unique_ptr<vllm_wire::KvEventBatch> NewBatch();
  void AppendList(vllm_wire::KvEventBatch& batch);
  void AppendChanges(vllm_wire::KvEventBatch& batch);

  const size_t max_tokens_;
  uint64_t sequence_number_ = 0;
  uint64_t event_id_ = 0;
  // The list of blocks has been begun. It is sent even if it is empty.
  bool begins_ = false;
  uint64_t listed_blocks_ = 0;
  size_t blocks_a_chunk_ = 1;
  uint32_t chunks_ = 0;
  uint32_t next_chunk_ = 0;
  std::deque<std::shared_ptr<const KvBlock>> all_;
  std::deque<KvBlockIndex::Change> changes_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_VLLM_KV_EVENT_BATCHES_H_
