// What a model's prefix cache holds, told to those who ask.
#ifndef ORCD_WORKER_VLLM_KV_EVENT_FEED_H_
#define ORCD_WORKER_VLLM_KV_EVENT_FEED_H_

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
#include "worker/model_host.h"
#include "worker/vllm/kv_block_index.h"

namespace orcd {

struct KvEventLimits {
  int max_subscribers = 16;
  // Changes that wait for a subscriber; more and it is told that it lost some. Four times as many
  // may wait until any subscriber looks.
  size_t max_pending = 64 << 10;
};

// Follows the block pool of one engine, for as long as anybody holds this. The engine's thread
// tells it of changes, subscribers take them, each from a thread of its own.
class KvEventFeed final : public BlockObserver, public std::enable_shared_from_this<KvEventFeed> {
 public:
  // Since the last time.
  struct News {
    // What there is to begin with, parents first; only the first time.
    std::optional<std::vector<std::shared_ptr<const KvBlock>>> all;
    std::vector<KvBlockIndex::Change> changes;
    // More was to be kept than may be: changes are missing.
    bool lost = false;
    // The engine has gone, and every block.
    bool gone = false;
  };

  // One who follows. Owns its news until they are taken. One thread at a time.
  class Subscription {
   public:
    explicit Subscription(std::shared_ptr<KvEventFeed> feed);
    ~Subscription();
    Subscription(const Subscription&) = delete;
    Subscription& operator=(const Subscription&) = delete;

    News Take();

   private:
    friend class KvEventFeed;
    const std::shared_ptr<KvEventFeed> feed_;
    // Guarded by the feed's mutex.
    News news_;
    bool has_all_ = false;
  };

  explicit KvEventFeed(size_t max_pending) : max_pending_(max_pending) {}

  std::unique_ptr<Subscription> Subscribe();
  // It says nothing more, or nothing that is whole.
  bool over() const;

  // BlockObserver.
  void OnStored(const FindableBlock& block) override;
  void OnRemoved(const BlockHash& content) override;
  void OnListed() override;
  void OnGone() override;

 private:
  // What the engine said.
  struct Event {
    enum class Kind : uint8_t { kStored, kRemoved, kListed };
    Kind kind = Kind::kListed;
    bool has_parent = false;
    // Of a stored block.
    uint32_t tokens = 0;
    BlockHash content;
    BlockHash parent;
  };
  struct Events {
    std::vector<Event> events;
    // Of the stored blocks, one after another.
    std::vector<int32_t> tokens;
  };

  // With inbox_mutex_ held: whether there is room for another event; otherwise all are lost.
  bool HasRoom();
  // With mutex_ held: works out what the engine said means, and hands it out.
  void Advance();
  void Apply(const Event& event);
  void Publish();
  // With mutex_ held: nothing else will be said.
  void End(bool lost);

  const size_t max_pending_;

  // What the engine's thread waits for, never for long. Guards what it said and nobody looked at.
  mutable std::mutex inbox_mutex_;
  Events inbox_;
  // Of them, those that came after the list.
  size_t live_events_ = 0;
  bool was_listed_ = false;
  bool is_lost_ = false;
  bool is_gone_ = false;

  // Locked before inbox_mutex_. Guards what follows.
  std::mutex mutex_;
  KvBlockIndex index_;
  std::vector<Subscription*> subscriptions_;
  // Taken from the inbox, and what of it is done.
  Events taken_;
  size_t done_events_ = 0;
  size_t done_tokens_ = 0;
  // What it meant, for the subscribers.
  std::vector<KvBlockIndex::Change> changes_;
  bool listed_ = false;
};

// The feed of the engine that there is, while anybody follows it. Any thread.
class KvEventFeeds {
 public:
  // A place among the subscribers.
  class Subscriber {
   public:
    ~Subscriber() { --*places_; }
    Subscriber(const Subscriber&) = delete;
    Subscriber& operator=(const Subscriber&) = delete;

    KvEventFeed::News Take() { return subscription_->Take(); }
    // The worker goes.
    bool closing() const { return *closing_; }

   private:
    friend class KvEventFeeds;
    Subscriber(std::shared_ptr<std::atomic<int>> places,
               std::shared_ptr<const std::atomic<bool>> closing)
        : places_(std::move(places)), closing_(std::move(closing)) {
      ++*places_;
    }

    const std::shared_ptr<std::atomic<int>> places_;
    const std::shared_ptr<const std::atomic<bool>> closing_;
    std::unique_ptr<KvEventFeed::Subscription> subscription_;
  };

  // `host` must outlive this.
  explicit KvEventFeeds(ModelHost& host, const KvEventLimits& limits = {})
      : host_(host), limits_(limits) {}

  // kResourceExhausted (TOO_MANY_SUBSCRIBERS), kUnavailable (DRAINING) after Shutdown, and the
  // errors of ModelHost::Borrow.
  absl::StatusOr<std::unique_ptr<Subscriber>> Subscribe();

  // Tells the subscribers to end, and refuses later ones.
  void Shutdown() { *closing_ = true; }

 private:
  ModelHost& host_;
  const KvEventLimits limits_;
  const std::shared_ptr<std::atomic<int>> places_ = std::make_shared<std::atomic<int>>(0);
  const std::shared_ptr<std::atomic<bool>> closing_ = std::make_shared<std::atomic<bool>>(false);

  // Guards what follows.
  std::mutex mutex_;
  std::weak_ptr<KvEventFeed> feed_;
};

// The worker goes: kUnavailable (DRAINING).
absl::Status KvEventsClosing();

}  // namespace orcd

#endif  // ORCD_WORKER_VLLM_KV_EVENT_FEED_H_
