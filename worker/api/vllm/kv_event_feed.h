// Sends the content of a model's prefix cache to its subscribers.
#ifndef ORCD_WORKER_API_VLLM_KV_EVENT_FEED_H_
#define ORCD_WORKER_API_VLLM_KV_EVENT_FEED_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/engine/block_pool.h"
#include "worker/api/vllm/kv_block_index.h"
#include "worker/host/model_host.h"

namespace orcd {

struct KvEventLimits {
  int max_subscribers = 16;
  // Largest number of changes that wait for one subscriber. With more, the subscriber loses
  // some, and `lost` is set. Four times as many may wait until any subscriber takes its own.
  size_t max_pending = 64 << 10;
};

// Follows the block pool of one engine for as long as anyone holds this object. The engine's thread
// reports changes; subscribers take them, each on its own thread.
class KvEventFeed final : public BlockObserver, public std::enable_shared_from_this<KvEventFeed> {
 public:
  // Changes since the last Take.
  struct PendingChanges {
    // The whole content, parents first. Only the first time.
    std::optional<std::vector<std::shared_ptr<const KvBlock>>> all;
    std::vector<KvBlockIndex::Change> changes;
    // True if more changes waited than allowed, so that some are missing.
    bool lost = false;
    // True if the engine is destroyed, and every block with it.
    bool ended = false;
  };

  // One subscriber. Owns its pending changes until they are taken. For one thread at a time.
  class Subscription {
   public:
    explicit Subscription(std::shared_ptr<KvEventFeed> feed);
    ~Subscription();
    Subscription(const Subscription&) = delete;
    Subscription& operator=(const Subscription&) = delete;

    PendingChanges Take();

   private:
    friend class KvEventFeed;
    const std::shared_ptr<KvEventFeed> feed_;
    // Guarded by the feed's mutex.
    PendingChanges pending_;
    bool has_all_ = false;
  };

  explicit KvEventFeed(size_t max_pending) : max_pending_(max_pending) {}

  std::unique_ptr<Subscription> Subscribe();
  // True if the feed has ended or has lost changes, so that it reports nothing complete any more.
  bool over() const;

  // BlockObserver.
  void OnStored(const FindableBlock& block) override;
  void OnRemoved(const BlockHash& content) override;
  void OnListed() override;
  void OnEnded() override;

 private:
  // One event of the engine.
  struct Event {
    enum class Kind : uint8_t { kStored, kRemoved, kListed };
    Kind kind = Kind::kListed;
    bool has_parent = false;
    // Number of tokens of a stored block.
    uint32_t tokens = 0;
    BlockHash content;
    BlockHash parent;
  };
  struct Events {
    std::vector<Event> events;
    // Tokens of the stored blocks, one block after another.
    std::vector<int32_t> tokens;
  };

  // With inbox_mutex_ held: true if there is room for another event. If not, all events are lost.
  bool HasRoom();
  // With mutex_ held: applies the engine's events to the index and hands out the changes.
  void Advance();
  void Apply(const Event& event);
  void Publish();
  // With mutex_ held: ends the feed.
  void End(bool lost);

  const size_t max_pending_;

  // The only mutex that the engine's thread waits for, never for long. Guards the events that no
  // subscriber has taken yet.
  mutable std::mutex inbox_mutex_;
  Events inbox_;
  // Number of events in inbox_ that came after the list.
  size_t live_events_ = 0;
  bool was_listed_ = false;
  bool is_lost_ = false;
  bool has_ended_ = false;

  // Locked before inbox_mutex_. Guards what follows.
  std::mutex mutex_;
  KvBlockIndex index_;
  std::vector<Subscription*> subscriptions_;
  // Events taken from the inbox, and how many of them and of their tokens have been applied.
  Events taken_;
  size_t done_events_ = 0;
  size_t done_tokens_ = 0;
  // Changes that the applied events caused, for the subscribers.
  std::vector<KvBlockIndex::Change> changes_;
  bool listed_ = false;
};

// The feed of the present engine, which exists while anyone follows it. Any thread.
class KvEventFeeds {
 public:
  // One of the limited number of subscribers.
  class Subscriber {
   public:
    ~Subscriber() { --*count_; }
    Subscriber(const Subscriber&) = delete;
    Subscriber& operator=(const Subscriber&) = delete;

    KvEventFeed::PendingChanges Take() { return subscription_->Take(); }
    // True once the worker shuts down.
    bool closing() const { return *closing_; }

   private:
    friend class KvEventFeeds;
    Subscriber(std::shared_ptr<std::atomic<int>> count,
               std::shared_ptr<const std::atomic<bool>> closing)
        : count_(std::move(count)), closing_(std::move(closing)) {
      ++*count_;
    }

    const std::shared_ptr<std::atomic<int>> count_;
    const std::shared_ptr<const std::atomic<bool>> closing_;
    std::unique_ptr<KvEventFeed::Subscription> subscription_;
  };

  // `host` must outlive this.
  explicit KvEventFeeds(ModelHost& host, const KvEventLimits& limits = {})
      : host_(host), limits_(limits) {}

  // Fails with kResourceExhausted (TOO_MANY_SUBSCRIBERS), with kUnavailable (DRAINING) after
  // Shutdown, and with the errors of ModelHost::Borrow.
  absl::StatusOr<std::unique_ptr<Subscriber>> Subscribe();

  // Makes the subscribers end, and refuses later ones.
  void Shutdown() { *closing_ = true; }

 private:
  ModelHost& host_;
  const KvEventLimits limits_;
  const std::shared_ptr<std::atomic<int>> count_ = std::make_shared<std::atomic<int>>(0);
  const std::shared_ptr<std::atomic<bool>> closing_ = std::make_shared<std::atomic<bool>>(false);

  // Guards what follows.
  std::mutex mutex_;
  std::weak_ptr<KvEventFeed> feed_;
};

// The error of a worker that shuts down: kUnavailable (DRAINING).
absl::Status KvEventsClosing();

}  // namespace orcd

#endif  // ORCD_WORKER_API_VLLM_KV_EVENT_FEED_H_
