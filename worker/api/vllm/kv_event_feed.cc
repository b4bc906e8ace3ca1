#include "worker/api/vllm/kv_event_feed.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

// Largest number of events applied in one Take. It takes some milliseconds, and the calling thread
// has other calls to serve.
constexpr size_t kEventsAtATime = 16 << 10;
// More events may wait in the inbox than for one subscriber: a subscriber that is late once is not
// slow yet.
constexpr size_t kInboxToPending = 4;

}  // namespace

absl::Status KvEventsClosing() {
  return MakeError(absl::StatusCode::kUnavailable, "this worker goes, and its cache with it",
                   {.reason = "DRAINING"});
}

KvEventFeed::Subscription::Subscription(std::shared_ptr<KvEventFeed> feed)
    : feed_(std::move(feed)) {}

KvEventFeed::Subscription::~Subscription() {
  std::lock_guard lock(feed_->mutex_);
  std::erase(feed_->subscriptions_, this);
}

KvEventFeed::PendingChanges KvEventFeed::Subscription::Take() {
  std::lock_guard lock(feed_->mutex_);
  feed_->Advance();
  PendingChanges pending = std::exchange(pending_, {});
  pending_.lost = pending.lost;
  pending_.ended = pending.ended;
  return pending;
}

std::unique_ptr<KvEventFeed::Subscription> KvEventFeed::Subscribe() {
  auto subscription = std::make_unique<Subscription>(shared_from_this());
  std::lock_guard lock(mutex_);
  Advance();
  if (listed_) {
    subscription->pending_.all = index_.List();
    subscription->has_all_ = true;
  }
  subscriptions_.push_back(subscription.get());
  return subscription;
}

bool KvEventFeed::over() const {
  std::lock_guard lock(inbox_mutex_);
  return has_ended_ || is_lost_;
}

void KvEventFeed::OnStored(const FindableBlock& block) {
  std::lock_guard lock(inbox_mutex_);
  if (!HasRoom()) return;
  inbox_.events.push_back({.kind = Event::Kind::kStored,
                           .has_parent = block.parent.has_value(),
                           .tokens = static_cast<uint32_t>(block.tokens.size()),
                           .content = block.content,
                           .parent = block.parent.value_or(BlockHash())});
  inbox_.tokens.insert(inbox_.tokens.end(), block.tokens.begin(), block.tokens.end());
}

void KvEventFeed::OnRemoved(const BlockHash& content) {
  std::lock_guard lock(inbox_mutex_);
  if (!HasRoom()) return;
  inbox_.events.push_back({.kind = Event::Kind::kRemoved, .content = content, .parent = {}});
}

void KvEventFeed::OnListed() {
  std::lock_guard lock(inbox_mutex_);
  was_listed_ = true;
  inbox_.events.push_back({.kind = Event::Kind::kListed, .content = {}, .parent = {}});
}

void KvEventFeed::OnEnded() {
  std::lock_guard lock(inbox_mutex_);
  has_ended_ = true;
  inbox_ = {};
}

bool KvEventFeed::HasRoom() {
  if (is_lost_) return false;
  if (!was_listed_ || ++live_events_ <= kInboxToPending * max_pending_) return true;
  is_lost_ = true;
  inbox_ = {};
  return false;
}

void KvEventFeed::Advance() {
  if (done_events_ == taken_.events.size()) {
    taken_ = {};
    done_events_ = 0;
    done_tokens_ = 0;
  }
  bool lost = false;
  bool ended = false;
  {
    std::lock_guard lock(inbox_mutex_);
    lost = is_lost_;
    ended = has_ended_;
    if (!lost && !ended && taken_.events.empty()) {
      std::swap(taken_, inbox_);
      live_events_ = 0;
    }
  }
  if (lost || ended) {
    // Frees the index without inbox_mutex_, which the engine's thread waits for: a large index
    // takes long to free. Lost changes stay lost even if another feed has replaced this one since.
    End(lost);
    return;
  }
  const size_t end = std::min(taken_.events.size(), done_events_ + kEventsAtATime);
  for (; done_events_ < end; ++done_events_) Apply(taken_.events[done_events_]);
  Publish();
}

void KvEventFeed::Apply(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kStored: {
      FindableBlock block = {
          .content = event.content,
          .parent = std::nullopt,
          .tokens = std::span(taken_.tokens).subspan(done_tokens_, event.tokens)};
      if (event.has_parent) block.parent = event.parent;
      index_.Store(block, changes_);
      done_tokens_ += event.tokens;
      break;
    }
    case Event::Kind::kRemoved:
      index_.Remove(event.content, changes_);
      break;
    case Event::Kind::kListed:
      listed_ = true;
      changes_.clear();
      for (Subscription* subscription : subscriptions_) {
        subscription->pending_.all = index_.List();
        subscription->has_all_ = true;
      }
      break;
  }
}

void KvEventFeed::End(bool lost) {
  taken_ = {};
  done_events_ = 0;
  done_tokens_ = 0;
  changes_.clear();
  index_ = {};
  for (Subscription* subscription : subscriptions_) {
    subscription->pending_ = {};
    (lost ? subscription->pending_.lost : subscription->pending_.ended) = true;
  }
}

void KvEventFeed::Publish() {
  for (Subscription* subscription : subscriptions_) {
    PendingChanges& pending = subscription->pending_;
    // A subscriber without the list gets no changes, because the list will contain them.
    if (!subscription->has_all_ || pending.lost) continue;
    if (pending.changes.size() + changes_.size() > max_pending_) {
      pending = {};
      pending.lost = true;
      continue;
    }
    pending.changes.insert(pending.changes.end(), changes_.begin(), changes_.end());
  }
  changes_.clear();
}

absl::StatusOr<std::unique_ptr<KvEventFeeds::Subscriber>> KvEventFeeds::Subscribe() {
  if (*closing_) return KvEventsClosing();
  std::lock_guard lock(mutex_);
  if (*count_ >= limits_.max_subscribers) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("as many follow the prefix cache as may, ",
                                  limits_.max_subscribers, "; try again when one of them has left"),
                     {.reason = "TOO_MANY_SUBSCRIBERS", .subject = "kv_events:subscribers"});
  }
  ORCD_ASSIGN_OR_RETURN(const EngineLease lease, host_.Borrow(""));
  std::shared_ptr<KvEventFeed> feed = feed_.lock();
  if (feed == nullptr || feed->over()) {
    feed = std::make_shared<KvEventFeed>(limits_.max_pending);
    feed_ = feed;
    lease.engine().ObserveBlocks(feed);
  }
  std::unique_ptr<Subscriber> subscriber(new Subscriber(count_, closing_));
  subscriber->subscription_ = feed->Subscribe();
  return subscriber;
}

}  // namespace orcd
